"""What the entries read: folders of inputs, each written when an entry first needs it.

group("examples", folder)     writes the inputs of a group into the folder, by name
``shared`` is no group of these: it is the real data beside the checkout, and may be absent.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from stepscope.records import codec
from stepscope.records.cell import CellStatus, RunRecord
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record

SHARED = Path(__file__).parents[3] / "shared" / "data"

MS = 1_000_000


def examples(folder: Path) -> None:
    """The shipped examples, one with faults, and one whose files are cut inside a step."""
    from stepscope.cli.main import main

    words, argv = ["example", str(folder), "--inject", "slow_rank=2:30%", "--inject", "loader"], sys.argv
    sys.argv = ["stepscope", *words]
    try:
        with redirect_stdout(StringIO()):
            main(words)
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"stepscope example ended with {ended.code}") from None
    finally:
        sys.argv = argv
    (folder / "cut").mkdir()
    for file in (folder / "ddp").glob("*.json"):
        text = file.read_text()
        (folder / "cut" / file.name).write_text(text[: len(text) * 4 // 5])


def built(folder: Path) -> None:
    """Traces with planted truth: every shape of job, every cause of lateness, clocks that differ."""
    from tests.trace_builder import Clock, build, write_job

    late: dict[str, Any] = {"world": 4, "steps": 5}
    jobs: dict[str, dict[str, Any]] = {
        "straggler": {"world": 4, "steps": 6, "late": {2: 900_000}, "late_kind": "compute"},
        "launches": {"world": 2, "steps": 4, "late": {0: 4_000_000, 1: 4_000_000}, "late_kind": "launch"},
        "naive": {"world": 2, "steps": 4, "shape": "naive", "transfer_ns": 300_000},
        "hidden": {"world": 2, "steps": 4, "transfer_ns": 20_000, "backward_ns": 900_000, "forward_ns": 900_000},
        "gloo": {"world": 2, "steps": 3, "device": "gloo", "late": {1: 200_000}},
        "fsdp": {"world": 4, "steps": 4, "shape": "fsdp"},
        "fsdp-waits": {"world": 4, "steps": 4, "shape": "fsdp", "overlap": False},
        "tensor": {"world": 4, "steps": 3, "shape": "tensor"},
        "pipeline": {"world": 4, "steps": 3, "shape": "pipeline", "layers": 8},
        "late-data": late | {"late": {1: 2_000_000}, "late_kind": "data"},
        "late-sync": late | {"late": {1: 2_000_000}, "late_kind": "sync"},
        "late-python": late | {"late": {1: 2_000_000}, "late_kind": "python"},
        "slow-rank": late | {"slow": {3: 1.4}, "jitter": 0.02},
        "clocks": late | {"clocks": {1: Clock(offset_ns=3_000_000), 2: Clock(offset_ns=-800_000, drift_ppm=40.0)}},
    }
    for name, plan in jobs.items():
        write_job(build(**plan), folder / name)


def sharded(folder: Path) -> None:
    """Jobs that shard, pipeline or route, with planted faults."""
    from tests import sharded_jobs as jobs

    made = {
        "fsdp": jobs.fsdp(),
        "no-prefetch": jobs.fsdp(prefetch=False),
        "small-units": jobs.fsdp(units=12, elements=1 << 16),
        "root-unit": jobs.fsdp(whole=True),
        "copy-out": jobs.fsdp(copy_out_ns=400_000),
        "offload": jobs.fsdp(offload_ns=900_000),
        "pipeline": jobs.pipeline(slow={2: 1.5}),
        "experts": jobs.experts(hot={3: 2.5}),
        "tensor": jobs.tensor(),
    }
    for name, job in made.items():
        jobs.folder_of(job, folder / name)


def sound(folder: Path) -> None:
    """One small input of every kind that stepscope reads."""
    from tests.damage.sound import make

    make(folder)


def runs(folder: Path) -> None:
    """Run folders as bench and comm leave them, folders of profiled jobs, and a calibration."""
    from tests import calibration_rows, comm_rows, diaries, training_records
    from tests import fake_runs as fakes
    from tests.golden import test_comm_golden as golden
    from tests.unit.cli.test_calibrate import run_folder as comm_folder

    folder.mkdir(parents=True, exist_ok=True)
    _cells(RunLayout(folder / "cells"))
    _cells(RunLayout(folder / "slower"), slower=1.1)
    for name, rows in (("study", training_records.study()), ("epochs", training_records.imported())):
        layout = RunLayout(folder / name)
        cells = tuple(each.run_id for each in rows)
        write_record(
            layout.run, RunRecord(kind="bench", name=name, matrix={}, cells=cells, argv=("stepscope", "bench"))
        )
        for each in rows:
            known = {"strategy": each.strategy or "single", "world_size": each.world_size or 1}
            fakes.write_cell(layout, fakes.spec(each.run_id, **known), ranks=[])
        write_bytes(layout.results_jsonl, b"".join(codec.encode_line(each) for each in rows))
    comm_folder(folder / "comm", golden.rows())
    comm_folder(folder / "settings", golden.settings())
    comm_folder(folder / "curves", calibration_rows.sweep() + calibration_rows.sweep("barrier"))
    fitted = comm_rows.calibration(comm_rows.fit(comm_rows.sweep(), alpha_us=50.0, rate=2e9))
    (folder / "calib.json").write_bytes(codec.encode(fitted))
    diaries.profile_folder(folder / "windows", windows=2, world=4, steps=4, late={1: 300_000})
    diaries.planted(folder / "diary", long_step=120)
    diaries.write_record(folder / "diary")
    matrix = {"version": 1, "name": "m", "base": {"device": "cpu", "workload": "mlp"}, "axes": {"strategy": ["ddp"]}}
    (folder / "matrix.json").write_text(json.dumps(matrix))


def _cells(layout: RunLayout, *, slower: float = 1.0) -> None:
    """Samples of one rank and of two, of a killed cell and of a cell of epochs; rows as the controller makes them."""
    from tests import fake_runs as fakes

    from stepscope.results.run_figures import write_results
    from stepscope.results.runs import Planned, build_runs

    wobble = [0, 3, 1, 4, 2, 5, 1, 3, 0, 4, 2, 3]

    def length(ms: float, more: int) -> int:
        return round((ms * MS + more * MS / 10) * slower)

    one = fakes.single("one00000")
    ddp = fakes.spec("ddp00000", strategy_options={"bucket_cap_mb": 1.0, "hook": "none"})
    lost = fakes.spec("ddp11111", strategy_options={"bucket_cap_mb": 25.0, "hook": "bf16"})
    news = fakes.spec(
        "news0000", workload="text_classifier", model={}, dataset="ag_news", steps=None, epochs=3,
        precision="amp_bf16", accumulation=2, micro_batch=16,
    )  # fmt: skip
    alone = [fakes.step(n, length(20, w), exposed_comm_ns=0) for n, w in enumerate(wobble)]
    fakes.write_cell(layout, one, ranks=[alone])
    together = [[fakes.step(n, length(12 + rank, w)) for n, w in enumerate(wobble)] for rank in (0, 1)]
    fakes.write_cell(layout, ddp, ranks=together)
    killed = CellStatus(cell_id="ddp11111", status="killed", failing_rank=1, group_id="g2", reason="received SIGKILL")
    fakes.write_cell(layout, lost, ranks=[fakes.series([12 * MS] * 7)] * 2, summaries=False, status=killed)
    epochs = [
        fakes.epoch(0, round(900 * MS * slower), test_accuracy=0.7),
        fakes.epoch(1, round(800 * MS * slower), test_accuracy=0.8, train_loss=0.9),
        fakes.epoch(2, round(820 * MS * slower), test_accuracy=0.875, train_loss=0.5),
    ]
    steps = [fakes.step(n, length(200, 10 * w), epoch=n // 4, warmup=n < 3) for n, w in enumerate(wobble)]
    fakes.write_cell(layout, news, ranks=[steps, steps], epochs=[epochs, epochs], num_parameters=2000)
    cells = [one, ddp, lost, news]
    plans = {
        "one00000": Planned(num_parameters=1000, comm_bytes_per_step=0),
        "ddp00000": Planned(num_parameters=1000, comm_bytes_per_step=4000),
        "ddp11111": Planned(num_parameters=1000, comm_bytes_per_step=4000),
        "news0000": Planned(num_parameters=2000, comm_bytes_per_step=8000),
    }
    rows = build_runs(layout, cells, plans=plans)
    write_record(
        layout.run,
        RunRecord(kind="bench", name="cells", matrix={"version": 1}, cells=tuple(run.run_id for run in rows),
                  argv=("stepscope", "bench", "file.yaml")),
    )  # fmt: skip
    write_results(layout, rows)


def jobs(folder: Path) -> None:
    """Folders of measured jobs and matrices (jobs/README.md)."""
    for packed in Path(__file__).with_name("jobs").glob("*.tar.xz"):
        with tarfile.open(packed) as archive:
            archive.extractall(folder / packed.name.removesuffix(".tar.xz"), filter="data")


GROUPS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (examples, built, sharded, sound, runs, jobs)
}


def rule_outcomes(module: str, folder: Path) -> Any:
    """The findings of every case of tests/wrong_advice's ``module``, with the fact that makes the advice wrong and without.

    By rule and case; a rule that is quiet or cannot look says so.
    """
    from importlib import import_module

    from tests.wrong_advice import CASES

    from stepscope.diagnose.engine import check
    from stepscope.diagnose.rules import REGISTRY

    import_module(f"tests.wrong_advice.{module}")
    told: dict[str, Any] = {}
    for key, makers in sorted(CASES.items()):
        rule = REGISTRY.load(key)
        for make in (each for each in makers if each.__module__.endswith(f".{module}")):
            place = folder / make.__name__
            place.mkdir()
            made = make(place)
            for side, evidence in (("right", made.right), ("wrong", made.wrong)):
                found = check(rule, evidence)
                told[f"{key}.{make.__name__}.{side}"] = (
                    [asdict(each) for each in found] if isinstance(found, tuple) else type(found).__name__.lower()
                )
    return told
