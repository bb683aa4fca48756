"""One slow host among 8 on an emulated network: is it named, how fast, and is a clean network ever accused?"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks._commands import comm
from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns.start import probe_emulation
from stepscope.records.cell import CellStatus
from stepscope.records.comm import CommRow
from stepscope.results.slow_pairs import slow_pairs
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_record

RANKS, CLEAN_RUNS, PLANTED_RUNS = 8, 20, 3


def main(arguments: list[str] | None = None) -> None:
    asked = arguments if arguments is not None else sys.argv[1:]
    clean_runs = int(asked[0]) if asked else CLEAN_RUNS
    heading(f"planted slow host among {RANKS}, 1 Gbit, one at 200 Mbit")
    refused = probe_emulation()
    if isinstance(refused, Unavailable):
        print(f"skipped: {refused.reason}")
        return
    for number in range(PLANTED_RUNS):
        host = (3 + 2 * number) % RANKS
        rows, took_s, whole_s = _measure(f"1gbit,slow={host}:200mbit")
        print(
            f"host {host} slow: {_named(rows) or 'nobody named'}; pairs measured in {took_s:.1f} s (whole command "
            f"{whole_s:.0f} s); bar: named, < 10 s",
            flush=True,
        )
    alarms = []
    for number in range(clean_runs):
        rows, _, _ = _measure("1gbit")
        if named := _named(rows):
            alarms.append(f"run {number}: {named}")
    print(f"clean runs: {len(alarms)} false alarms in {clean_runs}; bar: 0", *alarms, sep="\n  ", flush=True)


def _measure(network: str) -> tuple[tuple[CommRow, ...], float, float]:
    """Rows, seconds from the ranks' first step in the cell to its end, seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        started = time.monotonic()
        rows = comm(run, "--ops", "none", "--pairs", "--ranks", str(RANKS), "--emulate-network", network)
        whole_s = time.monotonic() - started
        layout = RunLayout(run)
        status = read_record(layout.cell(rows[0].cell_id).status, CellStatus)
    return rows, (status.wall_ns or 0) / 1e9, whole_s


def _named(rows: tuple[CommRow, ...]) -> str:
    """Hosts that are accused of being slow; empty when none is."""
    (verdict,) = slow_pairs(rows)
    return "; ".join(
        f"{end.host} (rank {', '.join(map(str, end.ranks))}) {end.direction}, {end.slow} of {end.of} pairs, "
        f"{end.ratio:.1f}x"
        for end in verdict.ends
    )


if __name__ == "__main__":
    main()
