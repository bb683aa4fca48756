"""Runs entries, each in a process forked after the imports, and compares what they compute with what is kept.

A child has its own folder, environment and standard streams; it sees inputs under relative names, so that no path of this
machine is in what it prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from tests.corpus.entries import Entry
from tests.corpus.figures import ABSENT, Leaf, Leaves, condensed, differences, leaves, table, worded, words_of_findings
from tests.corpus.inputs import GROUPS, SHARED, rule_outcomes

EXPECTED = Path(__file__).parent / "expected"
RENEW = "STEPSCOPE_RENEW_CORPUS"
SHOWN = 20
PATIENCE_S = 300
_NOT_IMPORTED = ("rank", "hook", "launch")
"""What the commands that only read never import: torch, and what runs in a job."""
_BUG = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an entry. missing: why it could not run; wrong: the differences, or why there are no numbers."""

    entry: Entry
    seconds: float = 0.0
    missing: str = ""
    wrong: str = ""
    count: int = 0


class Workplace:
    """Inputs, made once each; entries are checked in it. A context manager."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="corpus-"))
        self._groups = self._folder / "inputs"
        self._groups.mkdir()
        if SHARED.is_dir():
            (self._groups / "shared").symlink_to(SHARED)

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, entries: Iterable[Entry]) -> None:
        """Make the inputs of ``entries`` that are not there yet; each group in a process of its own."""
        named = {each.partition("/")[0] for entry in entries for each in entry.inputs}
        for name in sorted(named & GROUPS.keys()):
            if not (self._groups / name).exists():
                code, printed = _forked(lambda name=name: self._make(name), self._folder / f"{name}.log")
                if code:
                    shutil.rmtree(self._groups / name, ignore_errors=True)
                    raise RuntimeError(f"the inputs {name} could not be made:\n{printed}")

    def _make(self, name: str) -> int:
        GROUPS[name](self._groups / name)
        return 0

    def missing(self, entry: Entry) -> str:
        """Which real data of the entry are not here; empty where it can run. What is generated is never missing."""
        real = (each for each in entry.inputs if each.startswith("shared/"))
        absent = [each for each in real if not (self._groups / each).exists()]
        return f"{', '.join(absent)}: not beside this checkout" if absent else ""

    def figures(self, entry: Entry) -> Leaves:
        """The leaves that the entry's command prints and writes. Raises RuntimeError where it crashes."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        for each in self._groups.iterdir():
            (place / each.name).symlink_to(each)
        printed = place / "printed"
        try:
            code, errors = _forked(lambda: _command(entry, place), printed)
            return _collected(entry, code, errors, printed, place / "out")
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def check(self, entry: Entry) -> Outcome:
        """Compare with what is kept, or keep it where STEPSCOPE_RENEW_CORPUS is set."""
        if missing := self.missing(entry):
            return Outcome(entry=entry, missing=missing)
        begun = monotonic()
        try:
            got = self.figures(entry)
        except (RuntimeError, ValueError) as error:  # it crashed, or what it printed is no JSON
            return Outcome(entry=entry, wrong=str(error), seconds=monotonic() - begun)
        if os.environ.get(RENEW):
            keep(entry, got)
        wrong = told(differences(kept(entry), got))
        return Outcome(entry=entry, wrong=wrong, seconds=monotonic() - begun, count=len(got))


def load_everything() -> None:
    """Import what the commands import, once for all entries. What cannot be imported fails the entries that use it."""
    root = Path(import_module("stepscope").__path__[0])
    for path in sorted(root.rglob("[!_]*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] not in _NOT_IMPORTED:
            with contextlib.suppress(Exception):
                import_module(".".join(("stepscope", *parts)))


def _forked(work: Any, printed: Path) -> tuple[int, str]:
    """Run ``work`` in a child whose standard output is the file ``printed``: its exit code, and what it said of errors."""
    said = printed.with_suffix(".err")
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that other threads live on in the parent alone
        child = os.fork()
    if not child:
        _be_child(work, printed, said)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace")


def _be_child(work: Any, printed: Path, said: Path) -> NoReturn:
    code = _BUG
    try:
        signal.alarm(PATIENCE_S)
        for number, path in ((1, printed), (2, said)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
        warnings.resetwarnings()
        for name in [name for name in os.environ if name.startswith(("STEPSCOPE_", "SLURM_", "NCCL_"))]:
            del os.environ[name]
        code = work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the parent reads what it was
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _command(entry: Entry, place: Path) -> int:
    os.chdir(place)
    os.environ |= {"HOME": str(place), "XDG_CACHE_HOME": str(place / ".cache"), "COLUMNS": "100", "TZ": "UTC"}
    if entry.words[0] == "rules":
        (place / "cases").mkdir()
        print(json.dumps(rule_outcomes(entry.words[1], place / "cases")))  # noqa: T201
        return 0
    from stepscope.cli.main import main

    words = [*entry.words, "--json"]
    sys.argv = ["stepscope", *words]
    main(words)
    return 0


def _collected(entry: Entry, code: int, errors: str, printed: Path, out: Path) -> Leaves:
    if code < 0 or "bug in stepscope" in errors or "Traceback" in errors:
        raise RuntimeError(f"it ended with {code}:\n{errors}")
    found: Leaves = {"exit": code}
    text = printed.read_text()
    if text.strip():
        document = json.loads(text)
        told = {key: document.pop(key) for key in entry.worded if key in document}
        found |= condensed(leaves(document)) | (worded(told) if told else {})
        found |= words_of_findings(document) if entry.words[0] == "diagnose" else {}
    for path in sorted(out.rglob("[!.]*")) if out.is_dir() else ():
        name = f"{path.relative_to(out)}:"
        if path.suffix == ".csv":
            found |= condensed(leaves(table(path), name))
        elif path.suffix == ".json" and "vl.json" not in path.name:
            found |= condensed(leaves(json.loads(path.read_text()), name))
    return found


def _kept_in(entry: Entry) -> Path:
    return EXPECTED / f"{entry.name}.txt"


def kept(entry: Entry) -> Leaves:
    """The leaves that are kept of an entry; none where there is no file."""
    path = _kept_in(entry)
    if not path.exists():
        return {}
    lines = path.read_text().splitlines()
    return {name: json.loads(value) for name, _, value in (line.partition("\t") for line in lines)}


def keep(entry: Entry, found: Leaves) -> None:
    """Write them, where they differ: one line a leaf."""
    if not differences(kept(entry), found) and _kept_in(entry).exists():
        return
    EXPECTED.mkdir(exist_ok=True)
    text = "".join(f"{path}\t{json.dumps(value)}\n" for path, value in found.items())
    _kept_in(entry).write_text(text)


def told(found: list[tuple[str, Leaf, Leaf]]) -> str:
    """The first differences, one a line; empty where there are none."""
    lines = [f"{path}: expected {_word(expected)}, got {_word(got)}" for path, expected, got in found[:SHOWN]]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([*lines, *more])


def _word(value: Leaf) -> str:
    return ABSENT if value == ABSENT else json.dumps(value)


def chosen(entries: Iterable[Entry], patterns: Iterable[str], speeds: Iterable[str]) -> Iterator[Entry]:
    """Entries of these speeds in whose names one of the patterns stands; all without patterns."""
    wanted = tuple(patterns)
    for entry in entries:
        if entry.speed in speeds and (not wanted or any(each in entry.name for each in wanted)):
            yield entry
