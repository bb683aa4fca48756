"""``python -m stepscope.rank SPEC.json`` runs a worker group's rank; ``--probe`` prints what only torch knows;
``--measure`` measures a user's model."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from stepscope.core.forks import leave


def main() -> int:
    """Run one rank, or a probe; return the exit code."""
    arguments = sys.argv[1:]
    if arguments == ["--probe"]:
        from stepscope.rank.probe import main as probe

        return probe()
    measuring = len(arguments) == 3 and arguments[0] == "--measure"
    if len(arguments) != 1 and not measuring:
        sys.stderr.write("usage: python -m stepscope.rank SPEC.json | --probe | --measure QUESTIONS ANSWERS\n")
        return 2
    from stepscope.core.processes import die_with_parent

    # Before torch is imported, which takes seconds: a launcher that is killed meanwhile takes its ranks with it, too.
    die_with_parent(signal.SIGKILL)
    if measuring:
        from stepscope.rank.own_model import main as measure

        return measure(Path(arguments[1]), Path(arguments[2]))
    from stepscope.rank.worker import main as work

    return work(Path(arguments[0]))


if __name__ == "__main__":
    leave(main())
