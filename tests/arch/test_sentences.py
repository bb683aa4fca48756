"""Nobody decides anything by reading a sentence of ours: what code asks has a field, a code or a class of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "stepscope"
SENTENCES = frozenset({"title", "subject", "confidence", "certainty", "what", "why", "reason", "looked_at", "caption"})
"""Attributes that hold sentences for people."""

TESTS = frozenset({"startswith", "endswith", "find", "index", "partition", "rpartition", "split", "removeprefix"})
"""Methods of a text that read it."""

KNOWN = {
    "diagnose/rules/clock_skew.py": 2,
    "report/views/findings.py": 1,
}
"""Readers that are left, a file each: the number only falls."""


def _is_sentence(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def _readers(tree: ast.AST) -> Iterator[int]:
    """Lines on which a sentence is searched, cut or compared with a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in TESTS and _is_sentence(node.func.value):
                yield node.lineno
            module = node.func.value
            if isinstance(module, ast.Name) and module.id == "re" and any(map(_is_sentence, node.args)):
                yield node.lineno
        looks_in = isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
        if looks_in and any(map(_is_sentence, node.comparators)) and isinstance(node.left, (ast.Constant, ast.Name)):
            yield node.lineno


def test_no_decision_reads_a_sentence() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if lines := list(_readers(ast.parse(path.read_text()))):
            found[str(path.relative_to(SOURCE))] = lines
    assert {file: len(lines) for file, lines in found.items()} == KNOWN, found
