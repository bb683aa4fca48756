"""``python -m tests.corpus [--jobs 2] [--fast] [--times] [PATTERN...]``: every number that is kept, checked at once."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from tests.corpus.checking import Outcome, Workplace, chosen, load_everything
from tests.corpus.entries import ENTRIES, FAST, LONG


def run() -> int:
    """Check, print what differs; 1 where something does."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="part of an entry's name")
    parser.add_argument("--jobs", type=int, default=2, help="entries at the same time")
    parser.add_argument("--fast", action="store_true", help="only what make test runs")
    parser.add_argument("--times", action="store_true", help="print the seconds of every entry")
    options = parser.parse_args()
    speeds = (FAST,) if options.fast else (FAST, LONG)
    entries = list(chosen(ENTRIES, options.patterns, speeds))
    begun = monotonic()
    load_everything()
    with Workplace() as place:
        place.prepare(entries)
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(place.check, entries))
    for each in outcomes:
        _print(each, times=options.times)
    wrong = sum(bool(each.wrong) for each in outcomes)
    missing = sum(bool(each.missing) for each in outcomes)
    seconds, work = monotonic() - begun, sum(each.seconds for each in outcomes)
    figures = sum(each.count for each in outcomes)
    print(  # noqa: T201
        f"{len(outcomes) - wrong - missing} entries as kept ({figures} figures), {wrong} differ, {missing} without input; "
        f"{seconds:.1f} s, {work:.1f} s of work"
    )
    return int(bool(wrong) or not outcomes)


def _print(outcome: Outcome, *, times: bool) -> None:
    if outcome.wrong:
        print(f"DIFFERS {outcome.entry.name}: stepscope {' '.join(outcome.entry.words)}\n{outcome.wrong}\n")  # noqa: T201
    elif outcome.missing:
        print(f"skipped {outcome.entry.name}: {outcome.missing}")  # noqa: T201
    elif times:
        print(f"{outcome.seconds:6.2f} s  {outcome.count:6d}  {outcome.entry.speed}  {outcome.entry.name}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(run())
