"""What each rank's collectives are called, moved and cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.communications import collective
from tests.communications import rank as communicating
from tests.trace_builder import build, write_job

from stepscope.records.trace_collectives import IDLE_CAUSES, RankCollective
from stepscope.traces.collective_calls import (
    inputs_of,
    op_named,
    whole_of_launch,
)
from stepscope.traces.collectives import communication
from stepscope.traces.events import RankView, Shapes
from stepscope.traces.groups import ranks_in
from stepscope.traces.load import load_traces
from stepscope.traces.waiting import job_collectives


@pytest.mark.parametrize(
    ("spelling", "op"),
    [
        ("_allgather_base", "all_gather"),
        ("c10d::allreduce_", "all_reduce"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("gloo:all_to_all", "all_to_all"),
        ("all_to_allv", "all_to_all_v"),
        ("nccl:send 0->1", "send_recv"),
        ("c10d::barrier", "barrier"),
        ("nccl:coalesced", None),
        ("init", None),
    ],
)
def test_callers_spell_an_op_in_many_ways(spelling: str, op: str | None) -> None:
    assert op_named(spelling) == op


@pytest.mark.parametrize(
    ("op", "dims", "types", "elements"),
    [
        ("all_reduce", "[[[4, 5], [6]], [], []]", '["TensorList", "", ""]', 26),
        ("all_gather", "[[2000], [1000], []]", '["float", "float", ""]', 2000),
        ("all_gather", "[[], [[1000]], []]", '["", "TensorList", ""]', 8000),  # list of lists: not recorded
        ("reduce_scatter", "[[1000], [8000]]", '["float", "float"]', 8000),
        ("reduce_scatter", "[[[1000]], [], []]", '["TensorList", "", ""]', 8000),
        ("all_to_all", "[[768], [3392], []]", '["int", "int", ""]', 3392),
        ("all_reduce", "[[]]", '["float"]', 1),  # a scalar tensor
        ("all_reduce", "[[]]", '[""]', None),
        ("all_reduce", "not json", "", None),
    ],
)
def test_s_from_recorded_inputs(op: str, dims: str, types: str, elements: int | None) -> None:
    assert whole_of_launch(op, inputs_of(Shapes(dims=dims, types=types)), 8) == elements


def test_a_shortened_list_of_ranks_is_not_taken_for_the_whole() -> None:
    assert ranks_in("[0, 1, 2]") == (0, 1, 2)
    assert ranks_in("[0, 1, 2, 3, ...]") is None


@pytest.mark.parametrize("shape", ["ddp", "fsdp", "tensor"])
def test_exposed_parts_sum_to_the_planted_exposure_of_the_rank(tmp_path: Path, shape: str) -> None:
    job = build(shape=shape, world=2, steps=3, late={1: 150_000})
    for trace in load_traces(write_job(job, tmp_path)).ranks:
        found = communication(RankView(trace)).collectives
        assert len(found) == sum(trace.rank in c.starts_ns for c in job.collectives)
        assert sum(c.exposed_ns for c in found) == job.truth[trace.rank].exposed_comm_ns
        for c in found:
            assert sum(h.hidden_ns for h in c.hidden_under) == c.duration_ns - c.exposed_ns
            _parts_sum(c)


@pytest.mark.parametrize(
    ("kind", "cause"), [("compute", "compute"), ("launch", "host_late"), ("data", "data"), ("sync", "sync")]
)
def test_own_time_shows_why_a_rank_came_later(tmp_path: Path, kind: str, cause: str) -> None:
    job = build(world=4, steps=4, late={2: 400_000}, late_kind=kind)
    ranks = {t.rank: communication(RankView(t)).collectives for t in load_traces(write_job(job, tmp_path)).ranks}
    spent = {r: sum(getattr(c.own, f"{cause}_ns") for c in found) for r, found in ranks.items()}
    assert spent[2] >= spent[0] + 400_000
    assert spent[1] == spent[0]


def test_gloo_spans_are_named_and_timed_from_their_launches(tmp_path: Path) -> None:
    trace = load_traces(_gloo_file(tmp_path)).ranks[0]
    found = communication(RankView(trace))
    assert found.source == "cpu_spans"
    told = [(c.op, c.op_source, c.size_bytes, c.queue_ns) for c in found.collectives]
    assert told == [
        ("all_reduce", "launch", 4_000, 90_000),
        ("reduce_scatter", "launch", 8_000, 100_000),  # one gloo:all_reduce of the whole input
        ("reduce_scatter", "launch", 8_000, 50_000),  # the list form: one span per rank
        ("barrier", "launch", 0, 10_000),
        ("all_reduce", "kernel_name", 400, None),  # launched before the capture
    ]
    assert found.collectives[2].duration_ns == 250_000
    assert {c.group.name for c in found.collectives if c.group} == {"0"}


@pytest.mark.parametrize(
    ("threads", "told"),
    [
        ((31, 32, 41, 42, 51, 52), {"0", "1", "3"}),
        ((31, 34, 41, 45, 51, 52), {"0", "1", "3"}),  # other processes started threads in between
        ((41, 42, 51, 52), set()),  # the first group called nothing
        ((41, 42, 51, 54), set()),  # and the last one's workers are no neighbours: three runs of ids for three groups
        ((31, 41, 51), set()),
    ],
)
def test_gloo_groups_are_named_by_their_workers_only_where_all_of_them_worked(
    tmp_path: Path, threads: tuple[int, ...], told: set[str]
) -> None:
    config = [
        {"pg_name": name, "pg_desc": "", "backend_config": "cpu:gloo", "pg_size": len(ranks), "ranks": ranks}
        for name, ranks in (("0", [0, 1, 2, 3]), ("1", [0, 2]), ("3", [0, 1]))
    ]
    spans = [
        _event("gloo:all_reduce", "user_annotation", tid, 10 * n, 5, **{"Input Dims": [[8]], "Input type": ["float"]})
        for n, tid in enumerate(threads)
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 4, "pg_count": 3, "pg_config": config}
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": spans}))
    found = communication(RankView(load_traces(path).ranks[0])).collectives
    names = [c.group.name for c in found if c.group]
    assert names == sorted(name for name in told for _ in range(2))


def test_a_trace_without_communication_has_no_collectives(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"traceEvents": [_event("aten::mm", "cpu_op", 1, 0, 10)]}))
    assert communication(RankView(load_traces(path).ranks[0])).collectives == ()
    empty = tmp_path / "rank-1.json"
    empty.write_text(json.dumps({"traceEvents": []}))
    assert communication(RankView(load_traces(empty).ranks[0])).collectives == ()


def _nccl_file(folder: Path, config: list[dict[str, Any]], *, args: dict[str, Any] | None = None) -> Path:
    """Rank 0 of 8: one collective of each kind, 1 ms each; S is 8,000,000 bytes of a pair's or of the world's group."""
    half, whole, types = [[1_000_000], [2_000_000], []], [[2_000_000], [1_000_000], []], ["float", "float", ""]
    planted = [
        ("_allgather_base_", "AllGather_RING_LL", whole), ("_reduce_scatter_base_", "ReduceScatter_Sum_f32_RING_LL", half),
        ("allreduce_", "AllReduce_Sum_f32_RING_LL", [[[2_000_000]], [], []]),
    ]  # fmt: skip
    events = []
    for i, (operator, kernel, dims) in enumerate(planted):
        at = 2000.0 * i
        shapes = {"Input Dims": dims, "Input type": types}
        events += [
            _event(f"c10d::{operator}", "cpu_op", 7, at, 20, **shapes),
            _event("cudaLaunchKernel", "cuda_runtime", 7, at + 2, 3, correlation=i + 1),
            _event(f"ncclDevKernel_{kernel}(x)", "kernel", 9, at + 50, 1000, correlation=i + 1,
                   **({"Collective name": operator, **args} if args else {})),
        ]  # fmt: skip
    info = {"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": len(config), "pg_config": config}
    path = folder / "rank-0.json"
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return path


_WORLD = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, "ranks": list(range(8))}


@pytest.mark.parametrize("config", [[], [_WORLD], [_WORLD, {**_WORLD, "pg_name": "1", "pg_size": 2, "ranks": [0, 1]}]])
def test_shapes_tell_the_size_of_a_group_that_nothing_names(tmp_path: Path, config: list[dict[str, Any]]) -> None:
    """Whole buffers of twice the part are a pair's, whatever the world: its factor is 1/2, not 7/8."""
    job = job_collectives([communication(RankView(t)) for t in load_traces(_nccl_file(tmp_path, config)).ranks])
    found = {m.op: m for m in job.instances}
    for op in ("all_gather", "reduce_scatter"):
        assert (found[op].group_size, found[op].size_bytes, found[op].group) == (2, 8_000_000, None)
        assert found[op].busbw_bytes_per_s == pytest.approx(4e9)
    # an all_reduce has no such shapes: the only group there is stands for it, else its size is unknown and there is no bound
    only = len(config) == 1
    assert found["all_reduce"].group_size == (8 if only else None)
    assert (found["all_reduce"].busbw_bytes_per_s is None) is not only
    assert found["all_reduce"].complete is False


