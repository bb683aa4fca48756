from __future__ import annotations

from typing import Any

import pytest
from tests.bench_evidence import bench, made
from tests.borders import exposed
from tests.calibration_rows import sweep
from tests.evidence import MS, epochs, evidence, rate, run, step

from stepscope.diagnose.rules.communication_bound import RULE
from stepscope.records.finding import Finding, Quiet
from stepscope.records.training import PhaseTimes

SMALL = {"micro_batch": 8, "accumulation": 1}


def fired(outcome: object) -> Finding:
    assert isinstance(outcome, tuple), outcome
    (found,) = outcome
    return found


def test_exposed_communication_fires_with_the_batch_that_helps() -> None:
    """40 ms of communication beside 60 ms of work: 160 ms of work are 80%, 2.67 times as much."""
    found = fired(RULE.check(evidence(exposed(0.4, **SMALL))))
    assert found.title == ("communication-bound: 40% of the step on 4 ranks is exposed communication; batch too small")
    assert found.stake_fraction == pytest.approx(0.4)
    assert any(
        "2.7 times the work" in line and "a batch of 22 per rank (now 8) or accumulation of 3 (now 1)" in line
        for line in found.evidence
    )


@pytest.mark.parametrize(
    ("strategy", "larger"),
    [("interleaved", True), ("zero1", True), ("fsdp2", True), ("pipeline schedule=interleaved", False),
     ("tensor_parallel tp=4", False)],
)  # fmt: skip
def test_more_work_thins_out_gradients_and_not_activations(strategy: str, larger: bool) -> None:
    found = fired(RULE.check(evidence(exposed(0.4, **SMALL, strategy=strategy, strategy_key=strategy))))
    assert any("times the work" in line for line in found.evidence) is larger
    assert any("times the batch" in advice.text for advice in found.advice) is larger
    hook = any("hook on DDP" in advice.text for advice in found.advice)
    assert hook is (strategy == "interleaved"), "gradients reduced one by one are no pipeline's"


def test_what_does_not_grow_with_the_batch_is_taken_into_account() -> None:
    """Work of 40 and an optimizer of 20: 40 k + 20 = 160."""
    phases = PhaseTimes(
        data_wait_ns=0,
        forward_ns=10 * MS,
        backward_compute_ns=30 * MS,
        exposed_comm_ns=40 * MS,
        optimizer_ns=20 * MS,
        other_ns=0,
    )
    found = fired(RULE.check(evidence(exposed(0.4, phases=phases, **SMALL))))
    assert any("3.5 times the work" in line and "a batch of 28 per rank" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        ({"micro_batch": 8}, "batch too small"),
        ({"num_parameters": 100_000}, "model too small"),
        ({"settings": {"model.max_seq_len": 128}}, "sequence too short"),
        (
            {"micro_batch": 64, "num_parameters": 10_000_000},
            "nothing says that model, batch or sequence is too small",
        ),
    ],
)
def test_it_says_what_is_too_small(known: dict[str, Any], cause: str) -> None:
    assert fired(RULE.check(evidence(exposed(0.4, **known)))).title.endswith(cause)


def test_sequences_get_a_length_that_reaches_eighty_per_cent() -> None:
    found = fired(RULE.check(evidence(exposed(0.4, settings={"max_seq_len": 128}))))
    assert any("sequences of 342 tokens (now 128)" in line for line in found.evidence)


def test_a_poor_speed_up_needs_a_cause_to_be_blamed_on_communication() -> None:
    base = run("a", samples_per_s=rate(100))
    poor = fired(RULE.check(evidence(base, run("b", ranks=4, samples_per_s=rate(160), **SMALL))))
    assert poor.confidence.startswith("likely")
    assert "60% of the step on 4 ranks is lost, most likely to communication; batch too small" in poor.title
    assert isinstance(RULE.check(evidence(base, run("b", ranks=4, samples_per_s=rate(160)))), Quiet)
    fair = run("b", ranks=4, samples_per_s=rate(210), **SMALL)
    assert isinstance(RULE.check(evidence(base, fair)), Quiet)


