"""Names say what a thing is: words that fit everything are none."""

from __future__ import annotations

import tokenize
from collections import defaultdict
from pathlib import Path

import stepscope

SOURCE = Path(stepscope.__file__).parent

EMPTY = frozenset({"found", "each", "known", "said", "told", "mine", "held"})

EMPTY_FUNCTIONS = frozenset({"_told", "_said", "_words", "_look", "_named", "_found", "_known", "_finding"})

STORED = {
    "launch/hang_watch.py": {"said"},
    "launch/ends/cell.py": {"said"},
    "results/ends/judge.py": {"said"},
    "launch/trial_job.py": {"found"},
    "records/nccl.py": {"found"},
    "records/profile.py": {"said"},
    "records/tuning.py": {"found"},
    "results/profiled_job.py": {"said"},
    "traces/flight.py": {"found"},
    "traces/flight_calls.py": {"found"},
}
"""Where fields of stored records are read and written: their names are keys of files that users have."""


def test_no_name_is_empty() -> None:
    empty: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        with path.open("rb") as file:
            before = ""
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NAME:
                    module = token.line.lstrip().startswith("from stepscope.") and before == "."
                    if token.string in EMPTY - STORED.get(name, set()) and not module:
                        empty[name].add(f"{token.start[0]}: {token.string}")
                    if before == "def" and token.string in EMPTY_FUNCTIONS:
                        empty[name].add(f"{token.start[0]}: {token.string}")
                before = token.string
    assert not empty, {name: sorted(names)[:5] for name, names in sorted(empty.items())}
