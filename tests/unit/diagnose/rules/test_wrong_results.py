from __future__ import annotations

from tests.comm_rows import MIB, collective
from tests.evidence import evidence

from stepscope.diagnose.rules.wrong_results import RULE
from stepscope.records.finding import Quiet, Skipped


def test_one_wrong_size_is_a_problem_and_named() -> None:
    rows = (
        collective(MIB, 100, world_size=4),
        collective(
            4 * MIB,
            300,
            world_size=4,
            correct=False,
            status="error",
            error="wrong result on rank 2: (7, 3.0, 4.0)",
        ),
    )
    (found,) = RULE.check(evidence(comm=rows))
    assert found.severity == "problem"
    assert found.title == "all_reduce on 4 ranks gives wrong results at 1 size"
    assert found.evidence == ("4 MiB: wrong result on rank 2: (7, 3.0, 4.0)",)
    assert found.advice[1].command == "stepscope comm --ops none --pairs"


def test_nccl_and_nvidia_are_named_only_where_they_ran() -> None:
    def advice(backend: str) -> str:
        (found,) = RULE.check(evidence(comm=(collective(MIB, 100, correct=False, status="error", backend=backend),)))
        return str(found.advice)

    assert "NCCL_PROTO" in advice("nccl")
    assert "nvidia-smi" in advice("nccl")
    assert "NCCL" not in advice("gloo")
    assert "nvidia-smi" not in advice("gloo")


def test_every_sweep_is_its_own_finding() -> None:
    rows = tuple(
        collective(MIB, 100, op=op, correct=False, status="error", reduce_op=None) for op in ("all_gather", "broadcast")
    )
    assert [f.subject for f in RULE.check(evidence(comm=rows))] == [
        "all_gather on 2 ranks",
        "broadcast on 2 ranks",
    ]


def test_right_results_are_quiet_with_their_number() -> None:
    outcome = RULE.check(evidence(comm=(collective(MIB, 100), collective(2 * MIB, 190))))
    assert outcome == Quiet(rule="wrong-results", looked_at="2 sizes checked, all correct")


def test_unchecked_is_neither_right_nor_wrong() -> None:
    outcome = RULE.check(evidence(comm=(collective(MIB, 100, correct=None),)))
    assert isinstance(outcome, Skipped)
    assert outcome.command is not None
    assert outcome.command.endswith("--check")


def test_one_checked_and_right_among_unchecked_is_quiet_about_that_one() -> None:
    outcome = RULE.check(evidence(comm=(collective(MIB, 100), collective(2 * MIB, 190, correct=None))))
    assert isinstance(outcome, Quiet)
    assert outcome.looked_at.startswith("1 size checked")
