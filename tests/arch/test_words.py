"""Messages, help and documents are plain English: words and turns that readers stumbled over stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.records.nouns import EXPOSED_COMM

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stepscope"

_COUNTED = (
    r"files?|rows?|lines?|samples?|ms|times?|steps?|calls?|dumps?|traces?|tasks?|links?|cores?|GPUs?|ranks?|bytes"
    r"|processe?s?|epochs?|tokens?"
)
_UNIT = r"rank|step|node|epoch|run|cell|call|GPU|host|device|size|second|job|pair|micro-step"

# What is not written -> what is written in its place.
BANNED = {
    r"without a word": "without an error message",
    r"nothing hides|hides nothing": "exposed",
    r"\bmend": "fix",
    r"second last": "second-slowest",
    r"could not look": "skipped: no data",
    r"\btold\b|\btells?\b|\bheard\b": "states, shows, reports",
    r"\bpromis|\bdeeds?\b": "say what happens",
    r"\bbuild on (it|them)\b|\bto build on$": "for conclusions",
    r"\b(go|goes|went|going) on\b": "continues",
    r"(?<!there )\b(is|are|was|were) no (?!longer|faster|slower|larger|smaller|more|less|better)": "is not a ...",
    r"\bnothing to say\b|\bsays? nothing\b": "has no ...",
    r"would have it": "as it is",
    r"\bstands?\b(?! for| in for| out)|\bstood\b": "is, appears",
    r"\blies\b|\blying\b|\blie (in|there|under|above|below)\b": "is, is in",
    r"\bonce more\b|\banew\b": "again",
    r"\bnobody\b": "no rank, no process",
    r"of NCCL's\b|of (ours|theirs)\b": "NCCL's own, the user's",
    r"\bat the (least|most)\b": "at least, at most",
    rf"\b({_COUNTED}) an? ({_UNIT})\b": "per",
    r"\bnot known\b": "unknown",
    r"\bbeware\b": "note",
    r"\bfrom which on\b": "from ... up",
    r"\bpassed over\b": "skipped",
    r"\bhardly\b": "barely, not",
    r"this is no\b": "not a",
}
PATTERN = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in BANNED.items()}


def shown(path: Path) -> Iterator[tuple[int, str]]:
    """Strings of a module that may reach a reader: all but comments written as strings; help and rules' pages count."""
    tree = ast.parse(path.read_text())
    pages = path.parent.name in ("commands", "rules")
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and not pages:
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside blocks of code: what a block shows is what a command prints."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


def complaints(place: str, texts: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{place}:{line}: '{match[0]}' in {text[max(0, match.start() - 50) : match.end() + 40]!r}; instead: {instead}"
        for line, text in texts
        for pattern, instead in PATTERN.items()
        if (match := pattern.search(text))
    ]


@pytest.mark.parametrize("folder", sorted(each.name for each in SOURCE.iterdir() if any(each.glob("**/*.py"))))
def test_messages_and_help_are_plain(folder: str) -> None:
    found: list[str] = []
    for path in sorted((SOURCE / folder).rglob("*.py")):
        found += complaints(str(path.relative_to(ROOT)), shown(path))
    assert not found, "\n" + "\n".join(found)


def test_documents_are_plain() -> None:
    found: list[str] = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        found += complaints(str(path.relative_to(ROOT)), prose(path.read_text()))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text", ["rank 0 ended without a word", "this is no rank", "one file a rank", "the same again goes on"]
)
def test_a_banned_phrase_is_found(text: str) -> None:
    assert complaints("here", iter([(1, text)]))


@pytest.mark.parametrize("text", ["there is no trace", "it stands for all ranks", "10 ms per rank", "is no longer"])
def test_plain_text_passes(text: str) -> None:
    assert not complaints("here", iter([(1, text)]))


def test_exposed_communication_has_its_name_in_one_place() -> None:
    """Titles, legends and sentences take it from records/nouns.py: another name is one edit."""
    said = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if not {"rank", "hook", "commands"} & set(path.parts)  # the job's processes, and help
        for node in ast.walk(_without_docstrings(ast.parse(path.read_text())))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and EXPOSED_COMM in node.value
    ]
    assert said == ["records/nouns.py"]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
