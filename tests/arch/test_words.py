"""What the source says and how it names things: messages, help and documents are plain English, code asks no sentence, one
name is one thing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.records.nouns import EXPOSED_COMM, EXPOSED_COMM_SHORT

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stepscope"
FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}


@functools.cache
def tree_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module."""
    return tuple(ast.walk(ast.parse(path.read_text())))


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
    nodes = tree_of(path)
    pages = path.parent.name in ("commands", "rules")
    skipped = set() if pages else comments(nodes)
    skipped |= {id(value) for node in nodes if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def comments(nodes: tuple[ast.AST, ...]) -> set[int]:
    """Strings that are statements."""
    return {id(node.value) for node in nodes if isinstance(node, ast.Expr)}


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


def test_messages_and_help_are_plain() -> None:
    found = [each for name, path in FILES.items() for each in complaints(name, shown(path))]
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


def test_papers_that_users_do_not_have_are_not_cited() -> None:
    cited = re.compile(r"\bMETRICS[,:. ]|\bFORMATS, [A-Z]|\b[Dd]ocument 00\d")
    assert [name for name, path in FILES.items() if cited.search(path.read_text())] == []


def test_exposed_communication_has_its_name_in_one_place() -> None:
    """Titles, legends, sentences and help take it from records/nouns.py, in full or short: another name is one edit."""
    name = re.compile("|".join(map(re.escape, (EXPOSED_COMM, EXPOSED_COMM_SHORT))), re.IGNORECASE)
    said = [
        place
        for place, path in FILES.items()
        if not place.startswith(("rank/", "hook/"))  # the job's processes
        for node in tree_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name.search(node.value)
        if place.startswith("cli/commands/") or id(node) not in comments(tree_of(path))  # a command's is its help
    ]
    assert set(said) == {"records/nouns.py"}


SENTENCES = frozenset({"title", "subject", "confidence", "certainty", "what", "why", "reason", "looked_at", "caption"})
"""Attributes that hold sentences for people."""

TESTS = frozenset({"startswith", "endswith", "find", "index", "partition", "rpartition", "split", "removeprefix"})
"""Methods of a text that read it."""

KNOWN: dict[str, int] = {}
"""Readers that are left, a file each: the number only falls."""


def _is_sentence(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def _readers(path: Path) -> Iterator[int]:
    """Lines on which a sentence is searched, cut or compared with a text."""
    for node in tree_of(path):
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
    """What code asks has a field, a code or a class of its own."""
    found = {name: lines for name, path in FILES.items() if (lines := list(_readers(path)))}
    assert {file: len(lines) for file, lines in found.items()} == KNOWN, found


SHARED = ("Options", "NoOptions")
"""What each entry of a registry, and each command, calls its own options."""

APART = ("cli/commands", "hook")
"""A command's class has the command's name; the hook is a package of its own in the user's job."""


def test_no_two_public_classes_have_one_name() -> None:
    named = defaultdict(list)
    for where, path in FILES.items():
        if where.startswith(APART):
            continue
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            if name not in SHARED:
                named[name].append(where)
    assert len(named) > 500
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


_IMPORT = re.compile(
    r"^\s*from (stepscope(?:\.\w+)*)\._[a-z]\w* import|^\s*import (stepscope(?:\.\w+)*)\._[a-z]\w*", re.M
)


def test_private_modules_are_imported_in_their_own_folder_only() -> None:
    outside = []
    for name, path in FILES.items():
        folder = ".".join(("stepscope", *Path(name).parts[:-1]))
        owners = (match[1] or match[2] for match in _IMPORT.finditer(path.read_text()))
        outside += [f"{name} imports a private module of {owner}" for owner in owners if owner != folder]
    assert outside == []
