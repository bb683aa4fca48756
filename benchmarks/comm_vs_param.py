"""Our all-reduce times against facebookresearch/param's on gloo: same definition, 5 alternations, by scheduler policy.

    python -m benchmarks.comm_vs_param --param CHECKOUT [--ranks 2,4] [--policies batch,fifo,default] [--alternations 5]

PARAM's ``--z 1``: a barrier that is not timed, then one timed call. Mean over calls, slowest rank, for both; the figure is
the ratio of the medians over the alternations.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks._report import heading
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_comm_samples, read_run

WARMUP = 5
ITERATIONS, FEW = 200, 20
POLICY = {"batch": ["chrt", "-b", "0"], "fifo": ["chrt", "-f", "10"], "default": ["chrt", "-o", "0"]}
_RESULT = re.compile(r"COMMS-RES-all_reduce-float32\s+(\d+)\s+\d+((?:\s+[\d.]+){5})")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--param", type=Path, help="a checkout of facebookresearch/param")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--policies", default="batch,fifo,default")
    parser.add_argument("--alternations", type=int, default=5)
    asked = parser.parse_args(arguments if arguments is not None else sys.argv[1:])
    heading("stepscope comm / PARAM, all_reduce float32 on gloo, mean over calls of the slowest rank")
    if asked.param is None or not (asked.param / "train" / "comms").is_dir():
        print("skipped: give a checkout of facebookresearch/param with --param DIR")
        return
    for ranks in (int(text) for text in asked.ranks.split(",")):
        for policy in asked.policies.split(","):
            if not _allowed(policy):
                print(f"{ranks} ranks, {policy}: skipped, this user may not use that scheduler policy")
                continue
            _compare(asked.param, ranks, policy, asked.alternations)


def _compare(param: Path, ranks: int, policy: str, alternations: int) -> None:
    ours: dict[int, list[float]] = {}
    theirs: dict[int, list[float]] = {}
    for number in range(alternations):
        pair = [(ours, _ours), (theirs, _theirs)]
        for found, measure in pair if number % 2 == 0 else reversed(pair):
            for size, mean_us in measure(param, ranks, policy).items():
                found.setdefault(size, []).append(mean_us)
    for size in sorted(ours):
        mine, other = np.array(ours[size]), np.array(theirs[size])
        ratio = float(np.median(mine) / np.median(other))
        print(
            f"{ranks} ranks, {policy:<7} {size:>9} B: {ratio:.3f}  (ours {np.median(mine):.0f} us, {mine.min():.0f} to "
            f"{mine.max():.0f}; PARAM {np.median(other):.0f} us, {other.min():.0f} to {other.max():.0f}; "
            f"{alternations} alternations)",
            flush=True,
        )


def _allowed(policy: str) -> bool:
    return subprocess.run([*POLICY[policy], "true"], capture_output=True, check=False).returncode == 0


def _ours(param: Path, ranks: int, policy: str) -> Mapping[int, float]:
    del param
    found: dict[int, float] = {}
    for iterations, sizes in _parts():
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            _run([
                *POLICY[policy], sys.executable, "-m", "stepscope.cli", "comm", "--ops", "all_reduce", "--sizes", sizes,
                "--ranks", str(ranks), "--warmup", str(WARMUP), "--iters", str(iterations), "--in-place", "yes",
                "--pacing", "barrier", "--threads", "1", "-o", str(run), "--json",
            ], {"STEPSCOPE_SCHEDULER": "inherit"})  # fmt: skip
            found |= _means(RunLayout(run), ranks)
    return found


def _means(layout: RunLayout, ranks: int) -> dict[int, float]:
    """Per size, us: mean over calls of each rank, the slowest rank's, as PARAM's Max column."""
    means: dict[int, list[float]] = {}
    for cell_id in read_run(layout.root).cells:
        for rank in range(ranks):
            samples = read_comm_samples(layout.cell(cell_id).samples(rank))
            for sample in () if samples is None else samples.samples:
                means.setdefault(sample.asked_bytes, []).append(float(np.mean(sample.times_ns)) / 1e3)
    return {size: max(values) for size, values in means.items()}


def _theirs(param: Path, ranks: int, policy: str) -> Mapping[int, float]:
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "param_bench").symlink_to(param.resolve())
        for iterations, sizes in _parts():
            first, last, factor = sizes.split(":")
            text = _run([
                *POLICY[policy], sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc_per_node", str(ranks), "-m", "param_bench.train.comms.pt.comms", "--",
                "--backend", "gloo", "--device", "cpu", "--collective", "all_reduce", "--begin-size", first,
                "--end-size", last, "--f", factor, "--n", str(iterations), "--w", str(WARMUP), "--z", "1", "--c", "1",
            ], {"PYTHONPATH": folder, "LOCAL_SIZE": str(ranks)})  # fmt: skip
            for match in _RESULT.finditer(text):
                found[int(match[1])] = float(match[2].split()[-1])
    return found


def _parts() -> list[tuple[int, str]]:
    """(calls, sizes): many calls of what is quick, few of what is large."""
    return [(ITERATIONS, "4K:1M:4"), (FEW, "4M:64M:4")]


def _run(command: list[str], extra: Mapping[str, str]) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
