"""Runs of any tool: scaling, learning, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench_evidence import environment
from tests.evidence import epochs, evidence, rate, run, step
from tests.wrong_advice import Case, case

from stepscope.records.comparison import ScalingBudget, ScalingReading
from stepscope.records.nouns import Measured
from stepscope.records.training import Epoch, TrainingRun
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

BASE_LOSS = [0.60, 0.32, 0.26, 0.21, 0.15]
FAST_LOSS = [0.47, 0.15, 0.07, 0.04, 0.03]


def _two(loss: list[float], seconds: float, **known: Any) -> Evidence:
    """One rank and four, 100 s an epoch against ``seconds``."""
    one = run("one", dataset="d", epochs=epochs(seconds=[100.0] * 5, loss=BASE_LOSS), settings={"lr": 0.1})
    return evidence(one, run("four", ranks=4, dataset="d", epochs=epochs(seconds=[seconds] * 5, loss=loss), **known))


@case("duplicated_data")
def another_learning_rate_lowers_the_first_loss(_: Path) -> Case:
    return Case(
        right=_two(FAST_LOSS, 125.0, settings={"lr": 0.1}),
        wrong=_two(FAST_LOSS, 125.0, settings={"lr": 0.4}),
        advice="DistributedSampler",
        instead="no run on several ranks records samples per epoch",
    )


@case("communication_bound")
def few_long_sequences_are_no_small_batch(_: Path) -> Case:
    known = {"ranks": 4, "step_ns": step(100), "exposed_comm_ns": step(40), "micro_batch": 4}
    return Case(
        right=evidence(run("b", **known, settings={"seq_len": 128})),
        wrong=evidence(run("b", **known, settings={"seq_len": 8192})),
        advice="batch too small",
        instead="nothing says that model, batch or sequence is too small",
    )


@case("communication_bound")
def hooks_belong_to_ddp(_: Path) -> Case:
    known = {"ranks": 4, "step_ns": step(100), "exposed_comm_ns": step(40), "precision": "fp32"}
    return Case(
        right=evidence(run("b", **known, strategy="ddp")),
        wrong=evidence(run("b", **known, strategy="fsdp2")),
        advice="communication hook on DDP",
        instead="gather and reduce in bf16",
    )


@case("impossible_figures")
def sharding_explains_more_than_linear(_: Path) -> Case:
    base = run("a", samples_per_s=rate(100), micro_batch=8, strategy="single")
    two = {"ranks": 2, "samples_per_s": rate(240)}
    return Case(
        right=evidence(base, run("b", **two, micro_batch=8, strategy="ddp")),
        wrong=evidence(base, run("b", **two, micro_batch=16, strategy="zero1")),
        advice="usual errors",
        instead="can explain the gain",
    )


@case("math_differs")
def a_hook_that_rounds_need_not_learn_alike(_: Path) -> Case:
    def learned(run_id: str, first: float, **known: Any) -> TrainingRun:
        curve = epochs(seconds=[1.0, 1.0], loss=[first, first / 2])
        return run(run_id, ranks=2, epochs=curve, global_batch=32, strategy=run_id, **known)

    same = {"settings": {"seed": 1, "lr": 0.1}}
    return Case(
        right=evidence(learned("ddp", 2.0, **same), learned("naive", 2.3, **same)),
        wrong=evidence(learned("ddp", 2.0, **same), learned("naive", 2.3, **same, strategy_options={"hook": "bf16"})),
        advice="check samplers (set_epoch)",
        instead="no two runs with losses by epoch are known to train alike",
    )


@case("negative_scaling")
def another_machine_makes_any_ratio_possible(_: Path) -> Case:
    def slower(hardware: str) -> Evidence:
        one = run("a", samples_per_s=rate(100), hardware="NVIDIA A100-SXM4-80GB")
        two = run("b", ranks=2, samples_per_s=rate(80), hardware=hardware, baseline_id="a")
        return evidence(one, two)

    return Case(
        right=slower("NVIDIA A100-SXM4-80GB"),
        wrong=slower("Tesla V100-SXM2-32GB"),
        advice="run it on 1 rank until the cause is found",
        instead="likely: more than the number of ranks differs",
    )


@case("good_scaling")
def copies_of_all_data_scale_well_and_mean_nothing(_: Path) -> Case:
    one = run("a", samples_per_s=rate(100))
    two = {"ranks": 2, "samples_per_s": rate(195), "dataset_size": 100}
    return Case(
        right=evidence(one, run("b", **two, samples_seen_per_rank=(50, 50))),
        wrong=evidence(one, run("b", **two, samples_seen_per_rank=(100, 100))),
        advice="excellent scaling",
        instead="not equivalent",
    )


@case("quality_lost")
def with_the_baselines_batch_the_updates_are_not_the_cause(_: Path) -> Case:
    def learned(run_id: str, ranks: int, best: float, **known: Any) -> TrainingRun:
        accuracy = [best - 0.01 + w for w in (0.002, -0.002) * 6]
        return run(
            run_id,
            ranks=ranks,
            dataset="imdb",
            epochs=epochs(seconds=[12 / ranks] * 12, accuracy=accuracy),
            **({"scaling": "weak"} | known),
        )

    return Case(
        right=evidence(learned("a", 1, 0.78, global_batch=32), learned("b", 4, 0.7, global_batch=128, scaling="weak")),
        wrong=evidence(learned("a", 1, 0.78, global_batch=32), learned("b", 4, 0.7, global_batch=32)),
        advice="keep the global batch when adding ranks",
        instead="batch and updates are the baseline's",
    )


@case("scaling_mixed")
def kinds_on_baselines_of_their_own_are_not_mixed(_: Path) -> Case:
    def ran(run_id: str, ranks: int, batch: int, base: str, kind: Any = None) -> TrainingRun:
        figures = {"samples_per_s": rate(90.0 * ranks), "global_batch": batch}
        return run(run_id, ranks=ranks, baseline_id=base, scaling=kind, **figures)

    strong = (ran("a", 1, 32, "a"), ran("s", 2, 32, "a", "strong"))
    return Case(
        right=evidence(*strong, ran("w", 2, 64, "a", "weak")),
        wrong=evidence(*strong, ran("v", 1, 16, "v"), ran("w", 2, 32, "v", "weak")),
        advice="rate each kind separately",
        instead="never two on one baseline",
    )


@case("scaling_loss")
def without_batches_it_is_not_known_what_ideal_is(_: Path) -> Case:
    def budget(*kinds: str) -> Evidence:
        speedups = {"strong": 1.6, "weak": 3.6}
        readings = tuple(
            ScalingReading(
                scaling=kind, speedup=speedups[kind], low=None, high=None, efficiency=speedups[kind] / 4, rating="poor",
                ideal_ns=4e6, lost_ns=6e6, parts=(),
            )
            for kind in kinds
        )  # fmt: skip
        found = ScalingBudget(
            base="one", run="four", base_world_size=1, world_size=4, unit="step", basis="mean of 8 traced steps",
            base_time=Measured(value=16e6), time=Measured(value=10e6), decided_by="shapes" if len(kinds) == 1 else None,
            readings=readings, no_interval="one sample each: no interval", traced=True,
        )  # fmt: skip
        return Evidence(sources=(), scaling_budgets=(found,))

    return Case(
        right=budget("strong"),
        wrong=budget("strong", "weak"),
        advice="1.60x on 4 ranks against 1",
        instead="no file decides which",
    )


@case("serial_fraction")
def ranks_that_take_turns_on_cores_follow_no_law(_: Path) -> Case:
    def measured(cores: int) -> Evidence:
        runs = [
            run(f"n{n}", ranks=n, device="cpu", samples_per_s=rate(100 * n / (1 + 0.1 * (n - 1)))) for n in (1, 2, 4, 8)
        ]
        return evidence(*runs, environment=environment(usable_cores=cores))

    return Case(
        right=measured(8),
        wrong=measured(2),
        advice="of the work does not shrink",
        instead="beyond the machine's 2 cores",
    )


@case("settings_differ")
def a_learning_rate_scaled_with_the_batch_is_meant(_: Path) -> Case:
    def weak(lr: float) -> Evidence:
        one = run("a", samples_per_s=rate(100), global_batch=32, scaling="weak", settings={"lr": 0.1})
        many = {"ranks": 4, "samples_per_s": rate(380), "global_batch": 128, "scaling": "weak"}
        return evidence(one, run("b", **many, settings={"lr": lr}))

    return Case(
        right=weak(0.17),
        wrong=weak(0.4),
        advice="measure the baseline again with the run's settings",
        instead="only the number of ranks differs",
    )


@case("settings_differ")
def fewer_micro_steps_on_more_ranks_are_strong_scaling(_: Path) -> Case:
    """The advice would give the baseline another global batch; another micro-batch is other work, too."""

    def strong(accumulation: int, micro_batch: int) -> Evidence:
        same = {"global_batch": 64, "scaling": "strong"}
        one = run("a", samples_per_s=rate(100), micro_batch=2, accumulation=32, **same)
        many = {"ranks": 8, "samples_per_s": rate(600), "micro_batch": micro_batch, "accumulation": accumulation}
        return evidence(one, run("b", **many, **same))

    return Case(
        right=strong(8, 1), wrong=strong(4, 2), advice="accumulation: ", instead="only the number of ranks differs"
    )


@case("noisy_measurement")
def a_short_run_says_nothing_of_the_machine(_: Path) -> Case:
    return Case(
        right=evidence(run("a", step_ns=step(10, spread=0.2))),
        wrong=evidence(run("a", step_ns=step(10, n=4))),
        advice="without other load on the machine",
        instead="too short for conclusions",
    )


@case("fastest_strategy")
def a_strategy_that_rounds_gradients_is_faster_at_other_work(_: Path) -> Case:
    def fast(**options: Any) -> Evidence:
        slow = run("a", ranks=2, strategy="ddp", step_ns=step(15))
        return evidence(slow, run("b", ranks=2, strategy="naive", step_ns=step(10), strategy_options=options))

    return Case(
        right=fast(),
        wrong=fast(hook="powersgd"),
        advice="the 95% intervals do not overlap\n",
        instead="trains a little differently: check the loss",
    )


@case("pipeline_bubble")
def a_schedule_that_fills_its_bubble_has_none(_: Path) -> Case:
    def staged(**settings: Any) -> Evidence:
        return evidence(run("a", ranks=8, settings={"pipeline_parallel": 8, "micro_batches": 4, **settings}))

    return Case(
        right=staged(),
        wrong=staged(pipeline_schedule="ZBVZeroBubble"),
        advice="micro-batches or more",
        instead="its schedule has no simple formula",
    )


@case("two_writers")
def a_restart_is_no_second_job(_: Path) -> Case:
    def wrote(*numbers: int) -> Evidence:
        return evidence(run("e", epochs=tuple(Epoch(number=n, duration_ns=1e9, train_loss=0.5) for n in numbers)))

    return Case(
        right=wrote(1, 2, 3, 2, 4, 3, 4),
        wrong=wrote(1, 2, 3, 1, 2, 3, 4),
        advice="give every job its own folder",
        instead="remove the epochs that a checkpoint repeats",
    )


@case("near_oom")
def activations_that_are_recomputed_already(_: Path) -> Case:
    full = {"device": "cuda", "hardware": "NVIDIA H100 80GB HBM3", "peak_memory_bytes": 78_000_000_000}
    return Case(
        right=evidence(run("a", **full)),
        wrong=evidence(run("a", **full, settings={"recompute_granularity": "full"})),
        advice="recompute activations in the backward pass",
        instead="low cost: halve the micro-batch",
    )


@case("step_time_change")
def a_slow_drift_has_no_beginning(folder: Path) -> Case:
    """A run that is 30% slower at its end than at its beginning: from one step on, or a little with every step."""

    def logged(name: str, times_ms: list[float]) -> Evidence:
        lines = [
            f" iteration {i:8d}/     900 | consumed samples: {i:12d} | elapsed time per iteration (ms): {ms:.2f} | "
            "global batch size:    64 | lm loss: 1.5E+00 |\n"
            for i, ms in enumerate(times_ms, 1)
        ]
        path = folder / f"{name}.log"
        path.write_text("".join(lines))
        return load_evidence([path])

    return Case(
        right=logged("step", [1000.0 + i % 3 for i in range(50)] + [1300.0 + i % 3 for i in range(50)]),
        wrong=logged("drift", [1000.0 + 3 * i for i in range(100)]),
        advice="look at what began with step 51",
        instead="the logged steps stay on one level",
    )


@case("logged_parts")
def a_stage_waits_outside_of_the_timers(_: Path) -> Case:
    def timed(**settings: Any) -> Evidence:
        return evidence(run("a", ranks=8, settings=settings, parts_ns={"computation": 7e8, "other": 6e8}))

    return Case(
        right=timed(pipeline_parallel=1),
        wrong=timed(pipeline_parallel=8),
        advice="data loading, logging and validation are there",
        instead="a logged step takes 1.30 s",
    )
