"""Several ranks or devices in one file: told apart, or a fact of quality that takes their figures away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trace_builder import Job, build, rank_text, write_job
from tests.trace_layout import write

from stepscope.diagnose.engine import diagnose_traces
from stepscope.records.trace_summary import TraceSummary
from stepscope.traces.job import analyse_captures, analyse_job
from stepscope.traces.load import load_traces
from stepscope.traces.sections import Wanted

WORLD = 3
HOST, DEVICE = 5000, 0

Pid = Callable[[int, bool], int | str]
"""Id of a process in the joined file, by (rank, whether it is the device's)."""


@pytest.fixture(scope="module")
def job() -> Job:
    return build(world=WORLD, steps=7, late={1: 300_000})


def joined(job: Job, path: Path, pid: Pid, *, apart: int = 1_000_000, device: Callable[[int], int] = lambda _: 0,
           names: str = "") -> Path:  # fmt: skip
    """All ranks' events in one file behind the header of rank 0. apart: what numbers of launches are moved by for a rank."""
    document: dict[str, Any] = {}
    events = []
    for rank in range(WORLD):
        one = json.loads(rank_text(job, rank))
        document = document or one
        for event in one["traceEvents"]:
            args = event.get("args", {})
            on_device = event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
            if "device" in args:
                args["device"] = device(rank)
            for key in ("correlation", "External id"):
                if key in args:
                    args[key] += apart * rank
            if event.get("name") == "process_name" and names:
                args["name"] = names.format(rank)
            event["pid"] = pid(rank, on_device)
            events.append(event)
    document["traceEvents"] = events
    document.get("distributedInfo", {}).pop("rank", None)
    return write(path, json.dumps(document))


def budgets(summary: TraceSummary) -> list[tuple[int, Any]]:
    return [(p.facts.rank, p.budget.parts if p.budget is not None else None) for p in summary.ranks]


FORMS: dict[str, dict[str, Any]] = {
    "devices": {"pid": lambda rank, on_device: rank if on_device else HOST + rank, "device": lambda rank: rank},
    "one device each": {"pid": lambda rank, on_device: 100_000 * rank + (0 if on_device else HOST)},
    "one device number": {"pid": lambda rank, on_device: DEVICE if on_device else HOST + rank},
    "launches numbered alike": {"pid": lambda rank, on_device: rank if on_device else HOST + rank, "apart": 0,
                                "device": lambda rank: rank},
    "one device, called as the last": {"pid": lambda rank, on_device: DEVICE if on_device else HOST + rank,
                                       "names": "rank {}: python"},
    "ids as text": {"pid": lambda rank, on_device: f"[TP{rank}] {0 if on_device else HOST}", "apart": 0},
    "names": {"pid": lambda rank, on_device: 10 * rank + on_device, "apart": 0, "names": "rank {}: python"},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sections", [None, frozenset({"budget"})])
def test_ranks_of_one_file_are_those_of_their_own_files(
    job: Job, tmp_path: Path, form: str, sections: frozenset[str] | None
) -> None:
    wanted = Wanted() if sections is None else Wanted(sections=sections)
    whole = analyse_job(write_job(job, tmp_path / "apart"), wanted)
    one = analyse_job(joined(job, tmp_path / "one.json", **FORMS[form]), wanted)
    assert budgets(one) == budgets(whole)
    assert [fact.kind for fact in one.quality if fact.kind == "divided"] == ["divided"] * WORLD
    assert not any(fact.matters for fact in one.quality)
    (note,) = [note for p in one.ranks for note in p.notes if note.kind == "divided"]
    assert note.text.startswith("3 ranks in one file, separated by")
    if sections is None:
        assert one.stragglers is not None
        assert whole.stragglers is not None
        assert one.stragglers == whole.stragglers
        assert [s.rank for s in one.stragglers.stragglers] == [1]


def test_ranks_that_nothing_tells_apart_have_no_figures(job: Job, tmp_path: Path) -> None:
    file = joined(job, tmp_path / "one.json", pid=lambda rank, on_device: 0 if on_device else HOST + rank, apart=0)
    summary = analyse_job(file)
    assert [(fact.kind, fact.count) for fact in summary.quality] == [("ranks-together", WORLD)]
    assert summary.ranks[0].budget is None
    assert [finding.rule for finding in diagnose_traces(summary).findings] == ["unfit-trace"]


def one_process(job: Job, path: Path, names: str = "") -> Path:
    return joined(
        job, path, pid=lambda rank, on_device: rank if on_device else HOST, device=lambda rank: rank, names=names
    )


@pytest.mark.parametrize("names", ["", "rank {}: python"])
def test_devices_of_one_process_are_told_apart_where_the_file_is_alone(job: Job, tmp_path: Path, names: str) -> None:
    file = one_process(job, tmp_path / "one.json", names)
    whole, one = analyse_job(write_job(job, tmp_path / "apart")), analyse_job(file)
    assert budgets(one) == budgets(whole)
    assert [rank.rank for rank in load_traces(file).ranks] == [0, 1, 2]
    assert any("3 devices in one process" in note.text for p in one.ranks for note in p.notes)
    one_process(job, tmp_path / "two" / "rank0.json")
    one_process(job, tmp_path / "two" / "rank1.json")
    both = analyse_job(tmp_path / "two")
    assert [(fact.kind, fact.rank) for fact in both.quality] == [("devices-together", 0), ("devices-together", 1)]


def test_a_device_that_a_process_touches_is_none_of_its_own(job: Job, tmp_path: Path) -> None:
    document = json.loads(rank_text(job, 1))
    kernel = next(event for event in document["traceEvents"] if event.get("cat") == "kernel")
    document["traceEvents"].append({**kernel, "pid": 7, "dur": 1, "args": {**kernel["args"], "device": 7}})
    write(tmp_path / "rank1.json", json.dumps(document))
    (summary,) = analyse_captures(tmp_path).values()
    assert [p.facts.rank for p in summary.ranks] == [1]


def test_a_joined_file_beside_the_ranks_own_is_left_out(job: Job, tmp_path: Path) -> None:
    folder = write_job(job, tmp_path / "job")
    whole = analyse_job(folder)
    joined(job, folder / "joined.json", **FORMS["names"])
    (summary,) = analyse_captures(folder).values()
    assert budgets(summary) == budgets(whole)
    assert any("joined.json: left out" in note.text for note in summary.notes)
