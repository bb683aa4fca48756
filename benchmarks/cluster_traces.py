"""Hundreds and thousands of generated traces: time, memory of each worker, cost per event beside one file, straggler named.

``python -m benchmarks.cluster_traces [SIZE:RANKS[:mesh],...] [FOLDER]``; default: small:512,small:4096,large:512 in a new
temporary folder (5 GB, ten minutes on two idle cores).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from benchmarks._cluster_sets import write_set
from benchmarks._report import heading

SETS = "small:512,small:4096,large:512"
LOOK_S = 0.2
REPEATS = 3

ALONE = """
import sys, time
from pathlib import Path
from stepscope.traces.sections import FOR_FINDINGS, Wanted
from stepscope.traces.rank_pass import pass_file
wanted = Wanted(sections=frozenset({"budget", "collectives", "stragglers", "idle", *FOR_FINDINGS}))
for _ in range(2):  # what is imported on the way counts once
    began = time.process_time()
    found = pass_file(Path(sys.argv[1]), wanted=wanted, alone=True)
    spent = time.process_time() - began
print(spent / found.facts.event_count)
"""


def main(arguments: list[str] | None = None) -> None:
    asked = arguments if arguments is not None else sys.argv[1:]
    for each in (asked[0] if asked else SETS).split(","):
        size, count, *more = each.split(":")
        with tempfile.TemporaryDirectory(dir=asked[1] if asked[1:] else None) as folder:
            _measure(Path(folder) / "traces", size, int(count), mesh=bool(more))


def _measure(folder: Path, size: str, ranks: int, *, mesh: bool) -> None:
    late = write_set(folder, ranks=ranks, size=size, mesh=mesh)
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    heading(f"{ranks:,} ranks, {megabytes / ranks:.2f} MB each, {'tensor and data parallel' if mesh else 'DDP'}")
    files = [folder / f"rank{rank}.pt.trace.json" for rank in range(REPEATS)]
    alone = median(float(_output(sys.executable, "-c", ALONE, str(file))) for file in files)
    began = time.monotonic()
    said, own, workers = _watched("trace", str(folder), "--limit", "1")
    seconds = time.monotonic() - began
    events = int(said.split(" events")[0].rpartition("· ")[2].replace(",", ""))
    cost = sum(cpu for cpu, _ in workers) / events
    print(
        f"{seconds:.1f} s, {events:,} events, {events / seconds:,.0f} a second; CPU of the workers, their start included, "
        f"{cost * 1e6:.2f} us an event, of one file alone {alone * 1e6:.2f} us: {cost / alone:.2f}; bar: 1.3"
    )
    peaks = ", ".join(f"{resident / 2**20:.0f}" for _, resident in workers)
    print(
        f"peak resident MiB: workers {peaks}, the command {own[1] / 2**20:.0f}; bar: 1,024 a worker; straggler {late} "
        f"{'named' if f'rank {late} is' in said else 'NOT named'}",
        flush=True,
    )


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


Used = tuple[float, float]
"""CPU seconds, and most bytes in memory."""


def _watched(*words: str) -> tuple[str, Used, list[Used]]:
    """Stdout of stepscope, what the command used, and what each worker did that used 1 s of CPU or more."""
    command = [str(Path(sys.executable).with_name("stepscope")), *words]
    used: dict[int, Used] = {}
    with tempfile.TemporaryFile("w+") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL) as child:
        while child.poll() is None:
            with suppress(psutil.Error):
                own = psutil.Process(child.pid)
                for process in (own, *own.children(recursive=True)):
                    times, most = process.cpu_times(), used.get(process.pid, (0, 0))[1]
                    used[process.pid] = times.user + times.system, max(process.memory_info().rss, most)
            time.sleep(LOOK_S)
        out.seek(0)
        return out.read(), used.pop(child.pid), [each for each in used.values() if each[0] > 1]


if __name__ == "__main__":
    main()
