"""Logs of any size and encoding: read alike, and of very large ones the end."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tests.docs.test_lines_that_are_read import lines_of

from stepscope.core.errors import DataError
from stepscope.store import log_lines, step_log
from stepscope.store.importers import read_foreign
from stepscope.store.log_lines import LogLines, marks_in, parts_read
from stepscope.store.text_signs import signs_beside

FAILS = ["Traceback (most recent call last):", '  File "fit.py", line 31, in train', "ValueError: bad sample"]


def line(step: int, rng: random.Random, rank: int = 3) -> str:
    rate = rng.choice((9_712, 10_233, 812)) + step
    loss = rng.choice(("7.1250", "11.25", "nan", "2.5e-05"))
    return f"[rank{rank}]: step: {step}  loss: {loss}  memory: 51.20GiB(64.77%)  tps: {rate:,}  mfu: 41.70%"


def torn(lines: list[str], rng: random.Random) -> list[str]:
    """Some lines cut, doubled, of another rank, or with another process inside."""
    kinds = (
        lambda text: text[: rng.randrange(len(text))],
        lambda text: text + text,
        lambda text: text.replace("[rank3]", "[rank4]"),
        lambda text: text[:40] + "W1128 NCCL WARN" + text[40:],
        lambda _: "Training completed",
    )
    return [rng.choice(kinds)(text) if rng.random() < 0.1 else text for text in lines]


@pytest.mark.parametrize("many", [2, 10, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_lines_of_one_shape_are_read_as_each_by_itself(
    many: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(step_log, "_MANY", many)
    steps = [*range(1, 60), *range(rng.randrange(60), 130)]
    path = tmp_path / "a.log"
    path.write_text("\n".join(torn([line(step, rng) for step in steps], rng)) + rng.choice(("", "\n")))
    fast = read_foreign(path)
    monkeypatch.setattr(step_log, "shape", bytes.upper)
    monkeypatch.setattr(step_log.Printed, "places_of", lambda *_: None)
    assert repr(fast) == repr(read_foreign(path))


@pytest.mark.parametrize(("name", "line"), lines_of("Logs of training loops"))
def test_so_are_those_of_each_training_loop(
    name: str, line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(name)
    monkeypatch.setattr(step_log, "_MANY", 2)

    def other(found: re.Match[bytes]) -> bytes:
        return found[0] if rng.random() < 0.8 else b"".join(b"%d" % rng.randrange(10) for _ in found[0])

    path = tmp_path / "a.log"
    path.write_bytes(b"\n".join(re.sub(rb"\d+", other, line) for _ in range(60)))
    fast = read_or_why(path)
    monkeypatch.setattr(step_log, "shape", bytes.upper)
    monkeypatch.setattr(step_log.Printed, "places_of", lambda *_: None)
    assert fast == read_or_why(path)


def read_or_why(path: Path) -> str:
    try:
        return repr(read_foreign(path))
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_encoding_changes_nothing(encoding: str, end: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    text = end.join([*(line(step, rng) for step in range(1, 400)), *FAILS, ""])
    path = tmp_path / "job.log"
    path.write_bytes(text.encode())
    plain = repr(read_foreign(path))
    path.write_bytes(f"\ufeff{text}".encode(encoding))
    assert repr(read_foreign(path)) == plain
    assert [sign.line for sign in signs_beside((path,))] == [400, 401, 402]


def test_of_a_large_log_the_beginning_and_the_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("WHOLE", 40_000), ("_START", 5_000), ("_END", 9_000), ("_BLOCK", 1_000)):
        monkeypatch.setattr(log_lines, name, size)
    rng = random.Random(2)
    lines = [*(line(step, rng) for step in range(1, 2000)), *FAILS, ""]
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines))
    got = list(LogLines(path))
    assert all(lines[number - 1].startswith(text.decode().rstrip()) for number, text in got), "lines keep their numbers"
    assert sum(len(text) for _, text in got) < 15_000
    assert [(sign.line, sign.kind) for sign in signs_beside((path,))][::2] == [(2000, "traceback"), (2002, "exception")]
    assert parts_read([path]) == read_foreign(path).notes[-1:]


def test_lines_longer_than_a_piece_keep_their_number(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"one\n" + b"word " * 100_000 + b"\nthree\r\nfour")
    numbers = dict.fromkeys(number for number, _ in LogLines(path))
    assert list(numbers) == [1, 2, 3, 4]
    assert b"".join(text for number, text in LogLines(path) if number == 2) == b"word " * 100_000
    assert marks_in(path, [b"three", b"five", b"d w"]) == {b"three", b"d w"}
