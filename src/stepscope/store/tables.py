"""The one reader of tables: CSV, TSV, Markdown, columns of a text, JSON lines and JSON records. Cells come with places,
then as typed values. What columns mean: ``store/columns.py``. Complaints name file, line and column.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.store.columns import MISSING, REPEATS, UNITS, Columns, number, plain
from stepscope.store.importer import Candidate, head_of
from stepscope.store.log_lines import NO_END
from stepscope.store.reader import read_bytes, read_json

SUFFIXES = (".csv", ".tsv", ".md", ".markdown", ".json", ".jsonl", ".ndjson", ".txt")
MAX_BYTES = 64 << 20
NOT_FINITE = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity")
_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
_RULE = re.compile(r":?-+:?")
_MARKS = re.compile(r"\*\*|__|`|\[([^\]]*)\]\([^)]*\)")
_DECIMALS = re.compile(r"[-+]?\d+\.(\d+)")
_SHOWN = 40
_PIPE = re.compile(r"(?<!\\)\|")
_FRAME = re.compile(r"[\s|+=-]*")
_BLANKS = (re.compile(r"\s{2,}"), re.compile(r"\s+"))
"""What stands between the columns of a text: names with a blank in them have two."""
_LOOKED_AT = 1 << 16


@dataclass(frozen=True, slots=True)
class TextRow:
    """where: file and line, or file and place in a JSON document. cells: as many as the header has names."""

    where: str
    cells: tuple[str, ...]
    names: tuple[str, ...]

    def wrong(self, index: int, expected: str) -> DataError:
        return DataError(
            f"{self.where}: {self.names[index]} is {self.cells[index][:60]!r}",
            why=f"expected {expected}",
            fix=f"correct the cell, or leave the column out: --columns {self.names[index]}=-",
        )

    def figure(self, index: int, *, words: bool = False) -> float | None:
        """Return a number as written: None for an empty cell, NaN for what is not finite. Raises DataError for what is none.

        words: a text, or a number with a unit, is None too.
        """
        text = self.cells[index].lower()
        parsed = number(text)
        if text in NOT_FINITE:
            return math.nan
        if text in MISSING or (words and (parsed is None or parsed[1])):
            return None
        if parsed is None or parsed[1] not in ("", "%"):
            raise self.wrong(index, "a number")
        return parsed[0]

    def step(self, index: int) -> int:
        """Return the number of a step. Raises DataError for what is none."""
        value = self.figure(index)
        if value is None or not value.is_integer():
            raise self.wrong(index, "the number of a step")
        return int(value)


@dataclass(frozen=True)
class TextTable:
    """source: its file. names: the header. rows: under it. single: the file is one record.

    nested: names that stand in an object of their own inside a JSON record. notes: what a reader must know of it.
    """

    source: Path
    names: tuple[str, ...]
    rows: tuple[TextRow, ...]
    single: bool = False
    nested: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @cached_property
    def varying(self) -> frozenset[int]:
        """Indices of the columns whose texts differ from row to row; all texts for "unknown" are one."""
        columns = zip(*(row.cells for row in self.rows), strict=True)
        texts = [{"" if text.lower() in MISSING else text for text in column} for column in columns]
        return frozenset(place for place, text in enumerate(texts) if len(text) > 1)


def read_tables(path: Path) -> tuple[TextTable, ...]:
    """Read every table of a file. Raises DataError: damaged, or a row with more or fewer cells than its header."""
    suffix, head = path.suffix.lower(), head_of(path, _LOOKED_AT).decode(errors="replace")
    if (blocks := _table_splitter(suffix, head)) is not None:
        text = read_text(path)
        return tuple(_table_of_rows(path, *block) for block in blocks(path, text))
    if _has_json_lines(suffix, head):
        return (_table_of_json_lines(path, read_text(path)),)
    return (_table_of_records(path, read_json(path)),)


def headers(file: Candidate) -> tuple[Sequence[str], ...]:
    """Return the headers in a file's beginning, for telling what it is; of several JSON records, the names of the first."""
    return _table_headers(file.path.suffix.lower(), file.text.removeprefix("\ufeff"))


