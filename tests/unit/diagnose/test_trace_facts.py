"""What rules on traces share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.trace_evidence import by_hand, kernels, traced, written

from stepscope.diagnose.commands import trace_command
from stepscope.diagnose.rule import Outcome, each_job, named
from stepscope.machine.peaks.lookup import has_matrix_units, has_tf32, peak_ratio
from stepscope.records.finding import Advice, Finding, Quiet, Skipped
from stepscope.results.evidence import TraceEvidence
from stepscope.results.open import load_evidence


def fires(stake: float, subject: str | None = None) -> Finding:
    return Finding(
        rule="r", severity="warning", title="t", evidence=("e",), stake_fraction=stake, confidence="c",
        advice=(Advice(text="a"),), subject=subject,
    )  # fmt: skip


def jobs(count: int) -> tuple[TraceEvidence, ...]:
    one = by_hand(*kernels(("gemm", 10))).traces[0].summary
    return traced(*[one] * count).traces


def looked(count: int, *outcomes: Outcome) -> Outcome:
    evidence = traced(*(j.summary for j in jobs(count)))
    answers = {f"job{i}": outcome for i, outcome in enumerate(outcomes)}
    return named("r", each_job(evidence.traces, lambda job: answers[job.name]))


def test_of_many_jobs_the_worst_speaks_for_all() -> None:
    outcome = looked(5, *[(fires(s),) for s in (0.2, 0.5, 0.1, 0.3)], Quiet(rule="r", looked_at="q"))
    assert isinstance(outcome, tuple)
    assert [(f.subject, f.stake_fraction) for f in outcome] == [("job1", 0.5)]
    assert outcome[0].evidence == ("e", "the same in 3 more of the traced jobs, from 10% of the time")


def test_captures_of_one_job_are_not_called_jobs() -> None:
    captures = [replace(job, job=Path("run")) for job in jobs(5)]
    found = each_job(captures, lambda _: (fires(0.2),))
    assert isinstance(found, tuple)
    assert found[0].evidence[-1] == "the same in 4 more of the captures, from 20% of the time"
    quiet = each_job(captures, lambda _: "q")
    assert isinstance(quiet, Quiet)
    assert quiet.looked_at.endswith("and 2 more captures")
    assert isinstance(each_job((), lambda _: "q"), Skipped)


def test_the_command_names_traces_in_folders_of_their_ranks(tmp_path: Path) -> None:
    job = written(tmp_path, world=2).traces[0]
    files = []
    for each in job.summary.ranks:
        folder = tmp_path / f"rank{each.facts.rank}"
        folder.mkdir()
        files.append(Path(each.facts.file).rename(folder / "a.json"))
    moved = load_evidence([tmp_path]).traces[0]
    assert trace_command(moved, "--show idle") == f"stepscope trace {files[0]} {files[1]} --show idle"


@pytest.mark.parametrize(
    ("device", "tf32", "units"),
    [
        ("NVIDIA A100-SXM4-80GB", True, True),
        ("NVIDIA A100-PG509-200", True, True),
        ("Tesla V100-SXM2-32GB", False, True),
        ("AMD Instinct MI300X", False, True),
        ("AMD Instinct MI250X/MI250", False, True),
        ("Tesla P100-PCIE-16GB", False, False),
        ("NVIDIA GeForce RTX 3090", True, True),
        ("Some GPU", None, None),
        (None, None, None),
    ],
)
def test_what_units_a_device_has(device: str | None, tf32: bool | None, units: bool | None) -> None:
    assert has_tf32(device, ["my_kernel"]) is tf32
    assert has_matrix_units(device, ["my_kernel"]) is units


def test_kernels_tell_where_the_device_does_not() -> None:
    assert has_tf32(None, ["ampere_sgemm_128x64_nn"])
    assert has_tf32(None, ["volta_sgemm_128x64_nn"]) is None
    assert has_matrix_units(None, ["volta_sgemm_128x64_nn"])


def test_the_ratio_of_peaks_is_unknown_for_an_unknown_part() -> None:
    assert peak_ratio("NVIDIA A100-SXM4-80GB", "fp32", "tf32") == pytest.approx(0.125)
    assert peak_ratio("NVIDIA A100-PG509-200", "fp32", "tf32") is None
    assert peak_ratio(None, "fp32", "tf32") is None
