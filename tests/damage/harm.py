"""Seeded damage to files: ``harm(path, rng)`` harms one file of an input and says what it did.

Bytes are cut and changed; lines, cells, numbers and keys are lost, doubled, swapped or made absurd by the file's own
structure (JSON, lines, pickle, SQLite, gzip); files become folders, loops of links, pipes.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
ODD_NUMBERS = (
    "nan", "NaN", "inf", "-inf", "Infinity", "1e999", "-1", "0", "-0.0", "", " ", "9" * 60, "1" + "0" * 400, "1e308",
    "-7.5", "1.0", "1,234", '"5"', "'5'", "abc", "null", "None", "true", "0x10", "１２", "1_000", "5 ms", "=1+1",
    "9223372036854775808",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.0, 10**60, -(10**60), 2**63, 2**64, -1.5, float("nan"), float("inf"), "", "x", "5", "=1+1",
    "\0", "a\nb",
    "\ud800", [], {}, [[]], {"a": 1}, [1, "x", None], "é" * 300,
)  # fmt: skip
DEPTHS = (5, 200, 700, 920, 5_000, 100_000)

Harm = Callable[[Path, random.Random], None]


def _rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    """The file's text changed; a packed one is unpacked before and packed again."""
    data = path.read_bytes()
    try:
        path.write_bytes(gzip.compress(change(gzip.decompress(data)), 1))
    except (OSError, EOFError, zlib.error):  # not packed, or damaged before
        path.write_bytes(change(data))


def _on_lines(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    _rewritten(path, lambda data: "".join(change(_text(data).splitlines(keepends=True))).encode("latin-1"))


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def cut(path: Path, rng: random.Random) -> None:
    _rewritten(path, lambda data: data[: rng.randrange(len(data) + 1)])


def cut_as_stored(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 3, 40))):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))


def garbage_after(path: Path, rng: random.Random) -> None:
    path.write_bytes(
        path.read_bytes() + rng.choice((b"\0" * 5000, rng.randbytes(300), b"\n\n", b'{"a": 1}\n', b"]]}}"))
    )


def zeros(path: Path, rng: random.Random) -> None:
    def change(data: bytes) -> bytes:
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 512, 4096))
        return data[:at] + b"\0" * size + data[at + size :]

    _rewritten(path, change)


def swap_lines(path: Path, rng: random.Random) -> None:
    def change(lines: list[str]) -> list[str]:
        for _ in range(rng.randint(1, 5)):
            if len(lines) > 1:
                a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[a], lines[b] = lines[b], lines[a]
        return lines

    _on_lines(path, change)


def lose_lines(path: Path, rng: random.Random) -> None:
    keep = rng.choice((0.2, 0.8, 0.98))
    _on_lines(path, lambda lines: [line for line in lines if rng.random() < keep])


def double_lines(path: Path, rng: random.Random) -> None:
    _on_lines(path, lambda lines: [line for line in lines for _ in range(1 + (rng.random() < 0.2))])


def join_lines(path: Path, rng: random.Random) -> None:
    _on_lines(path, lambda lines: [line.rstrip("\n") if rng.random() < 0.2 else line for line in lines])


def mix_in(path: Path, rng: random.Random) -> None:
    line = rng.choice(
        ("node1:12:34 [0] NCCL INFO Channel 00 : 0 1\n", "Traceback (most recent call last):\n", "\x1b[2K\r", "\n")
    )

    def change(data: bytes) -> bytes:
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            data = data[:at] + line.encode() + data[at:]
        return data

    _rewritten(path, change)


def double_column(path: Path, rng: random.Random) -> None:
    at = rng.randrange(8)

    def change(lines: list[str]) -> list[str]:
        found = []
        for line in lines:
            mark = next((m for m in ("\t", ",", "|", " ") if m in line), None)
            cells = line.rstrip("\n").split(mark) if mark else [line.rstrip("\n")]
            found.append((mark or "").join([*cells, cells[at % len(cells)]]) + "\n")
        return found

    _on_lines(path, change)


def odd_number(path: Path, rng: random.Random) -> None:
    def change(data: bytes) -> bytes:
        text = _text(data)
        for _ in range(rng.choice((1, 1, 4, 30))):
            places = list(NUMBER.finditer(text))
            if places:
                place = rng.choice(places)
                text = text[: place.start()] + _text(rng.choice(ODD_NUMBERS).encode()) + text[place.end() :]
        return text.encode("latin-1")

    _rewritten(path, change)


