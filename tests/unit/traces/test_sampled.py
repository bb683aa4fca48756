"""Steps that a window recorded for shapes alone: they give them to the steps before where all agree, and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.traces.events import NONE, RankTrace, RankView
from stepscope.traces.load import load_file
from stepscope.traces.marks import step_marks
from stepscope.traces.rule_facts import step_flop

STEP_US, FIRST = 1000.0, 12
LIGHT, SAMPLED = range(8, FIRST), range(FIRST, FIRST + 2)


def _op(name: str, ts: float, dims: Any = None) -> dict[str, Any]:
    args = {} if dims is None else {"Input Dims": dims, "Input type": ["float"] * len(dims)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 10.0, "args": args}


def _trace(folder: Path, *, lengths: tuple[int, int] = (64, 64), extra: int | None = None, sent: int = 8) -> RankTrace:
    """Steps of two products and a collective; lengths: rows of the products in the sampled steps.

    extra: a step before that calls one product more.
    """
    events = []
    for number in (*LIGHT, *SAMPLED):
        at = number * STEP_US
        rows = lengths[number - FIRST] if number in SAMPLED else None
        wide = STEP_US * (3.0 if number in SAMPLED else 0.9)
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "ts": at,
             "dur": min(wide, STEP_US - 1)}
        )  # fmt: skip
        for call in range(2 + (number == extra)):
            dims = None if rows is None else [[rows, 16], [16, 4 + call]]
            events.append(_op("aten::mm", at + 20 + 20 * call, dims))
        events.append(_op("c10d::allreduce_", at + 200, None if rows is None else [[sent]]))
    profile = {"window": 1, "collect": [], "sampled": ["shapes"], "sampled_from": FIRST}
    path = folder / "rank-0.json"
    path.write_text(json.dumps({"stepscope.profile": json.dumps(profile), "traceEvents": events}))
    return load_file(path)


def _shapes(trace: RankTrace, name: str) -> list[str | None]:
    events = trace.events
    return [
        None if code == NONE else events.shapes[code].dims
        for at, code in enumerate(events.shape.tolist())
        if events.name_of(at) == name
    ]


def test_steps_recorded_for_shapes_have_no_time_and_give_them(tmp_path: Path) -> None:
    trace = _trace(tmp_path)
    assert step_marks(trace.events).numbers.tolist() == list(LIGHT)
    assert int(trace.events.end_ns.max()) < FIRST * STEP_US * 1000
    assert _shapes(trace, "aten::mm") == ["[[64, 16], [16, 4]]", "[[64, 16], [16, 5]]"] * len(LIGHT)
    assert _shapes(trace, "c10d::allreduce_") == ["[[8]]"] * len(LIGHT)
    assert step_flop(RankView(trace)) == 2 * 64 * 16 * (4 + 5)


def test_steps_of_different_lengths_give_no_shape_of_what_computes(tmp_path: Path) -> None:
    trace = _trace(tmp_path, lengths=(64, 96))
    assert set(_shapes(trace, "aten::mm")) == {None}
    assert set(_shapes(trace, "c10d::allreduce_")) == {"[[8]]"}
    assert not step_flop(RankView(trace))


@pytest.mark.parametrize("step", [LIGHT[0], LIGHT[-1]])
def test_flop_of_a_step_are_not_those_of_steps_that_call_less(tmp_path: Path, step: int) -> None:
    trace = _trace(tmp_path, extra=step)
    assert _shapes(trace, "aten::mm") == [None] * (2 * len(LIGHT) + 1)
    assert _shapes(trace, "c10d::allreduce_") == ["[[8]]"] * len(LIGHT)
    assert not step_flop(RankView(trace))
