"""Reading traces: stepscope against HolisticTraceAnalysis 0.5.0 and against the floor, whole processes in turn.

    python -m benchmarks.trace_vs_peers [--full] [--huge] [--rows a,b,...] [--peers VENV] [--work FOLDER] [--keep]

The default stays under ten minutes (real sets and 60 MB); ``--full`` adds 450 MB, 770 MB (3.4 M events) and 8 ranks
of 50 MB, ``--huge`` a 20 M-event file (5 GB, deleted afterwards). Each round times ours, the peer and ours again.
TraceLens (AMD-AGI) is not timed: it is not on PyPI, where this name belongs to another project.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from benchmarks._report import compare, heading, show

TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"
PEER = "HolisticTraceAnalysis==0.5.0"
QUICK_LIMIT_S, FULL_LIMIT_S = 120, 3600

NUMPY = "import numpy"
FIRST_BYTE = """
import os, sys
def opened(event, arguments):
    if event == "open" and str(arguments[0]) == sys.argv[2]:
        os._exit(0)
sys.addaudithook(opened)
from stepscope.cli.main import main
main()
"""
FULL_LOAD = """
import sys
from stepscope.traces.load import load_traces
print(sum(len(r.events) for r in load_traces(sys.argv[1]).ranks))
"""
HTA = """
import logging, sys, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
path = sys.argv[1]
given = {"trace_dir": path} if Path(path).is_dir() else {"trace_files": {0: path}}
analysis = TraceAnalysis(**given)
print(analysis.get_temporal_breakdown(visualize=False).to_json())
print(analysis.get_comm_comp_overlap(visualize=False).to_json())
"""
FLOOR_SCAN = """
import re, sys
from isal import isal_zlib
device = re.compile(rb'"cat": "(?:kernel|gpu_memcpy|gpu_memset|Kernel|Memcpy|Memset)"')
packed = sys.argv[1].endswith(".gz")
inflater, rest, count = isal_zlib.decompressobj(wbits=31), b"", 0
with open(sys.argv[1], "rb") as file:
    while chunk := file.read(1 << 18):
        text = rest + (inflater.decompress(chunk) if packed else chunk)
        cut = text.rfind(b"\\n")
        count += len(device.findall(text, 0, max(cut, 0)))
        rest = text[max(cut, 0):]
print(count + len(device.findall(rest)))
"""
FLOOR_DECODE = """
import gc, sys
import msgspec
from isal import isal_zlib
gc.disable()
class Args(msgspec.Struct, gc=False, rename={"external_id": "External id"}):
    correlation: int = -1
    external_id: int = -1
    stream: int | str = -1
    device: int = -1
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None
class Trace(msgspec.Struct, gc=False):
    traceEvents: list[Event]
with open(sys.argv[1], "rb") as file:
    text = file.read()
if sys.argv[1].endswith(".gz"):
    text = isal_zlib.decompress(text, wbits=31)
print(len(msgspec.json.decode(text, type=Trace).traceEvents))
"""


def typed(*words: str) -> list[str]:
    """``stepscope ...`` as a user types it."""
    return [str(Path(sys.executable).with_name("stepscope")), *words]


def summary(path: Path) -> list[str]:
    """Ours: time budget and overlap."""
    return typed("trace", str(path), "--show", "budget,overlap")


def plain(path: Path) -> list[str]:
    """Ours: the command without options: budget, collectives, stragglers, and what the rules find."""
    return typed("trace", str(path))


def first_byte(path: Path, *options: str) -> list[str]:
    """Ours, ended when it opens the trace."""
    return [sys.executable, "-c", FIRST_BYTE, "trace", str(path), *options]


def full_load(path: Path) -> list[str]:
    """Ours: every event as columns, in one process."""
    return [sys.executable, "-c", FULL_LOAD, str(path)]


def all_analyses(path: Path, processes: int) -> list[str]:
    """Ours: everything that ``stepscope trace`` can say of a job."""
    return typed("trace", str(path), "--json", "--processes", str(processes))


@dataclass(frozen=True)
class Peers:
    """The peers' own virtual environment."""

    python: Path

    def hta(self, path: Path) -> list[str]:
        """HTA's load, temporal breakdown and overlap."""
        return [str(self.python), "-c", HTA, str(path)]


@dataclass(frozen=True)
class Usage:
    """One finished process: its time, the peak of its largest process, and what it printed."""

    seconds: float
    peak_bytes: int
    output: str


@dataclass(frozen=True)
class Plan:
    """What to run: folder for made files, peers, limits, sizes."""

    work: Path
    peers: Peers
    full: bool
    huge: bool

    @property
    def limit_s(self) -> float:
        return FULL_LIMIT_S if self.full else QUICK_LIMIT_S


