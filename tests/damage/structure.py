"""Seeded damage to the structure of logs: ``mutated(text, rng, other)`` changes lines and fields as copies, full disks and
processes that write over each other do, and says how.

What is left looks like a log on every line that was not hit; whether a number in it is one that the log holds is for
``tests/damage/held.py`` to say.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Lines = list[str]
Mutation = Callable[[Lines, random.Random, Lines], Lines]
UNITS = (
    ("(us)", "(ms)"),
    ("(us)", "(s)"),
    ("(GB/s)", "(MB/s)"),
    ("(ms)", "(s)"),
    ("(s)", "(ms)"),
    ("GiB", "MiB"),
    ("GB", "MB"),
)


def _some(lines: Lines, rng: random.Random) -> int:
    """The place of a line, mostly of one with figures."""
    figures = [at for at, line in enumerate(lines) if sum(c.isdigit() for c in line) > 8]
    return rng.choice(figures) if figures and rng.random() < 0.8 else rng.randrange(len(lines))


def _inside(line: str, rng: random.Random) -> int:
    """A place in a line, mostly inside a number."""
    places = [place for found in re.finditer(r"\d[\d.,]+", line) for place in range(found.start() + 1, found.end())]
    return rng.choice(places) if places and rng.random() < 0.7 else rng.randrange(len(line) + 1)


def cut_inside_a_field(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    at = _some(lines, rng)
    return [*lines[:at], lines[at][: _inside(lines[at], rng)], *lines[at + 1 :]]


def begin_inside_a_field(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    at = _some(lines, rng)
    return [*lines[:at], lines[at][_inside(lines[at], rng) :], *lines[at + 1 :]]


def lose_a_piece(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    """From inside a line to inside a later one."""
    at = _some(lines, rng)
    to = min(len(lines) - 1, at + rng.randrange(4))
    a, b = _inside(lines[at], rng), _inside(lines[to], rng)
    return [*lines[:at], lines[at][: min(a, b) if at == to else a] + lines[to][b:], *lines[to + 1 :]]


def swap_columns(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    """In every line of as many words; the title of a table may go with them."""
    words = len(lines[_some(lines, rng)].split())
    a, b = rng.randrange(words or 1), rng.randrange(words or 1)
    titled = rng.random() < 0.5

    def swapped(line: str) -> str:
        mark = "#" if titled and line.startswith("#") else ""
        cells = line.removeprefix(mark).split()
        if len(cells) != words or max(a, b) >= len(cells):
            return line
        cells[a], cells[b] = cells[b], cells[a]
        return f"{mark}  {'  '.join(cells)}"

    return [swapped(line) for line in lines]


def drop_header(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    """Some of the lines before the first one with figures."""
    keep = rng.choice((0.0, 0.5, 0.9))
    head = next((at for at, line in enumerate(lines) if sum(c.isdigit() for c in line) > 25), len(lines) // 2)
    return [line for at, line in enumerate(lines) if at >= head or rng.random() < keep]


def interleave_lines(lines: Lines, rng: random.Random, other: Lines) -> Lines:
    found: Lines = []
    mine, theirs = list(lines), list(other)
    while mine or theirs:
        source = mine if not theirs or (mine and rng.random() < len(mine) / (len(mine) + len(theirs))) else theirs
        found.append(source.pop(0))
    return found


def write_over(lines: Lines, rng: random.Random, other: Lines) -> Lines:
    """Another process's line begins inside one; the rest of that follows on a line of its own, behind it, or is lost."""
    found: Lines = []
    for line in lines:
        if rng.random() > 0.15 or not other:
            found.append(line)
            continue
        at, theirs, how = _inside(line, rng), rng.choice(other), rng.random()
        found += (
            [line[:at] + theirs, line[at:]] if how < 0.5 else [line[:at] + theirs + (line[at:] if how < 0.75 else "")]
        )
    return found


def duplicate_block(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    start = rng.randrange(len(lines))
    block = lines[start : start + rng.randint(1, 12)]
    to = rng.randrange(len(lines))
    return [*lines[:to], *block, *lines[to:]]


def move_block(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    start = rng.randrange(len(lines))
    end = start + rng.randint(1, 8)
    rest = [*lines[:start], *lines[end:]]
    to = rng.randrange(len(rest) + 1)
    return [*rest[:to], *lines[start:end], *rest[to:]]


def change_units(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    old, new = rng.choice([each for each in UNITS if any(each[0] in line for line in lines)] or UNITS)
    share = rng.choice((0.3, 1.0))
    return [line.replace(old, new) if rng.random() < share else line for line in lines]


def merge_lines(lines: Lines, rng: random.Random, _: Lines) -> Lines:
    at = _some(lines, rng)
    between = rng.choice(("", "", " ", "\r"))
    return [*lines[:at], between.join(lines[at : at + rng.randint(2, 3)]), *lines[at + 3 :]]


MUTATIONS: tuple[Mutation, ...] = (
    cut_inside_a_field, begin_inside_a_field, lose_a_piece, swap_columns, drop_header, interleave_lines, write_over,
    write_over, duplicate_block, move_block, change_units, merge_lines,
)  # fmt: skip


def mutated(text: str, rng: random.Random, other: str) -> tuple[str, str]:
    """(the text with one to three mutations, their names). other: of a log whose lines may come between."""
    lines, names = text.split("\n")[:-1], []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        mutation = rng.choice(MUTATIONS)
        lines = mutation(lines, rng, other.split("\n")[:-1]) or [""]
        names.append(mutation.__name__)
    found = "\n".join([*lines, ""])
    if not names or rng.random() < 0.25:
        found = found[: rng.randrange(len(found) + 1)]
        names.append(f"cut at byte {len(found)}")
    return found, ", ".join(names)
