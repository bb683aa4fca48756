"""A trace says the same in any form that holds as much, and nothing false where it is cut."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.grids import Grid, write_grid
from tests.trace_builder import build, write_job

from stepscope.diagnose.engine import diagnose_traces
from stepscope.examples.jobs import EXAMPLES
from stepscope.records.trace_summary import TraceSummary
from stepscope.traces.job import analyse_job

IDS = ("correlation", "External id", "stream", "device", "context", "Sequence number")

JOBS: dict[str, Callable[[Path], object]] = {
    "ddp": lambda folder: write_job(build(world=2, steps=3), folder),
    "grid": lambda folder: write_grid(Grid(stages=2, replicas=2, micro_batches=3, steps=3, slow={3: 1.6}), folder),
    "lost kernels": EXAMPLES["unfit"].write,
}


def _changed(text: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(text)
    for event in document["traceEvents"]:
        change(event)
    return json.dumps(document).encode()


def _texts(event: dict[str, Any]) -> None:
    for holder, keys in ((event, ("pid", "tid", "id")), (event.get("args", {}), IDS)):
        holder.update({key: str(holder[key]) for key in keys if isinstance(holder.get(key), int)})


def _nan(event: dict[str, Any]) -> None:
    event.setdefault("args", {})["est. achieved occupancy %"] = math.nan


ABSENT = {
    "python-overhead",
    "launch-bound",
    "queued-idle",
    "long-gap",
    "low-mfu",
    "no-communication",
    "pipeline-imbalance",
}
"""Rules that speak of what is not there."""

FORMS: dict[str, Callable[[bytes], bytes]] = {
    "packed twice": lambda text: gzip.compress(gzip.compress(text, 1), 1),
    "with a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "ids as texts": lambda text: _changed(text, _texts),
    "NaN": lambda text: _changed(text, _nan),
}


def said(summary: TraceSummary) -> object:
    """Everything but the files and what was odd in them."""
    ranks = [replace(p, facts=replace(p.facts, file="", size_bytes=0, event_count=0), notes=()) for p in summary.ranks]
    findings = [(f.rule, f.title, f.evidence, f.stake_fraction) for f in diagnose_traces(summary).findings]
    return replace(summary, ranks=tuple(ranks), notes=()), findings


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "traces"
    JOBS[request.param](folder)
    return folder


def rewritten(job: Path, folder: Path, form: Callable[[bytes], bytes]) -> Path:
    folder.mkdir()
    for file in job.iterdir():
        (folder / file.name).write_bytes(form(file.read_bytes()))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_holds_as_much_says_the_same(form: str, job: Path, tmp_path: Path) -> None:
    assert said(analyse_job(rewritten(job, tmp_path / "traces", FORMS[form]))) == said(analyse_job(job))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_cut_file_names_no_cause_that_the_whole_does_not_have(share: float, job: Path, tmp_path: Path) -> None:
    cut = analyse_job(rewritten(job, tmp_path / "traces", lambda text: text[: round(share * len(text))]))
    whole = {finding.rule for finding in diagnose_traces(analyse_job(job)).findings}
    assert {finding.rule for finding in diagnose_traces(cut).findings} & ABSENT <= whole
    assert {note.kind for p in cut.ranks for note in p.notes} >= {"truncated"}