@lru_cache(4)
def _table_headers(suffix: str, text: str) -> tuple[Sequence[str], ...]:
    """Return the names of each table's columns."""
    blocks = _table_splitter(suffix, text)
    if blocks is None:
        several = text.lstrip()[:1] == "[" or _has_json_lines(suffix, text)
        return tuple(map(tuple, records_in(text, 1 if several else 0)))
    if blocks is _delimited_table:  # its rows may be cut off
        first = next((line for line in text.splitlines() if line.strip()), "")
        return (next(csv.reader([first], delimiter=delimiter_of(first)), []),)
    return tuple(rows[0][1] for rows, *_ in blocks(Path(), text))


def records_in(text: str, most: int) -> Iterator[Mapping[str, Any]]:
    """Yield the first objects of JSON lines, or of a list, as far as they are whole."""
    at = 0
    with suppress(ValueError, RecursionError):
        for _ in range(most):
            record, at = json.JSONDecoder().raw_decode(text, text.index("{", at))
            yield record


JSON_LINES = (".jsonl", ".ndjson")


def _has_json_lines(suffix: str, text: str) -> bool:
    """Whether a file's beginning is one JSON object a line, by its name or (two of them) as it stands in a ``.json``."""
    lines = text.lstrip().split("\n", 2)[:2]
    return suffix in JSON_LINES or (
        len(lines) > 1 and all(line.startswith("{") and line.rstrip().endswith("}") for line in lines)
    )


_Cells = tuple[str, tuple[str, ...]]
_Block = tuple[list[_Cells], bool, bool]
"""(where, cells) of a header and its rows, whether the last one may be cut off, whether 125,000 counts as 125000."""


def _table_splitter(suffix: str, text: str) -> Callable[[Path, str], Iterator[_Block]] | None:
    """Return what splits a text into tables, by its name, and by how a ``.txt`` begins; None: it is JSON."""
    if suffix in (".json", *JSON_LINES):
        return None
    lines = text.splitlines()
    if suffix in (".md", ".markdown") or (suffix == ".txt" and any(map(_is_rule, lines))):
        return _markdown_tables
    first = [line for line in lines[:9] if line.strip()][:2]
    return (
        _spaced_tables
        if suffix == ".txt" and not all(delimiter_of(line) in line for line in first)
        else _delimited_table
    )


def read_text(path: Path) -> str:
    """Read a text file. Raises DataError: not readable, empty, not text, or far too large for a table."""
    if (size := path.stat().st_size) > MAX_BYTES:
        raise DataError(f"{path}: {size} bytes", why=f"no table of results is larger than {MAX_BYTES} bytes")
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file", why=f"byte {error.start} is not UTF-8") from error
    if not text.strip():
        raise DataError(f"{path}: empty", fix="copy the file again")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}:{line}: damaged", why="there are zero bytes in it", fix="copy the file again")
    return text


def _delimited_table(path: Path, text: str) -> Iterator[_Block]:
    """Yield the table of a text with one delimiter. Raises DataError for a damaged one."""
    delimiter = delimiter_of(next(line for line in text.splitlines() if line.strip()))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    try:
        rows = [(f"{path}:{reader.line_num}", tuple(cell.strip() for cell in row)) for row in reader if any(row)]
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not readable as CSV", why=str(error)) from error
    yield rows, not text.endswith(("\n", "\r", '"')), delimiter != ";"


def delimiter_of(line: str) -> str:
    return max(",;\t", key=line.count)


def _markdown_tables(path: Path, text: str) -> Iterator[_Block]:
    """Yield the tables in Markdown."""
    lines = text.splitlines()
    for at, (head, rule) in enumerate(pairwise(lines), start=1):
        if not _is_rule(rule) or "|" not in head:
            continue
        body = list(takewhile(lambda line: line.strip().startswith("|"), lines[at + 1 :]))
        last = lines[at + len(body)].rstrip()
        ends = at + 1 + len(body) == len(lines) and not text.endswith(("\n", "\r"))
        cut = not last.endswith("|") and (ends or head.rstrip().endswith("|"))
        rows = [(f"{path}:{number}", _markdown_cells(line)) for number, line in enumerate(body, at + 2)]
        yield [(f"{path}:{at}", _markdown_cells(head)), *rows], cut, True


def _markdown_cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return tuple(_MARKS.sub(r"\1", cell).replace("\\|", "|").strip() for cell in _PIPE.split(inner))


def _is_rule(line: str) -> bool:
    return "|" in line and "-" in line and all(_RULE.fullmatch(cell) for cell in _markdown_cells(line))


