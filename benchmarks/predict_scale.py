"""Would it scale: 4 ranks on the emulated network, predicted from 2 and from 1, against measured.

    python -m benchmarks.predict_scale [--network 1gbit] [--strategies ddp,naive,zero1,fsdp2] [--keep FOLDER]

Computation takes a fixed time (layers that sleep), so that ranks do not share cores. ``stepscope comm`` on 2 ranks and
``calibrate`` say what collectives cost, ``bench`` measures 1, 2 and 4 ranks; a prediction sees one cell and the calibration.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.predict.prices import calibrated_prices
from stepscope.predict.scale import predict_scale
from stepscope.records.calibration import Calibration
from stepscope.records.cell_result import CellResult
from stepscope.results.cell_job import job_of_cell
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_cell, read_record, read_run

BAR = 0.10
WORLD = 4

MATRIX = """
version: 1
base:
  workload: "python:sleeping:build"
  model: {{layers: 8, width: 1024, forward_ms: 10.0, backward_ms: 20.0}}
  dataset: batches
  optimizer: sgd
  lr: 0.001
  micro_batch: 4
  steps: {steps}
axes:
  world_size: [1, 2, 4]
  strategy: [{strategies}]
launch: {{threads_per_rank: 1}}
measure: {{rounds: {rounds}, warmup: 3, timeout_s: 300}}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="1gbit")
    parser.add_argument("--strategies", default="ddp,naive,zero1,fsdp2")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args([] if arguments is None else arguments)
    heading(f"would it scale: {WORLD} gloo ranks at {asked.network}, layers of fixed time")
    with nullcontext(asked.keep) if asked.keep else tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        calibration = _calibrated(root, asked.network)
        cells = _trained(root, asked.network, asked.strategies, steps=asked.steps, rounds=asked.rounds)
        _report(cells, calibration)


def _calibrated(root: Path, network: str) -> Calibration:
    run = root / "comm"
    if not (run / "calib.json").exists():
        ops = "all_reduce,all_gather,reduce_scatter,broadcast"
        stepscope("comm", "--ops", ops, "--sizes", "4K:16M:8", "--ranks", "2", "--budget", "2s",
                  "--emulate-network", network, "-o", str(run))  # fmt: skip
        stepscope("calibrate", str(run))
    return read_record(run / "calib.json", Calibration)


def _trained(root: Path, network: str, strategies: str, *, steps: int, rounds: int) -> list[CellResult]:
    run = root / "bench"
    matrix = root / "matrix.yaml"
    root.mkdir(parents=True, exist_ok=True)
    matrix.write_text(MATRIX.format(steps=steps, strategies=strategies, rounds=rounds))
    models = str(Path(__file__).parent / "models")
    stepscope("bench", str(matrix), "--emulate-network", network, "-o", str(run), env={"PYTHONPATH": models})
    layout = RunLayout(run)
    return [read_cell(layout.cell(cell)) for cell in read_run(run).cells]


def _report(cells: Sequence[CellResult], calibration: Calibration) -> None:
    for cell in cells:
        job = job_of_cell(cell, cells)
        if job.ranks >= WORLD:
            continue
        prices = calibrated_prices(calibration, backend=job.backend, network=job.network)
        found = predict_scale(job, [job.ranks, WORLD], prices)
        measured = dict(job.points)
        for step in found.steps:
            error = step.step_ns / measured[step.ranks] - 1
            held = step.low_ns <= measured[step.ranks] <= step.high_ns
            bar = f"bar: within {BAR:.0%}" if step.ranks == WORLD else f"replay {found.replay_error:+.1%}"
            print(
                f"  {cell.spec.strategy:>6} from {job.ranks} on {step.ranks}: predicted {step.step_ns / 1e6:6.1f} ms "
                f"({step.low_ns / 1e6:.1f} to {step.high_ns / 1e6:.1f}), measured {measured[step.ranks] / 1e6:6.1f} ms, "
                f"{error:+.1%}, {'inside' if held else 'outside'}; {bar}",
                flush=True,
            )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
