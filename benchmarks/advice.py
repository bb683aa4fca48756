"""Advice applied: every change that a CPU job can be advised, on its small job (tests/advice), before and after in turns."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.advice import NOT_HERE, TRIALS, Trial, run
from tests.torch_forks import ForkedPopen, shared_server

from benchmarks._report import heading

ROUNDS = int(os.environ.get("STEPSCOPE_ADVICE_ROUNDS", "4"))
LEAST_NOISE = 0.05
"""Of the time before: what two runs of one job differ by at least."""


def main() -> None:
    """Print ms of a step before and after, the spread of equal runs, and what is slower beyond it."""
    heading(f"advice applied: medians of {ROUNDS} runs each, in turns")
    wanted = os.environ.get("STEPSCOPE_ADVICE", "").split(",")
    slower, failed = [], []
    print(f"{'advice':<34} {'before ms':>10} {'after ms':>10} {'ratio':>7} {'A/A':>7}")
    for trial in TRIALS:
        if wanted != [""] and trial.key not in wanted:
            continue
        try:
            before, after = measured(trial)
        except ValueError as error:
            failed.append(trial.id)
            print(f"{trial.id:<34} fails: {str(error).splitlines()[-1][:200]}")
            continue
        first, then = statistics.median(before), statistics.median(after)
        noise = max(spread(before), spread(after), LEAST_NOISE)
        worse = trial.timed and then > first * (1 + noise)
        slower += [trial.id] * worse
        note = "slower" if worse else "" if trial.timed else "not timed: it computes something else"
        print(f"{trial.id:<34} {first:>10.2f} {then:>10.2f} {first / then:>6.2f}x {noise:>7.1%} {note}", flush=True)
    print(f"crashes: {len(failed)} {failed or ''}; slower beyond noise: {len(slower)} {slower or ''}")
    print(f"given to no CPU job of one host, so not tried: {', '.join(sorted(NOT_HERE))}")


def measured(trial: Trial) -> tuple[list[float], list[float]]:
    """ms of a step without the advice and with it, of each run."""
    found: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for applied in (False, True) if number % 2 == 0 else (True, False):
                place = Path(folder) / f"{number}-{applied}"
                found[applied].append(
                    run(trial, place, partial(ForkedPopen, server=shared_server()), applied=applied)["ms"]
                )
    return found


def spread(times: Sequence[float]) -> float:
    """Of equal runs: half the range of all but the slowest, which another process may have met."""
    kept = sorted(times)[: max(2, len(times) - 1)]
    return (kept[-1] - kept[0]) / 2 / statistics.median(times)


if __name__ == "__main__":
    main()
