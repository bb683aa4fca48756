"""Every end of a job and of a cell is judged as it was kept: ends.jsonl has what it was judged from (jobs/README.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from tests.corpus.capturing import cell_answer, plain

from stepscope.launch.ends.cell import cell_evidence, cell_status
from stepscope.launch.ends.job import EndFacts, job_end
from stepscope.launch.hang_watch import explain
from stepscope.records.nccl import FlightDump
from stepscope.records.profile import Deadline, JobEnd
from stepscope.records.samples import Heartbeat, RankError
from stepscope.results.ends.evidence import RankCalls
from stepscope.results.ends.judge import judge
from stepscope.results.ends.stacks import LeftState, Standing
from stepscope.results.profiled_job import end_sentence

Given = dict[str, Any]


def _mapping(pairs: list[list[Any]] | Mapping[str, Any], kind: Any = Any) -> dict[Any, Any]:
    """Of [key, value]; an empty one is {}, keys of several parts are tuples."""
    made = pairs.items() if isinstance(pairs, Mapping) else pairs
    return {tuple(key) if isinstance(key, list) else key: msgspec.convert(value, kind) for key, value in made}


def _job(given: Given) -> Any:
    kinds = get_type_hints(EndFacts)
    keyed = {"gone_ns": _mapping(given["gone_ns"]), "left": _mapping(given["left"], LeftState)}
    running = {"running": {(host, pid) for host, pid in given["running"]}}
    rest = {name: value for name, value in given.items() if name not in (*keyed, *running)}
    return job_end(
        EndFacts(**{name: msgspec.convert(value, kinds[name]) for name, value in rest.items()}, **keyed, **running)
    )


def _cell(given: Given) -> Any:
    evidence = cell_evidence(
        errors=msgspec.convert(given["errors"], list[RankError]),
        heartbeats=msgspec.convert(given["heartbeats"], list[Heartbeat]),
        codes=_mapping(given["codes"]),
        finished=frozenset(given["finished"]),
        world_size=given["world_size"],
        deadline=msgspec.convert(given.get("deadline"), Deadline | None),
        seen_first=given.get("seen_first"),
        last_words=_mapping(given.get("last_words", {})),
        calls=msgspec.convert(given.get("calls"), RankCalls | None),
    )
    return cell_answer(cell_status(judge(evidence), "c"))


def _hang(given: Given) -> Any:
    return explain(
        steps=_mapping(given["steps"]),
        dumps=msgspec.convert(given["dumps"], list[FlightDump]),
        stacks=_mapping(given["stacks"], Standing),
        world_size=given["world_size"],
        silent_s=given["silent_s"],
        hosts=_mapping(given["hosts"]),
    )


JUDGES = {"job": _job, "cell": _cell, "hang": _hang}
FILES = ("ends.jsonl", "ends_by_hand.jsonl")
KEPT = [json.loads(line) for name in FILES for line in Path(__file__).with_name(name).read_text().splitlines()]


@pytest.mark.parametrize(
    "kept", [pytest.param(each, id=f"{each['kind']}-{each['name']}-{at}") for at, each in enumerate(KEPT)]
)
def test_an_end_is_judged_as_it_was_kept(kept: Given) -> None:
    judged = JUDGES[kept["kind"]](kept["given"])
    answer = plain(judged)
    assert {name: answer[name] for name in kept["answer"]} == kept["answer"]
    if "sentence" in kept:
        assert isinstance(judged, JobEnd)
        assert end_sentence(judged) == kept["sentence"]
