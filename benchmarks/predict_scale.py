"""A step from its measured computation and the priced operations of its plan, against the measured one; then 4 ranks from
fewer. Emulated network, gloo, a host for each rank.

    python -m benchmarks.predict_scale [--network 1gbit] [--strategies ddp,zero1,...] [--keep FOLDER]

Computation takes a fixed time (layers that sleep), so that ranks do not share cores. ``stepscope comm`` on 2 ranks and
``calibrate`` say what collectives cost, ``bench`` measures; a prediction sees one cell and the calibration.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.predict.prices import calibrated_prices
from stepscope.predict.scale import predict_scale
from stepscope.records.calibration import Calibration
from stepscope.records.mesh import text
from stepscope.records.samples import CellResult
from stepscope.results.cell_job import job_of_cell
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_cell, read_record, read_run

MODELS = Path(__file__).parent / "models"
BAR = 0.10
WORLD = 4

SLEEPING = """workload: "python:sleeping:build"
  model: {layers: 8, width: 1024, forward_ms: 10.0, backward_ms: 20.0}
  dataset: batches
  micro_batch: 4"""

CUT = """workload: sleeping_stack
  model: {depth: 8, width: 64, forward_ms: %s, backward_ms: %s}
  dataset: synthetic
  dataset_options: {samples: 32768}
  micro_batch: 4096"""

MATRIX = """
version: 1
base:
  %s
  optimizer: sgd
  lr: 0.001
  steps: %d
include:
%s
launch: {threads_per_rank: 1}
measure: {rounds: %d, warmup: 3, timeout_s: 300}
"""

REPLICAS = "  - {strategy: %s, axes: {world_size: [1, 2, 4]}}"
MESHES = {
    "hsdp": (SLEEPING, ("{strategy: hsdp, world_size: 4, mesh: {dp_replicate: 2, dp_shard: 2}}",)),
    "tensor_parallel": (
        CUT % (10.0, 20.0),
        (
            "{strategy: tensor_parallel, world_size: 2, mesh: {tp: 2}}",
            "{strategy: tensor_parallel, world_size: 4, mesh: {dp: 2, tp: 2}}",
        ),
    ),
    "pipeline": (
        CUT % (2.5, 5.0),  # of each of 4 micro-batches
        (
            "{strategy: pipeline, world_size: 2, mesh: {pp: 2}}",
            "{strategy: pipeline, world_size: 4, mesh: {pp: 2, dp: 2}}",
        ),
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="1gbit")
    parser.add_argument("--strategies", default="ddp,naive,zero1,fsdp2,hsdp,tensor_parallel,pipeline")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args([] if arguments is None else arguments)
    sys.path.insert(0, str(MODELS))  # where their workload is registered
    heading(f"measured computation and priced operations, gloo ranks at {asked.network} (bar: within {BAR:.0%})")
    with nullcontext(asked.keep) if asked.keep else tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        calibration = _calibrated(root, asked.network)
        names = asked.strategies.split(",")
        groups = {
            "replicas": (SLEEPING, [REPLICAS % name for name in names if name not in MESHES]),
            **{
                name: (MESHES[name][0], [f"  - {each}" for each in MESHES[name][1]]) for name in names if name in MESHES
            },
        }
        for group, (base, lines) in groups.items():
            if lines:
                matrix = MATRIX % (base, asked.steps, "\n".join(lines), asked.rounds)
                _report(_trained(root / group, asked.network, matrix), calibration)


def _calibrated(root: Path, network: str) -> Calibration:
    run = root / "comm"
    if not (run / "calib.json").exists():
        ops = "all_reduce,all_gather,reduce_scatter,broadcast,send_recv"
        stepscope("comm", "--ops", ops, "--pattern", "uni", "--sizes", "4K:16M:8", "--ranks", "2", "--budget", "2s",
                  "--emulate-network", network, "-o", str(run))  # fmt: skip
        stepscope("calibrate", str(run))
    return read_record(run / "calib.json", Calibration)


def _trained(run: Path, network: str, matrix: str) -> list[CellResult]:
    file = run.with_suffix(".yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(matrix)
    stepscope("bench", str(file), "--emulate-network", network, "-o", str(run), env={"PYTHONPATH": str(MODELS)})
    layout = RunLayout(run)
    return [read_cell(layout.cell(cell)) for cell in read_run(run).cells]


def _report(cells: Sequence[CellResult], calibration: Calibration) -> None:
    for cell in cells:
        job = job_of_cell(cell, cells)
        prices = calibrated_prices(calibration, backend=job.backend, network=job.network)
        measured = dict(job.points)
        found = predict_scale(job, sorted({job.ranks, *measured.keys() & {WORLD}}), prices)
        where = f"{cell.spec.strategy} {text(cell.spec.mesh)}".strip()
        if job.ranks > 1:
            print(
                f"  {where:>29} on {job.ranks}: its parts {found.replay_ns / 1e6:6.1f} ms, measured "
                f"{found.step_ns / 1e6:6.1f} ms, {found.replay_error:+.1%}{_miss(found.replay_error)}"
            )
        for step in found.steps[1:]:
            error = step.step_ns / measured[step.ranks] - 1
            held = "inside" if step.low_ns <= measured[step.ranks] <= step.high_ns else "outside"
            print(
                f"  {where:>29} on {WORLD} from {job.ranks}: predicted {step.step_ns / 1e6:6.1f} ms "
                f"({step.low_ns / 1e6:.1f} to {step.high_ns / 1e6:.1f}), measured {measured[step.ranks] / 1e6:6.1f} ms, "
                f"{error:+.1%}, {held}{_miss(error)}"
            )


def _miss(error: float) -> str:
    return "" if abs(error) <= BAR else "  NOT REACHED"


if __name__ == "__main__":
    main(sys.argv[1:])
