"""ByteSource: plain, gzip of several members, zstd; what is missing or damaged is said.

Repair: each known defect is mended and counted; what is right is never touched.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from stepscope.core.errors import DataError
from stepscope.traces.source import ByteSource, is_valid, repaired, why_invalid

TEXT = b"".join(b'{"n": %d}, ' % (i * 7919 % 10_007) for i in range(20_000))


def packed(kind: str) -> bytes:
    half = len(TEXT) // 2
    if kind == "zst":
        return zstandard.ZstdCompressor().compress(TEXT)
    if kind == "frames.zst":
        return b"".join(zstandard.ZstdCompressor().compress(t) for t in (TEXT[:half], TEXT[half:]))
    if kind == "members.gz":
        return gzip.compress(TEXT[:half]) + gzip.compress(TEXT[half:])
    if kind == "padded.gz":
        return gzip.compress(TEXT) + b"\0" * 1000
    return gzip.compress(TEXT) if kind == "gz" else TEXT


@pytest.mark.parametrize("chunk_bytes", [7, 199, 65_536, 1 << 20])
@pytest.mark.parametrize("kind", ["plain", "gz", "members.gz", "padded.gz", "zst", "frames.zst"])
def test_every_packing_gives_the_text(kind: str, chunk_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(packed(kind))
    source = ByteSource(path, chunk_bytes=chunk_bytes)
    chunks = list(source)
    assert b"".join(chunks) == TEXT
    assert max(map(len, chunks)) <= chunk_bytes
    assert (source.bytes_read, source.notes, source.broke_off) == (len(TEXT), [], False)


@pytest.mark.parametrize("kind", ["gz", "members.gz", "zst", "frames.zst"])
@pytest.mark.parametrize("lost", [1, 4, 9, 500, 5000])
def test_a_packed_file_that_breaks_off_gives_what_it_holds_and_a_note(kind: str, lost: int, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(packed(kind)[:-lost])
    source = ByteSource(path)
    text = b"".join(source)
    assert TEXT.startswith(text)
    assert source.broke_off
    assert [n.kind for n in source.notes] == ["truncated"]


def test_most_of_a_broken_off_file_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(packed("gz")[:-100])
    assert len(b"".join(ByteSource(path))) > 0.95 * len(TEXT)


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("place", [0.3, 0.7])
def test_damage_in_the_middle_is_an_error(kind: str, place: float, tmp_path: Path) -> None:
    data = bytearray(packed(kind))
    at = int(len(data) * place)
    data[at : at + 64] = bytes(64)
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(DataError, match="corrupt after"):
        list(ByteSource(path))


def test_a_wrong_checksum_is_an_error(tmp_path: Path) -> None:
    data = bytearray(packed("gz"))
    data[-6] ^= 1
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(DataError, match="corrupt after"):
        list(ByteSource(tmp_path / "f"))


def test_bytes_after_the_gzip_data_are_ignored_and_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(packed("gz") + b"something else")
    source = ByteSource(tmp_path / "f")
    assert b"".join(source) == TEXT
    assert [n.kind for n in source.notes] == ["dropped"]
    assert not source.broke_off


@pytest.mark.parametrize("make", ["missing", "folder", "below a file", "empty"])
def test_what_cannot_be_read_is_one_clear_error(make: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    path = {
        "missing": tmp_path / "none", "folder": tmp_path, "below a file": tmp_path / "empty" / "f",
        "empty": tmp_path / "empty",
    }[make]  # fmt: skip
    with pytest.raises(DataError, match="the file is empty" if make == "empty" else "cannot be read") as error:
        list(ByteSource(path))
    assert str(path) in str(error.value)
    assert error.value.fix


def test_zlib_alone_reads_as_isal_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "isal", None)
    (tmp_path / "f").write_bytes(packed("members.gz"))
    assert b"".join(ByteSource(tmp_path / "f", chunk_bytes=1000)) == TEXT
    (tmp_path / "f").write_bytes(packed("gz")[:-9])
    source = ByteSource(tmp_path / "f")
    assert TEXT.startswith(b"".join(source))
    assert source.broke_off


EVENT = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'


def names(text: bytes) -> list[str]:
    return [e["name"] for e in json.loads(b"[" + text + b"]")]


@pytest.mark.parametrize(
    ("broken", "name", "kind"),
    [
        ('say "hi" now', 'say "hi" now', "unescaped quotes in names"),
        ("C:\\Users\\me", "C:\\Users\\me", "invalid backslash escapes"),
        ("a\x01b", "a b", "control characters"),
        ("a\nb\tc", "a b c", "line breaks in names"),
        ("lost \\udc80 half", "lost � half", "incomplete characters"),
        ("lost \\ud83d half", "lost � half", "incomplete characters"),
        ('lambda []("x") { return \\"y\\"; }', 'lambda []("x") { return "y"; }', "unescaped quotes in names"),
    ],
)
def test_each_defect_of_a_name_is_mended_and_counted(broken: str, name: str, kind: str) -> None:
    text = (EVENT % broken).encode()
    assert not is_valid(text)
    mended = repaired(text)
    assert names(mended.text) == [name]
    assert list(mended.kinds) == [kind]


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    mended = repaired((EVENT % "kern").encode().replace(b"kern", b"k\xff\xc3n"))
    assert names(mended.text) == ["k��n"]
    assert mended.kinds["bytes that are not UTF-8"] == 1


@pytest.mark.parametrize("number", ["NaN", "nan", "-nan", "inf", "-inf", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_know_become_null(number: str) -> None:
    mended = repaired(f'{{"a": {number}, "b": [1, {number}], "c":{number}}}'.encode())
    assert json.loads(mended.text) == {"a": None, "b": [1, None], "c": None}


@pytest.mark.parametrize(
    "right",
    [
        "C:\\\\Users",
        'a \\" b',
        "end\\\\",
        '\\\\\\"',
        "\\u00e9\\n\\t",
        "\\ud83d\\ude00",
        "\\\\ud800",
        "漢 ü",
        "\\\\ and",
    ],
)
def test_what_is_right_is_not_touched(right: str) -> None:
    text = (EVENT % right).encode()
    assert is_valid(text)
    mended = repaired(text)
    assert mended.text == text
    assert not mended.kinds


def test_one_defect_leaves_the_other_events_as_they_are() -> None:
    good, bad = EVENT % 'D:\\\\x \\"q\\"', EVENT % "C:\\x"
    mended = repaired(f"{good},\n  {bad}".encode())
    assert names(mended.text) == ['D:\\x "q"', "C:\\x"]


def test_the_first_problem_is_told_with_its_place() -> None:
    problem = why_invalid(b'{"a": 1}, {"b": !}')
    assert (problem.position, problem.cut_short) == (16, False)
    assert why_invalid(b'{"a": 1}, {"b": [2]}') is None
    assert why_invalid(b"") is None
    deep = why_invalid(b"[" * 100_000 + b"]" * 100_000)
    assert not deep.cut_short


def test_a_text_cut_anywhere_is_told_from_a_damaged_one() -> None:
    text = b'{"s": "a\\u12ab\\\\ \\"}", "t": true, "f": false, "n": null, "x": -1.5e+10, "l": [{"a": {}}, []]}'
    for end in range(1, len(text)):
        problem = why_invalid(text[:end])
        assert problem.cut_short, text[:end]
