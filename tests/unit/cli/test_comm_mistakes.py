"""Mistakes in the options of ``stepscope comm``: one message each, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Ran

from stepscope.matrix import comm_plan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ops", "all_reduc"), "did you mean 'all_reduce'"),
        (("--sizes", "1M:1K:2"), "goes from 1 MiB down to 1 KiB"),
        (("--dtype", "fp23"), "did you mean 'fp32'"),
        (("--reduce-op", "summ"), "did you mean 'sum'"),
        (("--ranks", "0"), "--ranks '0': expected whole numbers from 1"),
        (("--iters", "few"), "--iters 'few' is neither auto nor a whole number"),
        (("--mode", "async:0"), "not a number of calls"),
        (("--budget", "0s"), "not a duration above 0"),
        (("--emulate-network", "fast"), "is not an emulated network"),
        (("--backend", "glo"), "did you mean 'gloo'"),
        (("--ops", "none"), "--ops none alone measures nothing"),
        (("--plan", "--json"), "--plan does not go with --output, --json"),
        (("--json", "--format", "csv"), "both say what stdout gets"),
        (("--gpus", "3"), "has no option --gpus; did you mean --ranks?"),
        (("--iter", "3"), "has no option --iter; did you mean --iters?"),
        (("--root", "1"), "--root has no effect: none of all_reduce has a root"),
        (("--pattern", "bi"), "--pattern has no effect"),
        (("--ops", "broadcast", "--reduce-op", "max"), "--reduce-op has no effect: none of broadcast reduces"),
        (("--iters", "9", "--ci", "0.1"), "--ci has no effect: --iters says how many calls are timed"),
        (("--ops", "none", "--matmul", "--overlap"), "--overlap has no effect: --ops none calls no collective"),
        (("--backend", "gloo", "--nccl-debug", "all"), "--nccl-debug: the ranks talk over gloo"),
        (
            ("--ops", "broadcast", "--root", "5", "--ranks", "2"),
            "root 5: there are 2 ranks fix: choose a --root below 2",
        ),
        (("--dtype", "int32", "--reduce-op", "avg"), "avg of int32: integers have no average that is an integer"),
    ],
)
def test_a_users_mistake_is_one_message_before_any_rank_starts(
    tmp_path: Path, ran: Ran, arguments: tuple[str, ...], message: str
) -> None:
    code, _, said = ran("comm", *arguments, "-o", tmp_path / "run")
    assert code == 2
    assert message in " ".join(said.split())
    assert not (tmp_path / "run").exists()


def test_a_plan_of_nothing_that_can_run_is_refused_and_one_of_some_is_shown(ran: Ran) -> None:
    none = ran("comm", "--ops", "broadcast", "--root", "5", "--ranks", "2", "--plan")
    assert (none.code, "root 5: there are 2 ranks" in none.err) == (2, True)
    some = ran("comm", "--ops", "broadcast", "--root", "1", "--ranks", "1,2", "--plan")
    assert (some.code, "root 1: there is 1 rank" in some.out) == (0, True)


def test_more_ranks_than_memory_holds_are_refused(tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm_plan, "LEAST_RANK_BYTES", 1 << 60)
    code, _, said = ran("comm", "--ranks", "2,3", "-o", tmp_path / "run")
    assert code == 2
    assert "3 ranks do not fit in this machine's memory" in said
    assert not (tmp_path / "run").exists()