def test_a_recorded_group_size_counts_more_than_shapes(tmp_path: Path) -> None:
    path = _nccl_file(tmp_path, [_WORLD], args={"Group size": 4})
    job = job_collectives([communication(RankView(t)) for t in load_traces(path).ranks])
    assert {m.group_size for m in job.instances} == {4}
    assert {m.group for m in job.instances} == {None}


def test_a_collective_that_all_ranks_are_seen_in_is_the_worlds() -> None:
    ranks = [communicating(r, [collective("all_reduce", 1000, 2000)], world_size=2) for r in range(2)]
    assert [m.group_size for m in job_collectives(ranks).instances] == [2]


def _parts_sum(c: RankCollective) -> None:
    own = c.own
    idle = sum(getattr(own, f"{cause}_ns") for cause in IDLE_CAUSES)
    assert own.own_ns == own.compute_ns + own.memory_ns + idle
    assert own.idle_ns == idle


def _event(name: str, cat: str, tid: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _gloo_file(folder: Path) -> Path:
    def launch(op: str, ts: float, dims: Any, types: list[str]) -> dict[str, Any]:
        return _event(f"c10d::{op}", "cpu_op", 7, ts, 20, **{"Input Dims": dims, "Input type": types})

    def span(op: str, tid: int, ts: float, dur: float, elements: int | None) -> dict[str, Any]:
        args = {} if elements is None else {"Input Dims": [[elements]], "Input type": ["float"]}
        return _event(f"gloo:{op}", "user_annotation", tid, ts, dur, **args)

    events = [
        span("all_reduce", 31, 5, 60, 100),
        launch("allreduce_", 1000, [[[1000]], [], []], ["TensorList", "", ""]),
        launch("_reduce_scatter_base_", 1010, [[1000], [2000], []], ["float", "float", ""]),
        span("all_reduce", 31, 1090, 400, 1000),
        span("all_reduce", 32, 1110, 300, 2000),
        launch("reduce_scatter_", 2000, [[[1000]], [], []], ["TensorList", "", ""]),
        span("all_reduce", 31, 2050, 200, 1000),
        span("all_reduce", 32, 2060, 240, 1000),
        launch("barrier", 3000, [[1], []], ["unsigned char", ""]),
        span("barrier", 31, 3010, 90, None),
    ]
    config = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "pg_size": 2, "ranks": [0, 1]}]
    info = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_count": 1, "pg_config": config}
    # The first span comes from before the capture: it is moved behind the others so that none is its launch.
    events[0]["ts"] = 5000.0
    path = folder / "rank-0.json"
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return path
