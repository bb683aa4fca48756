"""Bucket sizes on an emulated network: `naive` against tuned buckets, predicted by a timeline and measured.

    python -m benchmarks.bucket_timeline [--network 2gbit:2] [--strategy bucketed|ddp] [--keep FOLDER]

Three commands, as a user would run them: ``stepscope comm`` and ``calibrate`` for what an all-reduce costs on this network,
``stepscope bench`` for the steps. The prediction sees the calibration, the overlap test and the backward profiles of the
two untuned cells (`naive`, and the strategy with its default size), no step time of any cell. All cells run in one world,
taking turns in rounds; `naive` runs twice (another seed): A/A.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks._commands import stepscope
from benchmarks._report import compare, heading, show
from stepscope.predict.overlap import Transport, measured_transport
from stepscope.predict.run_buckets import choose_buckets
from stepscope.predict.timeline import CANDIDATES_MB
from stepscope.records.calibration import Calibration
from stepscope.records.prediction import BucketChoice, Timeline
from stepscope.records.samples import CellResult
from stepscope.report.render import terminal
from stepscope.report.views import buckets
from stepscope.results.comm_rows import read_comm_rows
from stepscope.stats.step_table import cell_table
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_cell, read_record, read_run

GAIN_BAR, REPEAT_BAR, GAIN_POINTS, NAMED_BAR = 1.3, 0.03, 10, 0.03

# No parameter is larger than the smallest bucket (1 MiB weights), so that all sizes make different buckets; the batch
# makes backward a little shorter than what travels, so that the CPU has time for both.
MODEL = {"depth": 32, "width": 512, "bias": False}
MICRO_BATCH = 256

MATRIX = """
version: 1
description: "naive against buckets of every size, two ranks"
base:
  workload: deep_mlp
  model: {{depth: {depth}, width: {width}, bias: {bias}}}
  loss: mse
  dataset: synthetic
  dataset_options: {{samples: 8192}}
  optimizer: sgd
  lr: 0.001
  micro_batch: {micro_batch}
  world_size: 2
  steps: {steps}
axes:
  strategy_options.bucket_cap_mb: [{caps}]
  strategy: [{strategy}]
include:
  - {{strategy: naive}}
  - {{strategy: naive, seed: 2}}
  - {{strategy: interleaved}}
  - {{strategy: {strategy}}}
launch: {{threads_per_rank: 1}}
measure: {{rounds: {rounds}, warmup: 3, timeout_s: 600}}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args([] if arguments is None else arguments)
    heading(
        f"bucket sizes at {asked.network}: {MODEL['depth']} x Linear({MODEL['width']}), batch {MICRO_BATCH} a rank, "
        f"2 gloo ranks, {asked.rounds} rounds of {asked.steps} steps"
    )
    with _folder(asked.keep) as folder:
        calibration, transport = _calibrated(folder, asked.network)
        cells = _trained(folder, asked.network, strategy=asked.strategy, steps=asked.steps, rounds=asked.rounds)
        _report(cells, calibration, transport)


def _report(cells: Mapping[str, CellResult], calibration: Calibration, transport: Transport) -> None:
    rounds = {key: _rounds(cell) for key, cell in cells.items()}
    measured = {key: _middle(each) for key, each in rounds.items()}
    choice = choose_buckets(cells["default"], calibration, naive=cells["naive"], transport=transport)
    print(
        f"beside each other: computation {transport.compute_slowdown:.2f}x, collectives {transport.comm_slowdown:.2f}x"
    )
    console = Console(width=120, highlight=False)
    console.print(terminal.render(buckets.bucket_choice_table(choice, measured), width=120))
    console.print(f"\n{choice.strategy} with {choice.bucket_cap_mb:g} MiB, as predicted")
    console.print("\n".join(buckets.timeline_picture(choice.chosen.timeline, width=110)), markup=False)
    print()

    named = f"{choice.bucket_cap_mb:g}"
    sizes = [f"{size:g}" for size in CANDIDATES_MB]
    best = min(sizes, key=lambda key: measured[key])
    naive, again = rounds["naive"], rounds["again"]
    ratio = compare(naive, rounds[named], again)
    show(
        f"naive / {choice.strategy} {named} MiB (named)",
        ratio,
        bar=f">= {GAIN_BAR}, repeatable to {REPEAT_BAR:.0%}",
    )
    each = [_median(n) / _median(t) for n, t in zip(naive, rounds[named], strict=True)]
    print(f"  the same ratio in each round: {', '.join(f'{r:.3f}' for r in each)}: "
          f"{max(each) / min(each) - 1:.1%} from the least to the most")  # fmt: skip
    for key, timeline_of in [("naive", choice.naive), ("default", choice.default), *_by_size(choice)]:
        error = timeline_of.step_ns / measured[key] - 1
        print(f"  {key:>8}: predicted {timeline_of.step_ns / 1e6:6.1f} ms, measured {measured[key] / 1e6:6.1f} ms, "
              f"{error:+.1%}")  # fmt: skip
    gain = 100 * (measured["naive"] / measured[named] - 1)
    points = 100 * choice.gain_over_naive - gain
    print(f"gain over naive: predicted {100 * choice.gain_over_naive:.0f}%, measured {gain:.0f}%, {points:+.0f} points; "
          f"bar: within {GAIN_POINTS}")  # fmt: skip
    behind = measured[named] / measured[best] - 1
    print(
        f"named {named} MiB, fastest measured {best} MiB: {behind:.1%} behind; bar: {NAMED_BAR:.0%}",
        flush=True,
    )


