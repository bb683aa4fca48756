"""``stepscope predict --buckets RUN``: a bucket size for a run, from its backward profile and a calibration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import fake_runs
from tests.calibration_rows import MACHINE, sweep
from tests.commands import Ran

from stepscope.cli import console
from stepscope.predict.calibration import calibrate
from stepscope.predict.specs import specs_of
from stepscope.records import codec
from stepscope.records.cell import CellSpec, RunRecord
from stepscope.records.prediction import BackwardProfile, ReadyGradient
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record

MS = 1_000_000
MODEL = {"depth": 16, "width": 512, "bias": False}


def _cell(name: str, strategy: str, **options: object) -> CellSpec:
    return fake_runs.spec(
        name, workload="deep_mlp", model=MODEL, loss="mse", strategy=strategy, strategy_options=options, momentum=0.0
    )  # fmt: skip


def _profile(cell: CellSpec) -> BackwardProfile:
    """A long backward pass, each gradient as much later than the one before, the last layer's first."""
    facts = specs_of(cell).facts
    names = [facts.parameters[index].name for index in facts.ready_order]
    return BackwardProfile(
        clock="perf_counter", steps=5, micro_batch=32, data_wait_ns=0, forward_ns=50 * MS, earlier_backward_ns=0,
        backward_ns=100 * MS, optimizer_ns=5 * MS, other_ns=0,
        ready=tuple(
            ReadyGradient(name=name, ready_ns=round(100 * MS * (i + 1) / len(names))) for i, name in enumerate(names)
        ),
    )  # fmt: skip


def _run(folder: Path, *cells: CellSpec, kind: str = "bench", profiles: bool = True) -> Path:
    layout = RunLayout(folder)
    ids = tuple(cell.cell_id for cell in cells)
    write_record(layout.run, RunRecord(kind=kind, name="x", matrix={}, cells=ids, argv=()))  # type: ignore[arg-type]
    for cell in cells:
        steps = [fake_runs.series([200 * MS] * 12)] * cell.world_size
        fake_runs.write_cell(layout, cell, ranks=steps, backward=_profile(cell) if profiles else None)
    return folder


@pytest.fixture
def calib(tmp_path: Path) -> Path:
    """1 ms a step, 200 MB/s: 16 MiB of gradients travel about as long as backward computes."""
    rows = sweep(alpha_ns=100_000, beta_bytes_per_s=2e8, in_place=True)
    path = tmp_path / "calib.json"
    write_bytes(path, codec.encode(calibrate(rows, run="comm-run", machine=MACHINE)))
    return path


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The console keeps the width of its first use: another test's must not decide what is left out of a table."""
    monkeypatch.setenv("COLUMNS", "160")
    console.out.cache_clear()
    yield
    console.out.cache_clear()


def test_it_names_a_size_and_sets_measured_beside_predicted(tmp_path: Path, calib: Path, ran: Ran) -> None:
    run = _run(tmp_path / "run", _cell("n", "naive"), _cell("d", "ddp", bucket_cap_mb=25.0))
    code, out, _ = ran("predict", "--buckets", run, "--calib", calib)
    assert code == 0
    assert "step measured" in out
    assert "200 ms" in out
    assert "exposed" in out
    assert "as predicted" in out


def test_a_small_bucket_wins_where_the_wire_is_slow(tmp_path: Path, calib: Path, ran: Ran) -> None:
    run = _run(tmp_path / "run", _cell("d", "ddp", bucket_cap_mb=25.0))
    code, out, _ = ran("predict", "--buckets", run, "--calib", calib, "--json")
    assert code == 0
    choice = json.loads(out)["choice"]
    best = choice["candidates"][choice["best"]]
    assert max(best["bucket_caps_mb"]) < 16
    largest = choice["candidates"][-1]["timeline"]
    assert best["timeline"]["exposed_ns"] < largest["exposed_ns"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--calib was not given"),
        (("--calib", "nowhere.json"), "cannot read nowhere.json"),
        (("--calib", "CALIB", "--cell", "zz"), "cell zz has no buckets"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, calib: Path, ran: Ran, arguments: tuple[str, ...], message: str
) -> None:
    run = _run(tmp_path / "run", _cell("d", "ddp", bucket_cap_mb=25.0))
    given = [str(calib) if a == "CALIB" else a for a in arguments]
    code, _, err = ran("predict", "--buckets", run, *given)
    assert code in (2, 3, 5)
    assert message in err


def test_two_kinds_of_cells_must_be_told_apart(tmp_path: Path, calib: Path, ran: Ran) -> None:
    run = _run(tmp_path / "run", _cell("d", "ddp", bucket_cap_mb=25.0), _cell("b", "bucketed"))
    code, _, err = ran("predict", "--buckets", run, "--calib", calib)
    assert code == 2
    assert "add --cell with one of" in err
    code, out, _ = ran("predict", "--buckets", run, "--calib", calib, "--cell", "b")
    assert code == 0
    assert "bucketed with" in out


def test_a_run_without_profiles_says_to_run_again(tmp_path: Path, calib: Path, ran: Ran) -> None:
    run = _run(tmp_path / "run", _cell("d", "ddp"), profiles=False)
    code, _, err = ran("predict", "--buckets", run, "--calib", calib)
    assert code != 0
    assert "no backward profile" in err


def test_a_comm_run_is_refused(tmp_path: Path, calib: Path, ran: Ran) -> None:
    run = _run(tmp_path / "run", kind="comm")
    code, _, err = ran("predict", "--buckets", run, "--calib", calib)
    assert code == 2
    assert "is a comm run" in err
