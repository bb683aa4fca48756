"""A step on 2 and 4 ranks from operators measured on one, against those ranks: twelve jobs on a planted network.

    python -m benchmarks.dry_cpu [--jobs mlp-ddp,...] [--network 1gbit] [--real] [--keep FOLDER]

Products, attention and convolutions take the time of a processor of a planted speed (``models/planted_processor.py``):
ranks that share cores compute at once. The rest of a step is what this machine takes. ``stepscope comm`` and ``calibrate``
say what collectives cost on the network, ``profile`` what operators take on one rank, ``predict --calibrate`` what a step
takes; then jobs run, in rounds that take turns, a host for each rank. Needs what ``stepscope comm --emulate-network`` needs;
where real-time scheduling is permitted, other load on the machine does not matter.

``--real``: this machine's own processor, one for each of 2 ranks: larger batches, and an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns.start import probe_emulation
from stepscope.launch.netns.world import command_of_ranks
from stepscope.predict.calibrated import time_of
from stepscope.records.network import parse_network
from stepscope.store.reader import read_calibration

SCRIPT = Path(__file__).parent / "dry_scripts" / "planted.py"
JOBS = (
    "mlp-ddp", "mlp-ddp-1mb", "conv-ddp", "gpt-ddp-no-sync", "gpt-ddp-checkpoint", "gpt-naive", "mlp-zero1", "gpt-zero1",
    "llama-fsdp2", "llama-fsdp2-no-reshard", "llama-fsdp2-checkpoint", "llama-tp2",
)  # fmt: skip
WORLDS = (2, 4)
BAR, STRETCH, WANTED = 0.12, 0.08, 10
ROUNDS, STEPS = 2, 6
APART = 0.05
"""Rounds of one job that differ by more say nothing: the machine has other work."""
TRIES, SEEN = 3, 0.9
"""Share of the planted rate that a calibration has to find: other work on the machine takes it from the network."""
ONE = {"OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711"}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Return whether the bar is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--network", default="1gbit")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args([] if arguments is None else arguments)
    heading(f"a step on 2 and 4 ranks from operators measured on one, gloo at {asked.network}")
    if isinstance(refused := probe_emulation(), Unavailable):
        print(f"skipped: {refused.reason}")
        return 0
    jobs, worlds = asked.jobs.split(","), WORLDS
    if asked.real:
        os.environ["REAL_PROCESSOR"], worlds = "1", WORLDS[:1]
    with nullcontext(asked.keep) if asked.keep else tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        calib = _calibrated(root, asked.network)
        predicted = {job: _predicted(root, job, calib, worlds) for job in jobs}
        measured = {world: _measured(root, jobs, world, asked.network) for world in worlds}
    return int(not _report(predicted, measured))


def _first() -> tuple[str, ...]:
    """Return what gives a command the processor before others, where that is permitted; nothing where ranks compute, whose
    own threads would have to wait for each other."""
    words = ("chrt", "--rr", "1")
    able = (
        "REAL_PROCESSOR" not in os.environ
        and shutil.which("chrt")
        and not subprocess.run((*words, "true"), capture_output=True, check=False).returncode
    )
    return words if able else ()


def _calibrated(root: Path, network: str) -> Path:
    """Return the calibration of the network: of up to ``TRIES`` the first that finds the rate that was planted."""
    planted = parse_network(network).payload_bytes_per_s
    found: dict[Path, float] = {}
    for number in range(TRIES):
        run = root / f"comm-{number}"
        calib = run / "calib.json"
        if not calib.exists():
            stepscope("comm", "--ops", "all_reduce,all_gather,reduce_scatter,broadcast", "--sizes", "4K:16M:4", "--ranks",
                      "2,4", "--budget", "1s", "--emulate-network", network, "-o", str(run), prefix=_first())  # fmt: skip
            stepscope("calibrate", str(run))
        at_16_mib = time_of(read_calibration(calib), "all_reduce", 16 << 20, 2).time_ns
        found[calib] = (16 << 20) / at_16_mib * 1e9 / planted
        if found[calib] >= SEEN:
            break
    best = max(found, key=lambda calib: found[calib])
    print(f"  all_reduce of 16 MiB on 2 ranks reaches {found[best]:.0%} of the rate that was planted", flush=True)
    return best


def _predicted(root: Path, job: str, calib: Path, of: Sequence[int]) -> dict[int, dict[str, Any]]:
    profile, dry = root / f"one-{job}", root / f"dry-{job}"
    command = ("--", sys.executable, str(SCRIPT), job, "--steps", "30")
    if not profile.exists():
        stepscope("profile", "--wait", "6", "--steps", "6", "-o", str(profile), *command, env=ONE, prefix=_first())
    shutil.rmtree(dry, ignore_errors=True)
    worlds = ",".join(map(str, of))
    text = stepscope("predict", "--gpus", worlds, "--calibrate", str(profile), "--calib", str(calib), "-o", str(dry),
                     "--json", *command, env=ONE)  # fmt: skip
    return {step["ranks"]: step for step in json.loads(text)["predictions"]}


def _measured(root: Path, jobs: Sequence[str], world: int, network: str) -> dict[str, tuple[float, float]]:
    """Return ms of each job's step on its slowest rank, and how far its rounds are apart."""
    folder = root / f"ranks-{world}"
    folder.mkdir(exist_ok=True)
    script = (
        sys.executable,
        str(SCRIPT),
        ",".join(jobs),
        "--steps",
        str(STEPS),
        "--rounds",
        str(ROUNDS + 1),
        "--times",
    )
    line = command_of_ranks(
        network, parent=os.getpid(), world_size=world, log_dir=folder, error_file=folder / "error.json",
        argv=[*script, str(folder)],
    )  # fmt: skip
    done = subprocess.run(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    if done.returncode:
        logs = [log.read_text()[-1000:] for log in sorted(folder.rglob("stderr.log"))]
        sys.exit(f"{world} ranks failed:\n" + "\n".join(logs))
    times = [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]
    found = {}
    for job in jobs:
        rounds = [max(statistics.median(rank[job][n][1:]) * 1e3 for rank in times) for n in range(ROUNDS)]
        found[job] = statistics.median(rounds), max(rounds) / min(rounds) - 1
    return found


def _report(
    predicted: dict[str, dict[int, dict[str, Any]]], measured: dict[int, dict[str, tuple[float, float]]]
) -> bool:
    """Print the rows; return whether the bar is reached, or cannot be judged."""
    errors: dict[str, list[float]] = {job: [] for job in predicted}
    unsure = []
    for job, steps in predicted.items():
        texts = [f"1 rank {steps[1]['step_ns'] / 1e6:6.1f} ms"]
        for world in measured:
            step, (took, apart) = steps[world], measured[world][job]
            error = step["step_ns"] / 1e6 / took - 1
            held = "inside" if step["low_ns"] <= took * 1e6 <= step["high_ns"] else "outside"
            errors[job].append(abs(error))
            unsure += [f"{job} on {world}"] if apart > APART else []
            texts.append(
                f"{world}: predicted {step['step_ns'] / 1e6:6.1f}, measured {took:6.1f} ({error:+6.1%}, {held})"
            )
        print(f"  {job:>23}: {'; '.join(texts)}", flush=True)
    for n, world in enumerate(measured):
        every = sorted(found[n] for found in errors.values())
        counts = ", ".join(f"{sum(e <= bar for e in every)} within {bar:.0%}" for bar in (BAR, STRETCH))
        print(f"{world} ranks: {counts} of {len(every)}; mean {statistics.fmean(every):.1%}, worst {every[-1]:.1%}")
    within = {bar: sum(max(found) <= bar for found in errors.values()) for bar in (BAR, STRETCH)}
    reached = within[BAR] * len(JOBS) >= WANTED * len(errors)
    if unsure:
        print(f"not judged: rounds differ by more than {APART:.0%} ({', '.join(unsure)}): other work on this machine")
        return True
    print(
        f"jobs within {BAR:.0%} on all: {within[BAR]} of {len(errors)}, within {STRETCH:.0%}: {within[STRETCH]} "
        f"(bar: {WANTED} of {len(JOBS)} within {BAR:.0%}){'' if reached else '  NOT REACHED'}"
    )
    return reached


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
