"""`stepscope report` of a run of 500 cells: seconds, and the size of its page. python -m benchmarks report_cells [CELLS]

The run folder is made by hand: every cell has the samples of all its ranks (1, 2, 4 or 8 of them, 60 steps each) and five
epochs. There is no peer to compare with; the bar is 6 s for everything, each format is also timed alone.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

from tests import fake_runs

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.records.cell import CellSpec, RunRecord
from stepscope.records.samples import EpochResult, StepSample
from stepscope.results.run_figures import write_results
from stepscope.results.runs import build_runs
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_record

CELLS, STEPS, EPOCHS = 500, 60, 5
FORMATS = ("html", "png", "svg", "pdf", "csv", "tex", "md", "txt")


def main(arguments: list[str] | None = None) -> None:
    asked = sys.argv[2:] if arguments is None else arguments
    cells = int(asked[0]) if asked else CELLS
    heading(f"report of {cells} cells")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        make_run(root, cells)
        for formats in ((), *((f"--{name}",) for name in FORMATS)):
            target = Path(folder) / "-".join(("out", *formats))
            before = time.perf_counter()
            stepscope("report", str(root), "-o", str(target), *formats)
            seconds = time.perf_counter() - before
            files = [path for path in target.rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files) / 1e6
            print(f"{' '.join(formats) or 'everything':<12} {seconds:6.1f} s  {len(files):4} files  {size:6.2f} MB")


def make_run(root: Path, cells: int) -> None:
    """A run folder of ``cells`` finished cells: strategies x ranks x precisions x accumulation x learning rates."""
    draw, layout = random.Random(1), RunLayout(root)
    axes = itertools.product((0.1, 0.2, 0.3, 0.4, 0.5), (1, 2, 4, 8), ("fp32", "amp_bf16", "bf16", "tf32", "amp_fp16"),
                             ("naive", "interleaved", "bucketed", "ddp", "single"))  # fmt: skip
    specs = []
    for number, (lr, world, precision, strategy) in enumerate(itertools.islice(axes, cells)):
        if strategy == "single":
            world = 1
        specs.append(
            fake_runs.spec(
                f"cell-{number:04d}", strategy=strategy, world_size=world, precision=precision, lr=lr,
                epochs=EPOCHS, steps=None, global_batch=64, micro_batch=64 // world,
            )
        )  # fmt: skip
    for spec in specs:
        ranks = [_steps(draw, spec) for _ in range(spec.world_size)]
        epochs = [_epochs(draw, spec) for _ in range(spec.world_size)]
        fake_runs.write_cell(layout, spec, ranks=ranks, epochs=epochs)
    run = RunRecord(kind="bench", name="many", matrix={}, cells=tuple(s.cell_id for s in specs), argv=())
    write_record(layout.run, run)
    write_results(layout, build_runs(layout, specs))


def _steps(draw: random.Random, spec: CellSpec) -> list[StepSample]:
    base = 40e6 / spec.world_size**0.8
    return fake_runs.series([round(base * draw.gauss(1, 0.03)) for _ in range(STEPS)])


def _epochs(draw: random.Random, spec: CellSpec) -> list[EpochResult]:
    base = 2e9 / spec.world_size**0.8
    return [
        fake_runs.epoch(n, round(base * draw.gauss(1, 0.02)), train_loss=1 / (n + 1), test_accuracy=0.5 + n / 20)
        for n in range(EPOCHS)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