def _spaced_tables(path: Path, text: str) -> Iterator[_Block]:
    """Yield the tables of a text: a line of names, with rows of as many cells under it, in which there are numbers."""
    lines = [
        (f"{path}:{at}", line.strip()) for at, line in enumerate(text.splitlines(), 1) if not _FRAME.fullmatch(line)
    ]
    for at, ((_, head), (_, first)) in enumerate(pairwise(lines)):
        for blanks in _BLANKS if not any(map(number, head.split())) and any(map(number, first.split())) else ():
            rows: list[_Cells] = []
            for place in range(at, len(lines)):
                where, line = lines[place]
                cells = tuple(blanks.split(line))
                if rows and len(cells) != len(rows[0][1]):
                    break
                rows.append((where, cells))
            if len(rows) > 1 and len(rows[0][1]) > 1:
                yield rows, at + len(rows) == len(lines) and not text.endswith(("\n", "\r")), True
                break


def surely_whole(text: str, others: Iterable[str]) -> bool:
    """Return whether the last cell of a row without a line end has lost nothing, as its column's other cells show.

    It has as many decimals as each of them, or is a word that stands there, or is what they all are.
    """
    rest = set(others)
    if not text or rest == {text} or (text in rest and number(text) is None):
        return True
    decimals = {len(match[1]) if (match := _DECIMALS.fullmatch(cell)) else 0 for cell in (text, *rest)}
    return bool(rest) and len(decimals) == 1 and 0 not in decimals


def _without_cut_cell(names: Sequence[str], body: Sequence[TextRow]) -> tuple[Sequence[TextRow], list[str]]:
    """Return (rows, a note) of a file whose last row has no line end, without what may be cut off of it."""
    *others, last = body
    if len(last.cells) < len(names) and others:
        return others, [f"{last.where}: the last row {NO_END}, and fewer cells than the header: it is left out"]
    if len(last.cells) != len(names) or surely_whole(last.cells[-1], (row.cells[-1] for row in others)):
        return body, []
    note = (
        f"{last.where}: the last row {NO_END}: its last cell {last.cells[-1][:_SHOWN]!r} may be cut off and is left out; "
        "add a line end where it is whole"
    )
    return [*others, replace(last, cells=(*last.cells[:-1], ""))], [note]


def _table_of_rows(path: Path, rows: Sequence[_Cells], cut: bool, thousands: bool) -> TextTable:
    """Return a table; a cut last row, and what follows a second header, are noted. Raises DataError for a row of another
    length."""
    (at, names), *others = rows
    body: Sequence[TextRow] = [TextRow(where, cells, names) for where, cells in others]
    body, notes = _without_cut_cell(names, body) if cut and body else (body, [])
    again = [row for row in body if row.cells == names]
    notes += [f"{row.where}: a second header: several tables in one file" for row in again[:1]]
    body = [row for row in body if row.cells != names]
    for row in body:
        if len(row.cells) != len(names):
            raise DataError(
                f"{row.where}: {len(row.cells)} cells, and the header has {len(names)}",
                why="the file was cut or mixed",
                fix="copy the file again",
            )
    twice = next((name for i, name in enumerate(names) if name and name in names[:i]), None)
    if twice is not None:
        raise DataError(
            f"{at}: column {twice!r} appears twice in the header",
            why=f"it is: {', '.join(names)}",
            fix="rename one of the columns",
        )
    body, commas = _with_points(names, body, thousands=thousands)
    return TextTable(path, names, tuple(body), notes=(*notes, *commas))


def _with_points(
    names: Sequence[str], body: Sequence[TextRow], *, thousands: bool
) -> tuple[Sequence[TextRow], list[str]]:
    """Return (rows with decimal commas as points, a note of it), where a cell like ``512,5`` or ``0,512`` proves them.

    thousands: whether ``125,000`` alone counts as 125000. Raises DataError where it may be 125 as well.
    """
    columns = [
        index
        for index, cells in enumerate(zip(*(row.cells for row in body), strict=True))
        if any(map(_COMMA.fullmatch, cells))
        and all(_COMMA.fullmatch(cell) or cell.lower() in MISSING or number(cell) is not None for cell in cells)
    ]
    with_comma = [(row, index) for row in body for index in columns if _COMMA.fullmatch(row.cells[index])]
    if all(_THOUSANDS.fullmatch(row.cells[index]) for row, index in with_comma):
        if thousands or not with_comma:
            return body, []
        row, index = with_comma[0]
        raise DataError(
            f"{row.where}: {names[index]} is {row.cells[index]!r}",
            why="the comma may separate thousands or decimals",
            fix="write the numbers with a decimal point and without commas",
        )
    changed = [
        replace(row, cells=tuple(c.replace(",", ".") if i in columns else c for i, c in enumerate(row.cells)))
        for row in body
    ]
    return changed, [f"decimal commas are read in: {', '.join(names[index] for index in columns)}"]


