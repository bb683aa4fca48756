import pytest
from benchmarks.monitor_vs_traceml import ROWS, edited_for_traceml
from benchmarks.own_jobs.planted import JOBS
from benchmarks.own_jobs.truth import Truth

TRUTH = Truth(code=0, out="", step_s=0.033, low=0.31, high=0.31)
BY_NAME = {row.job.name: row for row in ROWS}


def holds(name: str, **cost: object) -> bool:
    costs = [{"kind": "contended-machine", "share": {"value": 0.4}}, {"share": {"value": 0.3}, "ranks": [], **cost}]
    return BY_NAME[name].holds({"kind": "contended-machine", "costs": costs}, TRUTH, "")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("slow_backward", {"kind": "straggler", "ranks": [1], "excess_ns": 5.5e6}, {"excess_ns": 7e6}),
        ("slow_backward", {"kind": "uneven-work", "ranks": [1], "excess_ns": 5e6}, {"ranks": [0]}),
        ("stall", {"kind": "input-bound", "period": 20, "event_ns": 3.1e8}, {"period": None}),
        ("slow_loader", {"kind": "input-bound"}, {"share": {"value": 0.34}}),
        ("big_optimizer", {"kind": "optimizer-bound"}, {"kind": "communication-bound"}),
        ("clean_ddp", {"kind": "communication-bound"}, {"kind": "straggler"}),
    ],
)
def test_a_row_is_graded_by_the_first_cost_that_is_of_the_job(
    name: str, right: dict[str, object], wrong: dict[str, object]
) -> None:
    assert holds(name, **right)
    assert not holds(name, **{**right, **wrong})


def test_the_edits_for_traceml_leave_the_wait_for_data_outside_of_its_step() -> None:
    edited = edited_for_traceml((JOBS / "watched.py").read_text())
    assert edited is not None
    loop = edited.index("for inputs in DataLoader")
    assert loop < edited.index("with traceml.trace_step(model):") < edited.index("optimizer.zero_grad()")
    assert edited_for_traceml("print(1)") is None
