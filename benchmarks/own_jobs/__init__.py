"""First verdicts of `profile` on planted training jobs, against what each job says of itself without stepscope."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] = ()) -> None:
    """Run the suite: every job once on the machine as it is. `python -m benchmarks.own_jobs --help` shows the options."""
    from benchmarks.own_jobs.suite import run

    run(arguments)
