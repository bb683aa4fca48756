"""A matrix on a real Slurm, ended by the time limit, a lost node or preemption: is every cell measured, and exactly once?

``python -m benchmarks.slurm_resume [--rounds N] [--fault NAME]``: N rounds, the faults in turn, each time at
another number of finished cells.

Needs root, slurm-wlm, munge and network namespaces; says so where they are missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from tests.slurm.cluster import obstacle, started, wait_until
from tests.slurm.faults import FAULTS, ended_in_the_middle, matrix

from benchmarks._report import heading


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm_resume", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--fault", choices=FAULTS, help="this one alone")
    options = parser.parse_args(list(arguments) or sys.argv[1:])
    heading("a matrix on two Slurm nodes, its job ended in the middle")
    if (why := obstacle()) is not None:
        print(f"not run: {why}")
        return
    exact = 0
    print(
        f"{'round':>5}  {'fault':<21} {'cells':>5} {'before':>6} {'after':>5} {'twice':>5} {'lost':>4} {'starts':>6}   wall"
    )
    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        Path(name).chmod(0o755)
        cluster_folder = Path(name) / "cluster"
        cluster_folder.mkdir()
        with started(cluster_folder) as slurm:
            chosen = {name: act for name, act in FAULTS.items() if options.fault in (None, name)}
            for number, (fault, act) in enumerate(islice(cycle(chosen.items()), options.rounds), start=1):
                folder = Path(name) / f"round-{number}"
                folder.mkdir()
                slow = fault == "time limit"
                matrix(folder, rates=9 if slow else 3, steps=6000 if slow else 300)
                found = ended_in_the_middle(
                    slurm, folder, act, time_="2" if slow else "9", after=1 + number // len(FAULTS) % 4
                )
                exact += found.exact
                print(
                    f"{number:>5}  {fault:<21} {found.cells:>5} {found.before:>6} {found.finished:>5} {len(found.twice):>5} "
                    f"{len(found.lost):>4} {found.starts:>6} {found.wall_s:>5.0f}s"
                    f"{'' if found.exact else f'   not exact: {found.state}'}; load {os.getloadavg()[0]:.0f}",
                    flush=True,
                )
                slurm.clear()
                wait_until(slurm.idle, "two idle nodes", 60)
    print(f"exact: {exact} of {options.rounds}; bar: all")


if __name__ == "__main__":
    main()
