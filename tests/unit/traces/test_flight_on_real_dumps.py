"""Dumps of 16 ranks of which two were broken on purpose: both are found, and nobody else is blamed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stepscope.store.importers.flight_recorder import FlightFolder, read_folder
from stepscope.traces.flight import compare, culprits, summary

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "flight_recorder"
SETS = ("gpu_error_1st", "lock_gil_1st")

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there"),
]


def load(name: str) -> FlightFolder:
    return read_folder(DATA / name)


def broken_on_purpose(name: str) -> tuple[int, ...]:
    text = (DATA / name / "fault_injection.log").read_text()
    match = re.search(r"Fault ranks: (\[.*\])", text)
    assert match is not None
    return tuple(json.loads(match[1]))


@pytest.mark.parametrize("name", SETS)
def test_every_file_is_read_or_refused_with_a_reason(name: str) -> None:
    folder = load(name)
    assert [d.rank for d in folder.dumps] == list(range(16))
    assert {Path(r.path).name for r in folder.refused} == {"fault_injection.log", "upstream_reference.txt"}
    assert all("is neither a pickle nor a JSON object" in r.reason for r in folder.refused)


@pytest.mark.parametrize("name", SETS)
def test_the_causes_name_exactly_the_ranks_that_were_broken(name: str) -> None:
    assert culprits(compare(load(name).dumps, world_size=16)) == broken_on_purpose(name)


@pytest.mark.parametrize("name", SETS)
def test_no_mismatch_is_seen_where_none_was_planted(name: str) -> None:
    assert not [f for f in compare(load(name).dumps, world_size=16) if "mismatch" in f.kind]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("lost", [0, 5, 8, 15])
def test_with_a_healthy_ranks_dump_lost_no_other_healthy_rank_is_blamed(name: str, lost: int) -> None:
    dumps = [d for d in load(name).dumps if d.rank != lost]
    findings = compare(dumps, world_size=16)
    assert set(culprits(findings)) == set(broken_on_purpose(name))
    assert any(f.kind == "incomplete_dump" and lost in f.ranks for f in findings)


def test_ranks_whose_interpreter_was_locked_never_called_the_collective_the_others_wait_in() -> None:
    first = compare(load("lock_gil_1st").dumps, world_size=16)[0]
    assert (first.kind, first.group, first.sequence, first.ranks) == ("missing_call", "72", 45265, (9, 14))
    assert first.waiting == (8, 10, 11, 12, 13, 15)
    assert first.expected == "all_to_all [2048, 5120] bfloat16", "as in upstream_reference.txt"


def test_ranks_whose_device_was_broken_are_stuck_in_what_the_others_finished() -> None:
    findings = compare(load("gpu_error_1st").dumps, world_size=16)
    (experts,) = [f for f in findings if f.group == "74" and f.cause]
    assert (experts.kind, experts.ranks, experts.called) == ("stuck_inside", (12, 14), (12, 13, 14, 15))
    (missing,) = [f for f in findings if f.group == "74" and not f.cause]
    assert (missing.kind, missing.ranks) == ("missing_call", (12,)), "all that upstream_reference.txt has"
    text = summary(findings)
    assert text is not None
    assert "rank 12 is stuck" in text
    assert "rank 14 is stuck" in text