def other_encoding(path: Path, rng: random.Random) -> None:
    way = rng.choice(("bom", "crlf", "cr", "utf-16", "utf-16-le", "latin-1", "thousands", "decimal comma", "quotes"))

    def change(data: bytes) -> bytes:
        text = data.decode("utf-8", errors="replace")
        if way == "bom":
            return b"\xef\xbb\xbf" + data
        if way in ("crlf", "cr"):
            return data.replace(b"\n", b"\r\n" if way == "crlf" else b"\r")
        if way.startswith("utf"):
            return text.encode(way)
        if way == "latin-1":
            return b"\xe9" + data.replace(b"e", b"\xe9", 5)
        if way == "thousands":
            return NUMBER.sub(lambda m: f"{float(m[0]):,.0f}" if abs(float(m[0])) >= 1000 else m[0], text).encode()
        if way == "decimal comma":
            return NUMBER.sub(lambda m: m[0].replace(".", ","), text).encode()
        return NUMBER.sub(lambda m: f'"{m[0]}"', text).encode()

    _rewritten(path, change)


def blanks(path: Path, rng: random.Random) -> None:
    fill = rng.choice((b" ", b"\n", b"\t", b"\r\n", b" \n")) * rng.choice((10, 5_000, 200_000))

    def change(data: bytes) -> bytes:
        at = rng.randrange(len(data) + 1)
        spot = data.find(b",", at) + 1 or at
        return data[:spot] + fill + data[spot:]

    _rewritten(path, change)


def long_line(path: Path, rng: random.Random) -> None:
    def change(data: bytes) -> bytes:
        at = rng.randrange(len(data) + 1)
        return data[:at] + rng.choice((b"x", b"9", b",", b"|", b'"', b"[", b"-", b"\xc3\xa9")) * 300_000 + data[at:]

    _rewritten(path, change)


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(
        rng.choice((b"", b"\n", b"{}", b"[]", b"null", b"0", b" ", b"\xef\xbb\xbf", b"\x1f\x8b", b"\x80\x04."))
    )


def schema_only(path: Path, rng: random.Random) -> None:
    schema = rng.choice(
        (1, None, "stepscope.run/1", "stepscope.run/999", "stepscope.training_run/1", "stepscope.calib/1", [], "/")
    )
    path.write_text(json.dumps({"schema": schema}))