def timed(command: Sequence[str], *, limit_s: float) -> Usage | str:
    """Run a whole process; a sentence instead where it fails or passes the limit."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        expired: list[bool] = []

        def stop() -> None:
            expired.append(True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = Timer(limit_s, stop)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - before
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if expired:
            return f"stopped after {limit_s:g} s"
        if status:
            err.seek(0)
            last = err.read().decode(errors="replace").strip().splitlines()[-1:]
            return f"failed: {last[0] if last else process.returncode}"
        out.seek(0)
        return Usage(seconds, usage.ru_maxrss * 1024, out.read().decode())


def against(
    what: str, ours: list[str], peer: list[str], *, bar: str, rounds: int, limit_s: float
) -> tuple[Usage, Usage] | None:
    """Ours and the peer in turn, ours twice a round: the ratio of times, and peak memory beside it."""
    sides: tuple[list[Usage], list[Usage], list[Usage]] = ([], [], [])
    for _ in range(rounds):
        for side, command in zip(sides, (ours, peer, ours), strict=True):
            done = timed(command, limit_s=limit_s)
            if isinstance(done, str):
                print(f"{what}: {'peer' if command is peer else 'ours'} {done}", flush=True)
                return None
            side.append(done)
    a, b, again = ([[u.seconds] for u in side] for side in sides)
    show(f"{what}: ours / peer", compare(a, b, again), bar=bar)
    mine, theirs = (statistics.median(u.seconds for u in side) for side in sides[:2])
    peaks = [max(u.peak_bytes for u in side) / 1e6 for side in sides[:2]]
    print(
        f"  {mine:.2f} s, {peaks[0]:.0f} MB against {theirs:.2f} s, {peaks[1]:.0f} MB: {theirs / mine:.1f}x faster, "
        f"{peaks[0] / peaks[1]:.2f} of the memory",
        flush=True,
    )
    return sides[0][0], sides[1][0]


def alone(command: list[str], *, rounds: int, limit_s: float) -> tuple[float, int] | str:
    """Median seconds and highest peak of one command."""
    runs = [timed(command, limit_s=limit_s) for _ in range(rounds)]
    failed = next((r for r in runs if isinstance(r, str)), None)
    if failed is not None:
        return failed
    good = [r for r in runs if isinstance(r, Usage)]
    return statistics.median(r.seconds for r in good), max(r.peak_bytes for r in good)


SOURCES = {
    "v100": "ns-resolution-v100/*.pt.trace.json.gz",
    "a100": "nccl-meta-a100-rank0of2/nccl_data.json.gz",
    "mi300": "resnet-ddp-mi300-rank0of8/resnet_act_checkpoint.json.gz",
}
EVENTS = {"v100": 68_692, "a100": 40_573, "mi300": 56_451}


def source(name: str) -> Path:
    return next(TRACES.glob(SOURCES[name]))


def made(plan: Plan, name: str, copies: int, *, packed: bool = False) -> Path:
    """A real trace repeated, made once; in another process, so that this one stays small."""
    target = plan.work / f"{name}-x{copies}.json{'.gz' if packed else ''}"
    if not target.exists():
        _sizes(source(name), target, "--copies", str(copies))
    return target


def _sizes(origin: Path, target: Path, *options: str) -> None:
    command = [sys.executable, "-m", "benchmarks._trace_sizes", str(origin), str(target), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def start_rows(plan: Plan) -> None:
    heading("start-up of `stepscope trace` until it opens its file / python -c 'import numpy'")
    numpy = [sys.executable, "-c", NUMPY]
    for options in ((), ("--show", "budget,overlap")):
        ours = first_byte(source("a100"), *options)
        against(" ".join(["trace", *options]), ours, numpy, bar="at most 2.5", rounds=15, limit_s=plan.limit_s)


def as_recorded(plan: Plan, name: str) -> Path:
    """A folder with the traces of a set alone: HTA takes every JSON file in it for one."""
    folder = plan.work / name
    folder.mkdir(exist_ok=True)
    for file in (TRACES / name).glob("*.json*"):
        if "oracle" not in file.name and "reference" not in file.name and not (folder / file.name).exists():
            shutil.copy(file, folder / file.name)
    return folder


def eight_ranks(plan: Plan, copies: int) -> Path:
    """The 8 V100 ranks, each repeated; made once."""
    folder = plan.work / f"dlrm-8-x{copies}"
    if not folder.is_dir():
        folder.mkdir()
        for rank, file in enumerate(sorted((TRACES / "dlrm-v100-8rank").glob("worker*.json"))):
            _sizes(file, folder / f"rank-{rank}.json", "--copies", str(copies), "--rank", str(rank))
    return folder


def summary_rows(plan: Plan) -> None:
    heading("stepscope trace --show budget,overlap, as typed / HTA load + temporal + overlap")
    for name in ("dlrm-v100-8rank", "nccl-meta-a100-rank0of2", "ns-resolution-v100"):
        folder = as_recorded(plan, name)
        against(
            f"{name} as recorded", summary(folder), plan.peers.hta(folder),
            bar="none", rounds=5, limit_s=plan.limit_s,
        )  # fmt: skip
    _typed_rows(plan, summary, bars=("12x, stretch 20x", "18x, stretch 25x", "76x, stretch 100x"))


def plain_rows(plan: Plan) -> None:
    heading("stepscope trace, as typed, findings included / HTA load + temporal + overlap")
    _typed_rows(plan, plain, bars=("8x, stretch 12x", "10x, stretch 15x", "15x, stretch 20x, 400 MB"))


def all_rows(plan: Plan) -> None:
    heading("stepscope trace --json, every analysis / HTA load + temporal + overlap")
    _typed_rows(
        plan, lambda path: all_analyses(path, 2), bars=("none", "none", "12x, stretch 20x; 400 MB, stretch 300")
    )


def _typed_rows(plan: Plan, command: Callable[[Path], list[str]], *, bars: Sequence[str]) -> None:
    paths: list[Callable[[], Path]] = [lambda: eight_ranks(plan, 4), lambda: made(plan, "a100", 6)]
    if plan.full:
        paths.append(lambda: made(plan, "v100", 54))
    for make, bar, rounds in zip(paths, bars, (5, 5, 2), strict=False):
        path = make()
        size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.iterdir())) / 1e6
        against(
            f"{path.name}, {size:.0f} MB",
            command(path),
            plan.peers.hta(path),
            bar=bar if bar == "none" else f"at least {bar}",
            rounds=rounds,
            limit_s=plan.limit_s,
        )


def process_rows(plan: Plan) -> None:
    heading("all analyses, two processes, 8 ranks / HTA load + temporal + overlap")
    folder = eight_ranks(plan, 56 if plan.full else 8)
    size = sum(f.stat().st_size for f in folder.iterdir()) / 8e6
    rounds = 3 if plan.full else 2
    against(
        f"8 ranks of {size:.0f} MB", all_analyses(folder, 2), plan.peers.hta(folder),
        bar="at most 0.083 (12x)", rounds=rounds, limit_s=plan.limit_s,
    )  # fmt: skip
    against(
        f"8 ranks of {size:.0f} MB: two processes / one", all_analyses(folder, 2), all_analyses(folder, 1),
        bar="at most 0.625 (1.6x)", rounds=rounds + 2, limit_s=plan.limit_s,
    )  # fmt: skip


def memory_rows(plan: Plan) -> None:
    heading("peak memory, and its growth per event")
    small, large = (10, 50) if plan.full else (3, 12)
    paths = [made(plan, "v100", copies) for copies in (small, large)]
    added = (large - small) * EVENTS["v100"]
    commands: dict[str, Callable[[Path], list[str]]] = {
        "summary": summary,
        "full load": full_load,
        "plain command": plain,
        "all analyses": lambda path: all_analyses(path, 1),
    }
    peaks: dict[str, int] = {}
    for what, command in commands.items():
        found = [alone(command(path), rounds=1, limit_s=plan.limit_s) for path in paths]
        if isinstance(found[0], str) or isinstance(found[1], str):
            print(f"{what}: {found}")
            continue
        growth = (found[1][1] - found[0][1]) / added
        peaks[what] = found[1][1]
        print(
            f"{what}: {found[1][1] / 1e6:.0f} MB for {paths[1].stat().st_size / 1e6:.0f} MB, "
            f"{large * EVENTS['v100']:,} events; {growth:.0f} B/event; bars: 400 MB at 3.46 M events, 100 B/event",
            flush=True,
        )
    peer = timed(plan.peers.hta(paths[1]), limit_s=plan.limit_s)
    if isinstance(peer, str):
        print(f"HTA on the same file: {peer}", flush=True)
        return
    shares = ", ".join(f"{what} {peak / peer.peak_bytes:.3f}" for what, peak in peaks.items())
    print(f"of HTA's {peer.peak_bytes / 1e6:.0f} MB: {shares}; bar: at most 0.10", flush=True)


def floor_rows(plan: Plan) -> None:
    heading("distance from the floor, whole processes")
    copies = 30 if plan.full else 6
    for name in ("v100", "mi300"):
        path = made(plan, name, copies, packed=True)
        floor = [sys.executable, "-c", FLOOR_SCAN, str(path)]
        against(
            f"{name} x{copies} packed: summary / isal inflate + one pattern pass", summary(path), floor,
            bar="at most 2", rounds=5, limit_s=plan.limit_s,
        )  # fmt: skip
        floor = [sys.executable, "-c", FLOOR_DECODE, str(path)]
        against(
            f"{name} x{copies} packed: full load / bare msgspec typed decode", full_load(path), floor,
            bar="at most 1.2, stretch 1.0", rounds=3, limit_s=plan.limit_s,
        )  # fmt: skip


def redumped_rows(plan: Plan) -> None:
    heading("re-dumped copies: summary / HTA load + temporal + overlap")
    original = made(plan, "a100", 6)
    expected = timed(summary(original), limit_s=plan.limit_s)
    for kind in ("indented", "compact"):
        path = plan.work / f"{original.stem}-{kind}.json"
        if not path.exists():
            _sizes(original, path, "--dump", kind)
        done = against(
            kind,
            summary(path),
            plan.peers.hta(path),
            bar="at most 0.125 (8x)",
            rounds=3,
            limit_s=plan.limit_s,
        )
        if done is None or isinstance(expected, str):
            continue
        same = done[0].output == expected.output
        share = done[0].peak_bytes / path.stat().st_size
        print(
            f"  answers {'equal' if same else 'DIFFERENT'}; memory {share:.2f} of the JSON bytes; bar: 3",
            flush=True,
        )


def linearity_rows(plan: Plan) -> None:
    heading("cost per event by size")
    sizes = [3, 15] + ([73] if plan.full else []) + ([291] if plan.huge else [])
    for copies in sizes:
        path = made(plan, "v100", copies)
        events = copies * EVENTS["v100"]
        for what, command in (
            ("summary", summary(path)),
            ("full load", full_load(path)),
            ("all analyses", all_analyses(path, 1)),
        ):
            done = alone(command, rounds=1 if copies > 100 else 3, limit_s=plan.limit_s)
            if isinstance(done, str):
                print(f"{events / 1e6:.2f} M events, {what}: {done}", flush=True)
                continue
            print(
                f"{events / 1e6:.2f} M events, {what}: {done[0]:.2f} s = {done[0] / events * 1e6:.2f} us/event, "
                f"{done[1] / 1e6:.0f} MB",
                flush=True,
            )
        if copies > 15:
            path.unlink()


ROWS: dict[str, Callable[[Plan], None]] = {
    "start": start_rows,
    "summary": summary_rows,
    "plain": plain_rows,
    "all": all_rows,
    "processes": process_rows,
    "memory": memory_rows,
    "floor": floor_rows,
    "redumped": redumped_rows,
    "linearity": linearity_rows,
}


def _peers(given: Path | None, work: Path) -> Peers:
    """The given environment, or a new one with the peers from PyPI."""
    if given is None:
        given = work / "peers"
        subprocess.run([sys.executable, "-m", "venv", str(given)], check=True)
        install = [str(given / "bin" / "python"), "-m", "pip", "install", "--quiet", PEER]
        subprocess.run(install, check=True)
    python = given / "bin" / "python"
    shown = [str(python), "-c", "import importlib.metadata as m; print(m.version('HolisticTraceAnalysis'))"]
    version = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.strip()
    if f"=={version}" not in PEER:
        raise SystemExit(f"{given} holds HolisticTraceAnalysis {version}, not {PEER}")
    return Peers(python)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_vs_peers")
    parser.add_argument("--full", action="store_true", help="all sizes of the published table; an hour or two")
    parser.add_argument("--huge", action="store_true", help="a 20 M-event file as well (5 GB on disk)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--peers", type=Path, help="an environment that already holds the peers")
    parser.add_argument("--work", type=Path, help="where to put made files; default a temporary folder")
    parser.add_argument("--keep", action="store_true", help="leave the made files in --work")
    given = parser.parse_args(arguments)
    if not TRACES.is_dir():
        print(f"trace_vs_peers: left out, {TRACES} is absent")
        return
    work = given.work or Path(tempfile.mkdtemp(prefix="stepscope-traces-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        plan = Plan(work=work, peers=_peers(given.peers, work), full=given.full, huge=given.huge)
        for name in given.rows.split(","):
            ROWS[name](plan)
    finally:
        if not (given.keep and given.work):
            shutil.rmtree(work)


if __name__ == "__main__":
    main(sys.argv[1:])