def test_a_run_no_larger_that_scales_beside_it_acquits_the_size() -> None:
    """Document 002: a model of the same small size reaches 3.49x on other data."""
    size = {"num_parameters": 200_000}
    ag = [run("a", samples_per_s=rate(100), **size), run("b", ranks=4, samples_per_s=rate(46), **size)]
    assert isinstance(RULE.check(evidence(*ag)), tuple)
    imdb = [
        run("c", group="imdb", samples_per_s=rate(100), **size),
        run("d", group="imdb", ranks=4, samples_per_s=rate(349), **size),
    ]
    assert isinstance(RULE.check(evidence(*ag, *imdb)), Quiet)


def test_cells_of_bench_leave_waiting_out_and_get_commands() -> None:
    found = fired(RULE.check(bench(made("d", comm_ms=60, global_batch=32, micro_batch=16, world_size=2))))
    assert found.stake_fraction == pytest.approx(60 / 157, abs=0.02)
    larger, accumulated = found.advice[:2]
    assert larger.command is not None
    assert "--set base.global_batch=82" in larger.command, "32 samples x 2.55, whole batches for both ranks"
    assert accumulated.command is not None
    assert "--set base.accumulation=" in accumulated.command
    assert "--set base.global_batch=" in accumulated.command

    def late(rank: int, _step: int, phases: dict[str, float]) -> None:
        phases["forward"] += 60.0 if rank == 0 else 0.0

    waiting = bench(made("w", comm_ms=3, own=late, global_batch=32, micro_batch=16, world_size=2))
    assert isinstance(RULE.check(waiting), Quiet), "waiting for a late rank is not communication"


def test_measured_collectives_tell_latency_from_bytes() -> None:
    cell = made("d", comm_ms=60, global_batch=64, micro_batch=32, world_size=2)
    slow = fired(RULE.check(bench(cell, comm=tuple(sweep(alpha_ns=50_000_000, beta_bytes_per_s=1e9)))))
    assert slow.title.endswith("model too small")
    assert any("of it latency" in line for line in slow.evidence)
    wire = fired(RULE.check(bench(cell, comm=tuple(sweep(alpha_ns=10, beta_bytes_per_s=1e6)))))
    assert "model too small" not in wire.title


def test_a_share_at_its_limit_is_not_told_to_work_one_time_as_much() -> None:
    """21 % exposed asks for 1.07 times the work: no batch of 129 in place of 128."""
    one = run("b", ranks=4, micro_batch=128, step_ns=step(100), exposed_comm_ns=step(21))
    (found,) = RULE.check(evidence(one))
    assert not any("times the work" in line for line in found.evidence)
    assert not any("times the batch" in advice.text for advice in found.advice)


def test_bf16_gradients_are_not_told_to_become_bf16() -> None:
    one = run("b", ranks=4, micro_batch=128, step_ns=step(100), exposed_comm_ns=step(40), precision="bf16")
    (found,) = RULE.check(evidence(one))
    assert not any("bf16" in advice.text for advice in found.advice)


def test_communication_timed_by_the_epoch_counts_as_a_share_of_it() -> None:
    """3 s of an epoch of 10 s, the first epoch left out."""
    known = {"epochs": epochs(seconds=[20.0, 10.0, 10.0]), "settings": {"exposed_comm_ns_per_epoch": 3e9}}
    found = fired(RULE.check(evidence(run("b", ranks=4, **SMALL, **known))))
    assert found.title.startswith("communication-bound: 30% of the epoch on 4 ranks")
    assert any("3.00 s of an epoch of 10.0 s: 30%, waiting for other ranks included" in line for line in found.evidence)
    assert found.confidence.endswith("waiting included")


def test_the_title_says_that_waiting_is_not_counted() -> None:
    """Rank 1 takes 40 ms more: the others wait for it inside the collective, which the budget of the step holds too."""

    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += 40.0 if rank == 1 else 0.0

    even = fired(RULE.check(bench(made("c", world_size=4, comm_ms=60.0, jitter=0))))
    late = fired(RULE.check(bench(made("c", world_size=4, comm_ms=60.0, jitter=0, own=own))))
    assert "is exposed communication; " in even.title
    assert "is exposed communication without waiting; " in late.title
    assert any("waiting for the last rank takes another 40.0 ms" in line for line in late.evidence)
