"""Experiments: what they expect of cells whose figures are chosen here, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.bench_evidence import MS, Made, bench, made, profile
from tests.calibration_rows import row, sweep

from stepscope.matrix.load import preset_text
from stepscope.records.cell import RunRecord
from stepscope.records.training import Measured
from stepscope.report.views import findings as view
from stepscope.results.evidence import Evidence
from stepscope.results.experiments import Expectation, checks_of, experiment_names, experiment_of
from stepscope.results.held import held_by
from stepscope.store.yaml_loader import parse_yaml


def judged(name: str, evidence: Evidence) -> dict[tuple[str, str], Expectation]:
    found = experiment_of(name)
    return {(c.subject, c.quantity): c for c in found.judge(evidence)}


def figure(expected: float | None, value: float, low: float | None, high: float | None, **more: Any) -> Expectation:
    return Expectation(
        subject="c", quantity="q", unit="time", model="m", hint="why", missing="gone",
        expected=None if expected is None else Measured(value=expected),
        measured=Measured(value=value, low=low, high=high), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("check", "verdict", "reason"),
    [
        (figure(10.0, 10.5, 9.5, 11.5), "agrees", ""),
        (figure(10.0, 12.0, 11.0, 13.0), "differs", "why"),
        (figure(10.0, 12.0, 11.0, 13.0, tolerance=0.1), "agrees", ""),
        (figure(10.0, 100.0, 90.0, 110.0), "differs", "why"),
        (figure(None, 10.0, 9.0, 11.0), "undecided", "gone"),
        (figure(10.0, 10.0, None, None), "undecided", "too few steps for an interval"),
        (figure(10.0, 10.0, None, None, exact=True), "agrees", ""),
        (figure(0.0, 0.0, 0.0, 0.0), "agrees", ""),
    ],
)
def test_a_verdict_follows_from_the_interval(check: Expectation, verdict: str, reason: str) -> None:
    assert (check.verdict, check.reason) == (verdict, reason)


def test_an_interval_that_would_agree_with_anything_decides_nothing() -> None:
    assert figure(10.0, 10.0, 4.0, 16.0).verdict == "undecided"
    assert figure(10.0, -2.0, -12.0, 8.0).verdict == "undecided", "nor does it contradict"
    assert "too noisy" in figure(10.0, 10.0, 4.0, 16.0).reason


def late(rank_: int | None, ms: float, part: str = "forward") -> Any:
    def own(rank: int, _: int, phases: dict[str, float]) -> None:
        if rank_ is None or rank == rank_:
            phases[part] += ms

    return own


def cells(fault: str, lost: Mapping[str, int], own: Any) -> Evidence:
    return bench(made("plain"), made("planted", inject=fault, own=own, summary={"planted_ns": dict(lost)}))


def test_a_planted_slow_rank_is_found_with_its_price_and_another_price_differs() -> None:
    found = judged("straggler", cells("slow_rank=1:30%", {"slow_rank": 27 * MS}, late(1, 27.0)))
    name = "ddp, slow_rank=1:30%"
    assert {check.verdict for check in found.values()} == {"agrees"}
    assert found[name, "rank 1 computes beyond the others"].measured.value == pytest.approx(27 * MS, rel=0.05)
    assert found[name, "rank that the others wait for"].measured == Measured(value=1)
    lost = found[name, "throughput lost"]
    assert lost.expected.value == pytest.approx(27 / 127, rel=0.05), "D / (T + D)"
    assert lost.measured.value == pytest.approx(27 / 127, rel=0.05)
    found = judged("straggler", cells("slow_rank=1:30%", {"slow_rank": 27 * MS}, late(0, 60.0)))
    assert found[name, "rank that the others wait for"].verdict == "differs"
    assert found[name, "step, longer by"].verdict == "differs"
    assert found[name, "step, longer by"].reason


def test_a_slow_loader_and_jitter_show_and_without_the_plain_cell_nothing_is_decided() -> None:
    found = judged("straggler", cells("loader=20ms", {"loader": 20 * MS}, late(None, 20.0, "data_wait")))
    assert [c.verdict for c in found.values()] == ["agrees"] * 3
    assert found["ddp, loader=20ms", "waiting for data, longer by"].measured.value == pytest.approx(20 * MS, rel=0.05)
    found = judged("straggler", cells("jitter=20ms", {"jitter": 10 * MS}, late(None, 14.1)))
    assert found["ddp, jitter=20ms", "step, longer by"].expected.value == pytest.approx(20 * MS * 0.5**0.5)
    assert found["ddp, jitter=20ms", "step, longer by"].verdict == "agrees"
    evidence = bench(made("planted", inject="loader=20ms", summary={"planted_ns": {"loader": 20 * MS}}))
    (check,) = judged("straggler", evidence).values()
    assert check.verdict == "undecided"
    assert "without a fault" in check.reason


def counted(cell_id: str, **changes: int) -> Made:
    spec = {"workload": "gpt", "strategy": "single", "world_size": 1, "micro_batch": 4, "global_batch": 4,
            "optimizer": "adamw", "momentum": 0.0,
            "model": {"num_layers": 1, "d_model": 8, "vocab_size": 32, "max_seq_len": 8}}  # fmt: skip
    sizes = {"parameters": 1, "gradients": 1, "optimizer": 1, "activations": 1, "gathered": 0}
    plan = held_by(bench(made(cell_id, summary={"memory": sizes}, **spec)).cells[0])
    sizes = {
        "parameters": plan.plan.parameter_bytes, "gradients": plan.plan.gradient_bytes, "gathered": 0,
        "optimizer": plan.plan.optimizer_bytes, "activations": plan.planned_activations or 0,
    }  # fmt: skip
    return made(cell_id, summary={"memory": sizes | changes}, **spec)


def test_memory_of_a_single_process_is_held_against_its_formulas_by_kind() -> None:
    found = judged("memory-breakdown", bench(counted("a")))
    assert [c.quantity for c in found.values()] == ["parameters", "gradients", "optimizer", "activations"]
    assert {c.verdict for c in found.values()} == {"agrees"}
    (optimizer,) = (c for c in found.values() if c.quantity == "optimizer")
    (parameters,) = (c for c in found.values() if c.quantity == "parameters")
    assert optimizer.expected.value == 2 * parameters.expected.value, "Adam's two moments"
    found = judged("memory-breakdown", bench(counted("a", gradients=10**9)))
    assert [c.quantity for c in found.values() if c.verdict == "differs"] == ["gradients"]


def products(rate: float) -> tuple[Any, ...]:
    ns = 2 * 32**3 / rate * 1e9
    timed = {"time_ns_median": ns, "time_ns_low": 0.99 * ns, "time_ns_high": 1.01 * ns, "flops_per_s": rate}
    return (row(kind="matmul", op="matmul", numel=32 * 32, size_bytes=4096, **timed),)


def test_mfu_is_held_against_the_product_alone_where_no_peak_is_known() -> None:
    flop = 1e9
    cell = made("c", known={"model_flop": 2 * flop})
    achieved = flop / cell.run.step_ns.value * 1e9
    share = (cell.run.phases.forward_ns + cell.run.phases.backward_compute_ns) / cell.run.step_ns.value
    alike = judged("mfu", bench(cell, comm=products(achieved / share)))
    assert {c.quantity: c.verdict for c in alike.values()} == {
        "FLOP/s of a rank": "agrees",
        "of the best product": "agrees",
    }
    (used,) = (c for c in alike.values() if c.quantity == "of the best product")
    assert used.measured.value == pytest.approx(share, rel=0.02), "of the best product: the passes' share of the step"
    assert "peak unknown" in used.model
    slower = judged("mfu", bench(cell, comm=products(4 * achieved / share)))
    assert {c.verdict for c in slower.values()} == {"differs"}
    alone = judged("mfu", bench(cell))
    assert {c.verdict for c in alone.values()} == {"undecided"}


def test_alpha_and_beta_of_half_of_the_sizes_predict_the_others_and_a_step() -> None:
    rows = tuple(sweep())
    naive = made("naive", strategy="naive", strategy_options={"flat": True}, comm_ms=3.0)
    found = judged("alpha-beta", bench(naive, comm=rows))
    sizes = [c for c in found.values() if c.subject.startswith("all_reduce")]
    assert len(sizes) == len(rows) // 2
    assert {c.verdict for c in sizes} == {"agrees"}
    odd = tuple(
        replace(r, **{f"time_ns_{at}": 3 * getattr(r, f"time_ns_{at}") for at in ("median", "low", "high")})
        if r is rows[-2]
        else r
        for r in rows
    )
    bent = judged("alpha-beta", bench(naive, comm=odd))
    assert [c.verdict for c in bent.values() if c.subject.startswith("all_reduce")].count("differs") == 1
    (step,) = (c for c in found.values() if "of a step" in c.quantity)
    assert step.quantity == "1 blocking all-reduce of a step"
    assert step.expected is not None
    assert step.measured == naive.run.exposed_comm_ns


def test_overlap_is_held_against_the_timeline_of_the_buckets() -> None:
    spec = made("x").result.spec
    naive = made("naive", strategy="naive", comm_ms=8.0, profile=profile(spec))
    ddp = made("ddp", comm_ms=0.5, profile=profile(spec))
    found = judged("overlap-efficiency", bench(naive, ddp, comm=tuple(sweep())))
    quantities = {c.quantity for c in found.values() if c.subject.startswith("ddp")}
    assert quantities == {"exposed communication", "overlap efficiency"}
    assert all(c.expected is not None and c.measured is not None for c in found.values())
    without = judged("overlap-efficiency", bench(naive, ddp))
    assert {c.reason for c in without.values()} == {"no collective was measured beside the run"}
    naive = made(
        "naive", strategy="naive", comm_ms=0.0, profile=profile(spec), known={"exposed_comm_ns": Measured(value=0)}
    )
    found = judged("overlap-efficiency", bench(naive, made("ddp", profile=profile(spec)), comm=tuple(sweep())))
    (reached,) = (c for c in found.values() if c.quantity == "overlap efficiency")
    assert (reached.measured, reached.verdict) == (None, "undecided")


def test_bucket_sizes_are_held_against_the_timeline_each_and_the_fastest() -> None:
    spec = made("x").result.spec
    few, many = (
        made(f"b{cap}", strategy_options={"bucket_cap_mb": cap}, comm_ms=ms, profile=profile(spec))
        for cap, ms in ((1, 9.0), (25, 1.0))
    )
    found = judged("bucket-size", bench(few, many, comm=tuple(sweep())))
    assert [c.quantity for c in found.values()] == [
        "step, buckets of 1 MiB", "step, buckets of 25 MiB", "fastest bucket size, MiB",
    ]  # fmt: skip
    fastest = list(found.values())[-1]
    assert fastest.measured.value == 25
    assert (fastest.measured.low, fastest.measured.high) == (25, 25)


def sized(cap: float, ms: float, *, depth: int = 8, steps: int = 40) -> Made:
    spec = {"workload": "deep_mlp", "model": {"depth": depth, "width": 512}, "loss": "mse"}
    spec["strategy_options"] = {"bucket_cap_mb": cap}
    return made(f"b{cap}", comm_ms=ms, steps=steps, profile=profile(made("x", **spec).result.spec), **spec)


def fastest_of(*cells: Made, **costs: float) -> Expectation:
    return list(judged("bucket-size", bench(*cells, comm=tuple(sweep(**costs)))).values())[-1]


def test_the_fastest_bucket_size_is_expected_among_those_that_ran_and_those_taken_for_equal() -> None:
    # A call takes 16 ms: of all sizes the model likes 8 MiB best, and 25 far better than 1.
    check = fastest_of(sized(1, 1.0, depth=32), sized(25, 9.0, depth=32), alpha_ns=8e6)
    assert (check.expected.value, check.measured.value, check.verdict) == (25, 1, "differs")
    check = fastest_of(sized(100, 9.0), sized(250, 1.0))
    assert (check.expected.low, check.expected.high) == (100, 250), "one bucket either way"
    assert (check.measured.value, check.verdict) == (250, "agrees")
    check = fastest_of(sized(1, 9.0, steps=3), sized(25, 1.0, steps=3))
    assert (check.measured.low, check.verdict) == (None, "undecided")
    check = fastest_of(sized(0.5, 1.0), sized(250, 9.0))
    assert check.measured.value == 0.5
    table = view.experiment_table((check,))
    shown = dict(zip((column.key for column in table.columns), table.rows[0].values, strict=True))
    assert shown["measured"].raw == 0.5


def record(name: str, *cells: str) -> RunRecord:
    return RunRecord(kind="bench", name=name, matrix={}, cells=cells, argv=())


def test_only_runs_of_that_name_are_experiments() -> None:
    cell = counted("a")
    assert checks_of(bench(cell)) == ()
    assert checks_of(bench(cell, records=(record("quick", "a"),))) == ()
    others = (record("memory-breakdown", "a"), record("quick", "b"))
    checks = checks_of(bench(cell, counted("b"), records=others))
    assert view.conclusion(checks) == "4 of 4 figures agree with what is expected"
    assert [r["verdict"] for r in view.document(checks)] == ["agrees"] * 4
    assert len(view.experiment_table(checks).rows) == 4


@pytest.mark.parametrize("name", experiment_names())
def test_an_experiment_is_a_preset(name: str) -> None:
    assert parse_yaml(preset_text(name), source=name).value["version"] == 1