class _Plain(pickle.Unpickler):
    """Containers, numbers and texts only: changed bytes may spell the name of any function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def odd_structure(path: Path, rng: random.Random) -> None:
    """A value of a JSON document, of a line of one, or of a pickle replaced, lost or moved."""
    data = path.read_bytes()
    if data.startswith(b"SQLite"):
        return odd_cell(path, rng)
    if data.startswith(b"\x80"):
        with contextlib.suppress(Exception):  # damaged before: whatever pickle makes of it
            path.write_bytes(pickle.dumps(_changed(_Plain(io.BytesIO(data)).load(), rng)))
        return None

    def change(text: bytes) -> bytes:
        try:
            return _dumped(_changed(json.loads(text), rng))
        except ValueError:
            lines = text.splitlines()
            places = [i for i, line in enumerate(lines) if line.startswith(b"{")]
            with contextlib.suppress(ValueError, IndexError, RecursionError):
                at = rng.choice(places)
                lines[at] = _dumped(_changed(json.loads(lines[at]), rng))
            return b"\n".join(lines)

    _rewritten(path, change)
    return None


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b"[" * DEPTHS[-1]


def _changed(document: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 1, 3, 10))):
        document = _one_change(document, rng)
    return document


def _one_change(document: Any, rng: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    stack = [document]
    while stack and len(places) < 50_000:
        each = stack.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        places += [(each, key) for key in keys]
        stack += [each[key] for key in keys if isinstance(each[key], dict | list)]
    if not places:
        return rng.choice(ODD_VALUES)
    shallow = places[: max(8, len(places) // 20)]
    holder, key = rng.choice(shallow if rng.random() < 0.4 else places)
    kind = rng.random()
    if kind < 0.2:
        del holder[key]
    elif kind < 0.3:
        holder[key] = [holder[key]]
    elif kind < 0.36:
        value: Any = 0
        for _ in range(rng.choice(DEPTHS[:-1])):
            value = [value] if rng.random() < 0.5 else {"a": value}
        holder[key] = value
    elif kind < 0.45 and isinstance(holder, dict):
        holder[rng.choice(("", "schema", "x" * 500, "ts", "rank"))] = holder.pop(key)
    elif kind < 0.55:
        other, at = rng.choice(places)
        holder[key] = None
        with contextlib.suppress(RecursionError, LookupError):
            holder[key] = json.loads(json.dumps(other[at]))
    else:
        holder[key] = rng.choice(ODD_VALUES)
    return document


def odd_cell(path: Path, rng: random.Random) -> None:
    """A cell, a column or a table of a SQLite database changed; other files lose bytes."""
    if not path.read_bytes().startswith(b"SQLite"):
        return flip(path, rng)
    with (
        contextlib.closing(sqlite3.connect(path)) as database,
        contextlib.suppress(sqlite3.Error, ValueError, OverflowError),
    ):
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = rng.choice(tables)
        column = rng.choice([row[1] for row in database.execute(f"PRAGMA table_info({table})")])
        values = (None, "text", "", -1, 2**62, -(2**62), 1.5, b"\xff", "12", "1e999", 0, "\udcff")
        kind = rng.random()
        if kind < 0.6:
            some = "" if rng.random() < 0.4 else f" WHERE rowid % {rng.choice((1, 2, 3))} = 0"
            database.execute(f'UPDATE {table} SET "{column}" = ?{some}', (rng.choice(values),))
        elif kind < 0.7:
            database.execute(f'ALTER TABLE {table} DROP COLUMN "{column}"')
        elif kind < 0.8:
            database.execute(f"DELETE FROM {table}")
        elif kind < 0.9:
            database.execute(f"DROP TABLE {table}")
        else:
            database.execute(f"ALTER TABLE {table} RENAME TO moved")
            database.execute(f"CREATE VIEW {table} AS SELECT * FROM moved")
        database.commit()
    return None


def as_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / path.name).write_bytes(b"x")


def link_loop(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(rng.choice((path.name, "nowhere", ".", "/dev/null", "/dev/zero")))


def pipe(path: Path, rng: random.Random) -> None:  # noqa: ARG001 - all are called alike
    path.unlink()
    os.mkfifo(path)


def gone(path: Path, rng: random.Random) -> None:  # noqa: ARG001
    path.unlink()


def unreadable(path: Path, rng: random.Random) -> None:
    path.chmod(rng.choice((0, 0o200)))


def folder_in_itself(path: Path, rng: random.Random) -> None:
    (path.parent / rng.choice(("again", "again.json", "trace"))).symlink_to(path.parent, target_is_directory=True)


def stranger(path: Path, rng: random.Random) -> None:
    """Another file beside it, with a name that is read."""
    name = rng.choice(
        ("run.json", "trace.json", "metrics.csv", "results.jsonl", "environment.json", "x.json.gz", "a\nb.json")
    )
    (path.parent / name).write_bytes(rng.choice((b"", b'{"schema": 1}', b"\xff\xfe", b"[" * 3000, b"a,b\n1\n")))


def twice(path: Path, rng: random.Random) -> None:
    other = path.with_name(f"copy-{path.name}")
    if rng.random() < 0.5:
        shutil.copyfile(path, other)
    else:
        path.write_bytes(path.read_bytes() * 2)


HARMS: tuple[Harm, ...] = (
    cut, cut_as_stored, flip, garbage_after, zeros, swap_lines, lose_lines, double_lines, join_lines, mix_in,
    double_column, other_encoding, blanks, long_line, empty, schema_only, as_folder, link_loop, pipe, gone, unreadable,
    folder_in_itself, stranger, twice, odd_number, odd_number, odd_number, odd_cell, odd_cell,
    odd_structure, odd_structure, odd_structure, odd_structure,
)  # fmt: skip


def harm(path: Path, rng: random.Random) -> str:
    """Harms a file at or below ``path``, mostly once; says how."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        if not files or (path.is_symlink()):
            break
        file = rng.choice(files)
        how = rng.choice(HARMS)
        if how in (odd_structure, odd_cell) and file.suffix == ".pickle" and not os.access(file, os.R_OK):
            continue
        how(file, rng)
        done.append(f"{how.__name__} {file.name}")
    return ", ".join(done)