def _table_of_json_lines(path: Path, text: str) -> TextTable:
    """Return the table of a record each line; a last line that is cut off is left out and noted. Raises DataError for
    others."""
    objects: list[tuple[str, Any]] = []
    lines = [(f"{path}:{number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    for where, line in lines:
        try:
            objects.append((where, json.loads(line)))
        except (ValueError, RecursionError) as error:
            if objects and where == lines[-1][0] and not text.endswith(("\n", "\r")):
                note = f"{where}: the last line {NO_END} and is cut off: it is left out"
                return replace(_table_of_objects(path, objects), notes=(note,))
            raise DataError(f"{where}: not readable as JSON", why=str(error), fix="copy the file again") from error
    return _table_of_objects(path, objects)


def _table_of_records(path: Path, document: Any) -> TextTable:
    """Read a list of objects; an object with one list of objects, which share the rest; or an object that is a record."""
    if isinstance(document, list):
        return _table_of_objects(path, [(f"{path}: [{i}]", entry) for i, entry in enumerate(document)])
    if not isinstance(document, dict):
        raise DataError(f"{path}: no table", why="it holds neither an object nor a list of objects")
    lists = {".".join(way): (way, members) for way, members in _object_lists(document, ())}
    if not lists:
        return replace(_table_of_objects(path, [(str(path), document)]), single=True)
    if len(lists) > 1:
        raise DataError(
            f"{path}: {len(lists)} lists of records: {', '.join(lists)}",
            why="it is unclear which of them holds the runs",
            fix="write that list alone as a JSON file, or as CSV",
        )
    ((place, (way, members)),) = lists.items()
    if plain(way[-1]) in REPEATS:  # each is a sample of the one run that the rest describes
        members = [{"repeat": at, **member} for at, member in enumerate(members)]
    objects = [(f"{path}: {place}[{i}]", member) for i, member in enumerate(members)]
    return _table_of_objects(path, objects, dict(_plain_leaves(document, (), on_way=way)))


def _table_of_objects(
    path: Path, objects: Sequence[tuple[str, Any]], shared: Mapping[tuple[str, ...], tuple[int, str]] | None = None
) -> TextTable:
    """Return the table of objects, a row each. shared: what all of them have. Raises DataError for what is no object."""
    rows: list[tuple[str, dict[str, str]]] = []
    nested: set[str] = set()
    for where, entry in objects:
        if not isinstance(entry, dict):
            raise DataError(f"{where}: no record", why="expected an object with one value per name")
        leaves = {**(shared or {}), **dict(_plain_leaves(entry, ()))}
        nested |= {name for way in leaves if len(way) > 1 for name in (way[-1], ".".join(way))}
        nested -= {way[0] for way in leaves if len(way) == 1}
        rows.append((where, _values_by_name(leaves)))
    names = tuple(dict.fromkeys(name for _, values in rows for name in values))
    lines = tuple(TextRow(where, tuple(values.get(name, "") for name in names), names) for where, values in rows)
    return TextTable(path, names, lines, nested=frozenset(nested))


def _values_by_name(leaves: Mapping[tuple[str, ...], tuple[int, str]]) -> dict[str, str]:
    """Name values by the last part of their path where that is clear (the nearest counts), others by the whole path."""
    by_last: dict[str, list[tuple[int, str, tuple[str, ...]]]] = {}
    for path, (distance, value) in leaves.items():
        by_last.setdefault(path[-1], []).append((distance, value, path))
    values: dict[str, str] = {}
    for last, places in by_last.items():
        places.sort(key=lambda place: place[0])
        clear = len({value for distance, value, _ in places if distance == places[0][0]}) == 1
        for index, (_, value, path) in enumerate(places):
            values[last if clear and index == 0 else ".".join(path)] = value
    return values


def _plain_leaves(
    value: Mapping[str, Any], path: tuple[str, ...], *, on_way: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], tuple[int, str]]]:
    """Yield (path, (distance, text)) of every plain value: nearest is what leads to the records, then the least deep."""
    for key, entry in value.items():
        if isinstance(entry, dict):
            yield from _plain_leaves(entry, (*path, key), on_way=on_way)
        elif not isinstance(entry, list):
            aside = path != on_way[: len(path)]
            distance = len(path) + 100 if aside and on_way else 50 - len(path) if on_way else len(path)
            yield (*path, key), (distance, _cell_text(entry))