def _by_size(choice: BucketChoice) -> list[tuple[str, Timeline]]:
    return [(f"{cap:g}", c.timeline) for c in choice.candidates for cap in c.bucket_caps_mb]


def _calibrated(folder: Path, network: str) -> tuple[Calibration, Transport]:
    run, beside, target = folder / "comm", folder / "overlap", folder / "calib.json"
    _stepscope("comm", "--ops", "all_reduce", "--sizes", "4K:64M:2", "--ranks", "2", "--in-place", "yes",
               "--pacing", "back-to-back", "--budget", "3s", "--emulate-network", network, "-o", str(run))  # fmt: skip
    _stepscope("calibrate", str(run), "--output", str(target))
    _stepscope("comm", "--ops", "all_reduce", "--sizes", "1M:16M:4", "--ranks", "2", "--in-place", "yes", "--overlap",
               "--budget", "3s", "--emulate-network", network, "-o", str(beside))  # fmt: skip
    rows = read_comm_rows(RunLayout(beside).results_jsonl)
    return read_record(target, Calibration), measured_transport("gloo", rows)


def _trained(folder: Path, network: str, *, strategy: str, steps: int, rounds: int) -> dict[str, CellResult]:
    """Cells by what they are: ``naive``, ``again``, ``interleaved``, ``default`` (25 MiB or so), or the size in MiB."""
    matrix, run = folder / "matrix.yaml", folder / "bench"
    caps = ", ".join(f"{size:g}" for size in CANDIDATES_MB)
    model = {**MODEL, "bias": str(MODEL["bias"]).lower()}
    matrix.write_text(
        MATRIX.format(**model, micro_batch=MICRO_BATCH, strategy=strategy, steps=steps, rounds=rounds, caps=caps)
    )
    _stepscope("bench", str(matrix), "--emulate-network", network, "-o", str(run))
    layout = RunLayout(run)
    cells = [read_cell(layout.cell(cell_id)) for cell_id in read_run(run).cells]
    return _by_key(cells)


def _by_key(cells: Sequence[CellResult]) -> dict[str, CellResult]:
    """25 MiB is both a size and the default of ``bucketed``: one cell then stands for both."""
    found: dict[str, CellResult] = {}
    for cell in cells:
        spec = cell.spec
        cap = spec.strategy_options.get("bucket_cap_mb")
        if spec.strategy == "naive":
            found["naive" if spec.seed == 1 else "again"] = cell
        elif spec.strategy == "interleaved":
            found["interleaved"] = cell
        else:
            found["default" if cap is None else f"{cap:g}"] = cell
    found.setdefault("default", found["25"])
    return found


def _rounds(cell: CellResult) -> list[list[int]]:
    """Step times of the slowest rank, ns, by round."""
    table = cell_table(cell)
    found = {} if table is None else table.by_round(table.step_ns)
    return [found[number] for number in sorted(found)]


def _median(values: Sequence[int]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _middle(rounds: Sequence[Sequence[int]]) -> float:
    return _median([value for values in rounds for value in values])


def _stepscope(*arguments: str) -> None:
    print(f"$ stepscope {' '.join(arguments)}", flush=True)
    stepscope(*arguments)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="bucket-timeline-") as folder:
        yield Path(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", default="2gbit:2")
    parser.add_argument("--strategy", choices=("bucketed", "ddp"), default="bucketed")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it; a second call reads what is there")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
