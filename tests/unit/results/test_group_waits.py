"""Whom the ranks of a job wait for, by process group and operation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.diaries import MS, START_UNIX_NS, job, write_diary, write_record

from stepscope.diagnose.narrator import by_group
from stepscope.records.finding import JobVerdict
from stepscope.results.diary import JobSteps
from stepscope.results.group_waits import group_waits
from stepscope.store.layout import ProfileLayout

STEPS = 40


def _group(name: str, ranks: Sequence[int], **ms: float) -> dict[str, Any]:
    """ms: of an operation, a step."""
    operations = {each: [2 * STEPS, int(value * MS * STEPS)] for each, value in ms.items()}
    return {"name": name, "ranks": list(ranks), "operations": operations}


def _steps(folder: Path, of_rank: Mapping[int, Sequence[dict[str, Any]]], *, comm_ms: float = 10.0) -> JobSteps:
    for rank, groups in of_rank.items():
        columns = {"forward": [5.0] * STEPS, "backward": [10.0] * STEPS, "comm": [comm_ms] * STEPS}
        path = write_diary(folder, columns, rank=rank, world_size=len(of_rank), start_unix_ns=START_UNIX_NS)
        document = {"schema": "stepscope.rank_groups/1", "rank": rank, "steps": STEPS, "groups": groups}
        ProfileLayout.groups_of(path).write_text(json.dumps(document))
    steps = job(write_record(folder)).steps
    assert steps is not None
    return steps


def _mesh(rank: int, tp_ms: float, dp_ms: float) -> list[dict[str, Any]]:
    pair, column = (rank // 2 * 2, rank // 2 * 2 + 1), (rank % 2, rank % 2 + 2)
    return [_group("mesh_tp", pair, all_reduce=tp_ms), _group("mesh_dp", column, all_gather=dp_ms)]


def test_groups_of_one_name_are_one_and_waiting_is_for_the_last_of_each(tmp_path: Path) -> None:
    tp = {0: 6.0, 1: 2.0, 2: 4.0, 3: 4.0}
    tp_waits, dp_waits = group_waits(_steps(tmp_path, {rank: _mesh(rank, ms, 10.0 - ms) for rank, ms in tp.items()}))
    assert (tp_waits.group, tp_waits.operation) == ("dp", "all_gather")
    assert (tp_waits.ranks, tp_waits.of_ranks, tp_waits.calls) == (2, 4, 2.0)
    assert tp_waits.ns == pytest.approx(6.0 * MS)
    assert dp_waits.ns == pytest.approx(4.0 * MS)
    assert dp_waits.waiting_ns == pytest.approx((6 - 2) / 4 * MS)  # ranks 0 and 1; 2 and 3 wait equally long
    assert tp_waits.waiting_ns == pytest.approx((8 - 6 + 6 - 4) / 4 * MS)


def test_they_add_up_to_the_exposed_communication_of_timed_steps(tmp_path: Path) -> None:
    found = group_waits(_steps(tmp_path, {rank: _mesh(rank, 5.0, 9.0) for rank in range(4)}))
    assert sum(each.ns for each in found) == pytest.approx(10.0 * MS)


def test_messages_have_no_rank_that_came_last(tmp_path: Path) -> None:
    groups = [_group("default_pg", (0, 1), recv=8.0, send=2.0)]
    found = group_waits(_steps(tmp_path, {0: groups, 1: groups}))
    assert {each.operation: each.waiting_ns for each in found} == {"recv": None, "send": None}
    assert {each.group for each in found} == {"all ranks"}


@pytest.mark.parametrize(
    ("name", "ranks", "said"),
    [
        ("mesh_tp", (0,), "tp"),
        ("mesh_dim_0", (0,), "mesh_dim_0"),
        ("default_pg", (0, 1), "all ranks"),
        ("undefined", (0, 1), "all ranks"),
        ("", (0,), "1 rank without a name"),
        ("", (), "unknown"),
        ("my group", (1,), "my group"),
    ],
)
def test_a_group_is_called_as_its_user_does(tmp_path: Path, name: str, ranks: Sequence[int], said: str) -> None:
    groups = [_group(name, ranks, all_reduce=4.0), _group("other", (0, 1), all_reduce=6.0)]
    assert said in {each.group for each in group_waits(_steps(tmp_path, {0: groups, 1: groups}))}


def test_a_rank_of_a_group_that_is_not_known_leaves_waiting_open(tmp_path: Path) -> None:
    groups = {rank: _mesh(rank, 4.0, 6.0) for rank in range(4)}
    groups[3] = groups[3][:1]
    found = {each.group: each for each in group_waits(_steps(tmp_path, groups))}
    assert found["dp"].waiting_ns is None
    assert found["tp"].waiting_ns == pytest.approx(0.0)


@pytest.mark.parametrize("groups", [[], [_group("default_pg", (0, 1), all_reduce=9.0)]])
def test_one_group_in_one_operation_is_no_division(tmp_path: Path, groups: list[dict[str, Any]]) -> None:
    assert group_waits(_steps(tmp_path, {0: groups, 1: groups})) == ()


def test_the_line_names_groups_longest_first_and_operations_where_there_is_one_group(tmp_path: Path) -> None:
    groups = [_group("mesh_tp", (0, 1), all_reduce=3.0), _group("mesh_dp", (0, 1), all_gather=4.0, reduce_scatter=3.0)]
    verdict = JobVerdict(kind="compute-bound", confidence="", headline="")
    assert by_group(verdict) == ()
    (line,) = by_group(_with(verdict, _steps(tmp_path / "a", {0: groups, 1: groups})))
    assert line.index("dp 7.00 ms") < line.index("all_gather 4.00 ms") < line.index("tp 3.00 ms")
    (line,) = by_group(_with(verdict, _steps(tmp_path / "b", {0: groups[1:], 1: groups[1:]})))
    assert "dp" not in line
    assert "reduce_scatter" in line


def _with(verdict: JobVerdict, steps: JobSteps) -> JobVerdict:
    from dataclasses import replace

    return replace(verdict, groups=group_waits(steps))
