from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests import fake_runs
from tests.evidence import evidence

from stepscope.diagnose.rules.hang import RULE
from stepscope.records import codec
from stepscope.records.cell import CellStatus, RunRecord
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.records.imported import Sign
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.records.nouns import Status
from stepscope.results.evidence import Evidence, Source
from stepscope.results.open import load_evidence
from stepscope.results.runs import folder_runs
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record
from stepscope.traces.flight import compare_dumps

DATA = Path(__file__).parents[4].parent / "shared" / "data" / "flight_recorder"


def dump(rank: int, *states: str, ranks: int = 4) -> FlightDump:
    """One rank's all_reduces of 1024 floats in the default group, in these states."""
    entries = tuple(
        FlightEntry(
            record_id=number, group="0", sequence=number + 1, op="all_reduce", name="nccl:all_reduce",
            input_sizes=((1024,),), input_dtypes=("float32",), output_sizes=((1024,),), output_dtypes=("float32",),
            state=state,
        )
        for number, state in enumerate(states)
    )  # fmt: skip
    group = FlightGroup(
        name="0", description="default_pg", ranks=tuple(range(ranks)), last_enqueued=len(states),
        last_completed=sum(s == "completed" for s in states),
    )  # fmt: skip
    return FlightDump(rank=rank, entries=entries, groups=(group,), kept="all", world_size=ranks)


def of(*dumps: FlightDump) -> Evidence:
    found = evidence(flight=compare_dumps(dumps))
    source = Source(path=Path("dumps"), kind="imported", format="flight_recorder")
    return Evidence(sources=(source,), flight=found.flight)


def fired(outcome: object) -> tuple[Finding, ...]:
    assert isinstance(outcome, tuple)
    return outcome


DONE, WAITS = ("completed", "completed"), ("completed", "completed", "started")


def test_the_rank_that_never_came_is_named_with_the_collective() -> None:
    (found,) = fired(RULE.check(of(dump(0, *WAITS), dump(1, *WAITS), dump(2, *DONE), dump(3, *WAITS))))
    assert found.title.startswith("rank 2 never entered collective 3 of default_pg: all_reduce")
    assert found.subject == "rank 2"
    assert "3 ranks waiting there: 0, 1 and 3" in found.evidence
    assert found.advice[0].text == "see what rank 2 does instead"


def test_a_rank_inside_what_the_others_left_is_stuck() -> None:
    out = (*DONE, "completed")
    (found,) = fired(RULE.check(of(dump(0, *out), dump(1, *WAITS), dump(2, *out), dump(3, *out))))
    assert found.title.startswith("rank 1 is stuck inside collective 3 of default_pg")


def test_a_finished_job_is_quiet() -> None:
    outcome = RULE.check(of(*(dump(rank, *DONE) for rank in range(4))))
    assert outcome == Quiet(
        rule="hang", looked_at="flight recorders of all ranks: no rank waits for a call of another rank"
    )


def test_being_behind_keeps_nobody_waiting() -> None:
    """The borderline: rank 3 has called less, and no rank is in a call that it lacks."""
    assert isinstance(RULE.check(of(*(dump(r, *DONE) for r in range(3)), dump(3, "completed"))), Quiet)


def test_without_dumps_it_says_how_to_get_them() -> None:
    outcome = RULE.check(evidence())
    assert isinstance(outcome, Skipped)
    assert outcome.command == "export TORCH_FR_BUFFER_SIZE=2000"


def test_an_interrupted_run_is_no_hang(tmp_path: Path) -> None:
    """A signal finds a healthy job's ranks inside their collectives; calls that differ are a mistake all the same."""

    def calls_of(status: Status, *dumps: FlightDump) -> Evidence:
        layout, cell = RunLayout(tmp_path / status), fake_runs.spec("a", world_size=len(dumps))
        state = CellStatus(cell_id="a", status=status, group_id="g1", reason="stopped before it finished")
        fake_runs.write_cell(layout, cell, status=state)
        write_record(layout.run, RunRecord(kind="bench", name="m", matrix={}, cells=("a",), argv=("stepscope",)))
        write_bytes(layout.results_jsonl, codec.encode_line(folder_runs(layout)[0], header=True))
        for each in dumps:
            write_bytes(layout.cell("a").flight(each.rank), codec.encode_line(each, header=True))
        return load_evidence([layout.root])

    behind = [dump(0, *WAITS, ranks=2), dump(1, *DONE, ranks=2)]
    assert fired(RULE.check(calls_of("timeout", *behind)))
    outcome = RULE.check(calls_of("interrupted", *behind))
    assert isinstance(outcome, Skipped)
    assert outcome.reason.startswith("the run was interrupted: ")


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real dumps at {DATA}")
@pytest.mark.parametrize("name", ["gpu_error_1st", "lock_gil_1st"])
def test_the_ranks_broken_on_purpose_are_named_and_no_other(name: str) -> None:
    truth = re.search(r"Fault ranks: (\[.*\])", (DATA / name / "fault_injection.log").read_text())
    assert truth is not None
    findings = fired(RULE.check(load_evidence([DATA / name])))
    named = {int(n) for f in findings for n in re.findall(r"\d+", f.subject or "")}
    assert named == set(json.loads(truth[1]))
    assert all(f.severity == "problem" for f in findings)


def test_a_log_that_agrees_says_the_operation_and_how_long_it_was_waited_for() -> None:
    values = {"sequence": "3", "op": "ALLREDUCE", "elements": "1024", "ran": "600004", "timeout": "600000"}
    signs = tuple(Sign(kind="timeout", source="a", line=1 + r, text="", rank=r, values=values) for r in (0, 1, 3))
    evidence_of = of(dump(0, *WAITS), dump(1, *WAITS), dump(2, *DONE), dump(3, *WAITS))
    (found,) = fired(RULE.check(replace(evidence_of, signs=signs)))
    (agrees,) = [line for line in found.evidence if "the log agrees" in line]
    for fact in ("ranks 0, 1 and 3", "collective 3", "all_reduce of 1,024 elements", "10 min"):
        assert fact in agrees
