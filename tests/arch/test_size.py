"""How large each room may be: one in, one out.

A larger number in ``MOST`` needs a note in docs/decisions that names the user and the input that wanted it; a smaller one
is welcome at any time. ``python -m tests.arch.test_size`` prints the table as the checkout is now.
"""

from __future__ import annotations

import sys
from collections import Counter
from math import ceil
from pathlib import Path

import stepscope

SOURCE = Path(stepscope.__file__).parent

MOST = {
    "": (100, 2),
    "cli": (10300, 60),
    "collectives": (400, 2),
    "core": (1200, 11),
    "datasets": (1200, 9),
    "diagnose": (16400, 89),
    "examples": (1100, 4),
    "hook": (5000, 27),
    "launch": (6800, 42),
    "machine": (3700, 25),
    "matrix": (5700, 24),
    "monitor": (400, 3),
    "predict": (8500, 38),
    "presets": (100, 1),
    "rank": (7200, 50),
    "records": (5900, 31),
    "report": (14600, 64),
    "results": (11900, 50),
    "stats": (1400, 7),
    "store": (11000, 42),
    "strategies": (1300, 12),
    "traces": (14300, 51),
    "workloads": (700, 6),
}
"""Room -> lines of its Python files, and their number."""


def sizes() -> dict[str, tuple[int, int]]:
    """Room -> (lines, files); the room of the files beside the rooms is ``""``."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        room = parts[0] if len(parts) > 1 else ""
        lines[room] += path.read_text().count("\n")
        files[room] += 1
    return {room: (lines[room], files[room]) for room in sorted(files)}


def test_no_room_grows() -> None:
    grown = []
    for room, (lines, files) in sizes().items():
        most_lines, most_files = MOST.get(room, (0, 0))
        if lines > most_lines or files > most_files:
            grown.append(f"{room or 'stepscope'}: {lines} lines in {files} files, at most {most_lines} in {most_files}")
    assert not grown, (
        "; ".join(grown)
        + ". One in, one out: find what the new lines replace. A higher number in tests/arch/test_size.py "
        "needs a note in docs/decisions that names the user and the input that wanted it"
    )


if __name__ == "__main__":
    for name, (lines, files) in sizes().items():
        sys.stdout.write(f'    "{name}": ({ceil(lines / 100) * 100}, {files}),\n')
