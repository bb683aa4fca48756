from __future__ import annotations

from tests.bench_evidence import bench, made
from tests.calibration_rows import MACHINE, row, sweep

from stepscope.predict.calibration import calibrate
from stepscope.results import comm_costs as module
from stepscope.results.comm_costs import comm_costs, command_for


def test_a_calibration_comes_before_measured_rows_and_a_longer_sweep_before_a_short_one() -> None:
    calibration = calibrate(sweep(), run="x", machine=MACHINE)
    found = comm_costs(bench(made("c"), calibration=calibration, comm=tuple(sweep(alpha_ns=1e6))))
    assert found.calibration is calibration
    # The usual way of a call (a barrier before each) is preferred, and has too few sizes here.
    short = [row(size_bytes=s, time_ns_median=1e6, cell_id="short") for s in (1 << 20, 1 << 22)]
    long = sweep(pacing="back_to_back", cell_id="long")
    found = comm_costs(bench(made("c"), comm=(*short, *long)))
    assert [(fit.op, fit.world_size) for fit in found.calibration.fits] == [("all_reduce", 2)]
    assert comm_costs(bench(made("c"))) is None
    assert comm_costs(bench(made("c"), comm=(row(size_bytes=1024, time_ns_median=1e6),))) is None


def test_measured_rows_are_calibrated_once_for_all_rules(monkeypatch) -> None:
    evidence = bench(made("c"), comm=tuple(sweep()))
    first = comm_costs(evidence)
    assert first is not None
    monkeypatch.setattr(module, "calibrate", None)
    assert comm_costs(evidence) is first


def test_the_command_names_the_network_and_the_run() -> None:
    spec = made("c", network="2gbit:2", world_size=4).result.spec
    assert command_for(spec, run="HERE") == (
        "stepscope comm --ops all_reduce --sizes 64K:64M:4 --overlap --ranks 4 --emulate-network 2gbit:2 -o COMM "
        "&& stepscope diagnose HERE COMM"
    )
