from __future__ import annotations

from tests.comm_rows import MIB, collective
from tests.evidence import evidence

from stepscope.diagnose.rules.wrong_results import RULE
from stepscope.records.finding import Skipped


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


def test_unchecked_is_neither_right_nor_wrong() -> None:
    outcome = RULE.check(evidence(comm=(collective(MIB, 100, correct=None),)))
    assert isinstance(outcome, Skipped)
    assert outcome.command is not None
    assert outcome.command.endswith("--check")
