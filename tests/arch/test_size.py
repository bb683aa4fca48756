"""How large each room may be: one in, one out.

Size is counted in tokens of Python, without comments and docstrings: lines reward packing. A larger number in ``MOST`` needs
a note in docs/decisions that names the user and the input that wanted it; a smaller one is welcome at any time.
``python -m tests.arch.test_size`` prints the table as the checkout is now.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from math import ceil
from pathlib import Path

import stepscope

SOURCE = Path(stepscope.__file__).parent

MOST = {
    "": (500, 2),
    "api": (17000, 13),
    "cli": (68000, 62),
    "collectives": (2000, 2),
    "core": (7000, 12),
    "datasets": (7500, 9),
    "diagnose": (111000, 103),
    "examples": (8000, 4),
    "hook": (68000, 56),
    "launch": (43000, 43),
    "machine": (21500, 24),
    "matrix": (39000, 23),
    "monitor": (2000, 3),
    "predict": (71500, 48),
    "presets": (0, 1),
    "rank": (48000, 50),
    "records": (25000, 34),
    "report": (119500, 69),
    "results": (107000, 61),
    "stats": (12000, 8),
    "store": (100500, 54),
    "strategies": (9500, 12),
    "traces": (140000, 70),
    "workloads": (4500, 6),
}
"""Room -> tokens of its Python files, and their number."""

NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def tokens_of(text: str) -> int:
    """Tokens of a module without comments and docstrings (texts that stand alone)."""
    alone = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    return sum(
        token.type not in NO_CODE and not (token.type == tokenize.STRING and token.start in alone)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def sizes() -> dict[str, tuple[int, int]]:
    """Room -> (tokens, files); the room of the files beside the rooms is ``""``."""
    tokens: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        room = parts[0] if len(parts) > 1 else ""
        tokens[room] += tokens_of(path.read_text())
        files[room] += 1
    return {room: (tokens[room], files[room]) for room in sorted(files)}


def test_no_room_grows() -> None:
    grown = []
    for room, (tokens, files) in sizes().items():
        most_tokens, most_files = MOST.get(room, (0, 0))
        if tokens > most_tokens or files > most_files:
            grown.append(
                f"{room or 'stepscope'}: {tokens} tokens in {files} files, at most {most_tokens} in {most_files}"
            )
    assert not grown, (
        "; ".join(grown)
        + ". One in, one out: find what the new tokens replace. A higher number in tests/arch/test_size.py "
        "needs a note in docs/decisions that names the user and the input that wanted it"
    )


def test_what_says_nothing_to_the_interpreter_is_no_token() -> None:
    assert tokens_of('"""Text."""\n\nx = "a"  # why\n"""Of x."""\n') == 3


if __name__ == "__main__":
    for name, (count, files) in sizes().items():
        sys.stdout.write(f'    "{name}": ({ceil(count / 500) * 500}, {files}),\n')