def _object_lists(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _object_lists(entry, (*path, str(key)))
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        yield path, value


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)


@dataclass(frozen=True, slots=True)
class TableLine:
    """One row with the meaning of its columns. percent: roles of accuracies that are in per cent."""

    table: TextTable
    row: TextRow
    columns: Columns
    percent: frozenset[str] = frozenset()

    def cell(self, role: str) -> str:
        """Return the text of a column; empty: unknown, or no such column."""
        place = self.columns.by_role.get(role)
        text = "" if place is None else self.row.cells[place[0]]
        return "" if text.lower() in MISSING else text

    def name(self, role: str) -> str:
        return self.columns.names[self.columns.by_role[role][0]]

    def text(self, role: str) -> str | None:
        """Return the text of a column, or None where it is unknown."""
        return self.cell(role) or None

    def amount(self, role: str) -> float | None:
        """Return a number of 0 or more in base units. Raises DataError for anything else."""
        value = self.value(role)
        if value is not None and value < 0:
            raise self.wrong(role, "a number, 0 or more")
        return value

    def value(self, role: str) -> float | None:
        """Return a number in base units. Raises DataError for what is none."""
        text = self.cell(role)
        if not text:
            return None
        parsed, scale = number(text), self.columns.by_role[role][1].scale
        if parsed is not None and parsed[1]:  # a unit in the cell counts more than the header's
            scale = UNITS.get(role, {}).get(parsed[1])
        if parsed is None or scale is None:
            raise self.wrong(role, "a number")
        return parsed[0] * scale

    def count(self, role: str) -> int | None:
        """Return a whole number of 1 or more. Raises DataError for anything else."""
        text = self.cell(role)
        parsed = number(text) if text else None
        if not text:
            return None
        if parsed is None or parsed[1] or parsed[0] != int(parsed[0]) or not 1 <= parsed[0] < 2**53:
            raise self.wrong(role, "a whole number of 1 or more")
        return int(parsed[0])

    def wrong(self, role: str, expected: str) -> DataError:
        return self.row.wrong(self.columns.by_role[role][0], expected)


def of(line: TableLine, name: str) -> str:
    return line.row.cells[line.columns.names.index(name)] if name in line.columns.names else ""


def is_word(text: str) -> bool:
    parsed = number(text)
    return text.lower() not in (*MISSING, *NOT_FINITE) and (parsed is None or bool(parsed[1].strip("%x/s")))


def plain_value(text: str) -> Any:
    value = number(text)
    if value is None or value[1]:
        return text
    return int(value[0]) if value[0] == int(value[0]) and "." not in text else value[0]


def whole(value: float | None) -> int | None:
    return None if not value else round(value)


def fraction(line: TableLine, role: str) -> float | None:
    """Return an accuracy, read as per cent where any of its column is above 1. Raises DataError beyond 100."""
    value = line.amount(role)
    if value is not None and value > 100:
        raise line.wrong(role, "a fraction, or per cent")
    return value / 100 if value is not None and role in line.percent else value


def lines_of(table: TextTable, columns: Columns) -> tuple[TableLine, ...]:
    """Return every row of a table with the meaning of its columns."""
    percent = set()
    for role in ("train_accuracy", "validation_accuracy"):
        index, meaning = columns.by_role.get(role, (0, None))
        cells = [number(row.cells[index]) for row in table.rows] if meaning is not None and not meaning.unit else []
        if any(cell is not None and not cell[1] and cell[0] > 1 for cell in cells):
            percent.add(role)
    return tuple(TableLine(table, row, columns, frozenset(percent)) for row in table.rows)


def loss(line: TableLine, role: str) -> float | None:
    """Return a loss; None also for NaN, where the training diverged."""
    return None if line.cell(role).lower() in NOT_FINITE else line.value(role)
