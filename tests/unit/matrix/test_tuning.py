"""Proposals for a made cell, and what trials of it come to: losses at the same samples, repeats, the change of keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import bench_evidence, fake_runs
from tests.bench_evidence import MS, made, profile

from stepscope.cli.tune_run import admitted, allowed_knobs, learning, loss_limit
from stepscope.cli.tune_trials import Bench, Losses
from stepscope.core.errors import UsageError
from stepscope.matrix.load import load_matrix
from stepscope.matrix.proposals import Basis, changed, proposals
from stepscope.matrix.tuning import (
    cell_settings,
    failure_of,
    gain_of,
    learned_less,
    loss_change,
    loss_samples,
    loss_specs,
    matrix_of,
    overrides_of,
    repeated,
    score_of,
    settings_diff,
    trial_specs,
)
from stepscope.predict.collectives.costs import Price
from stepscope.predict.halving import BASELINE, Lost
from stepscope.predict.prices import Prices
from stepscope.records.cell import CellSpec
from stepscope.records.nouns import Estimate
from stepscope.records.samples import CellResult, RankSamples
from stepscope.records.tuning import CHANGES_MATHEMATICS, Proposal


def prices(*, latency_ms: float, mb_per_ms: float) -> Prices:
    def of(op: str, size: int, ranks: int) -> Price:  # noqa: ARG001
        time = latency_ms * MS + size / (mb_per_ms * 1e6) * MS
        return Price(time_ns=time, low_ns=0.9 * time, high_ns=1.1 * time)

    return Prices(source="made", of=of)


def cell(
    *,
    comm_ms: float = 3.0,
    steps: int = 40,
    jitter: float = 0.01,
    data_ms: float = 0.0,
    phases: dict[str, float] | None = None,
    **spec: Any,
) -> CellResult:
    spec = {"batch_rule": "micro_batch", **spec}
    mine = fake_runs.spec("cell", **spec)
    shape = replace(profile(mine), data_wait_ns=round(data_ms * MS))
    return made(
        "cell",
        comm_ms=comm_ms,
        steps=steps,
        jitter=jitter,
        profile=shape,
        phases={"data_wait": data_ms, **(phases or {})},
        **spec,
    ).result


def basis(of: CellResult, **more: Any) -> Basis:
    return Basis(cell=of, others=(), prices=prices(latency_ms=0.5, mb_per_ms=0.1), cores=4, **more)


def named(found: tuple[Proposal, ...], knob: str) -> Proposal:
    return next(each for each in found if each.knobs == (knob,))


def test_one_bucket_for_all_on_a_slow_link_gets_smaller_buckets() -> None:
    found = proposals(basis(cell(comm_ms=12, strategy_options={"bucket_cap_mb": 1000.0})))
    bucket = named(found, "bucket")
    assert bucket.exact
    assert bucket.gain is not None
    assert bucket.gain.value > 1.02
    assert float(bucket.changes["strategy_options.bucket_cap_mb"] or 0) < 2


def test_a_slow_loader_gets_workers_that_are_enough_to_hide_it() -> None:
    found = proposals(basis(cell(data_ms=150)))
    workers = named(found, "workers")
    assert workers.changes == {"num_workers": 2}
    assert workers.gain is not None
    assert workers.gain.value == pytest.approx(250 / 100, rel=0.06)
    assert found[0].gain is not None
    assert found[0].gain.value >= workers.gain.value


def test_no_workers_where_nothing_waits() -> None:
    assert not [each for each in proposals(basis(cell())) if "workers" in each.knobs]


def test_a_batch_whose_computation_hardly_grows_is_proposed_larger_with_its_learning_rate() -> None:
    small = cell(comm_ms=60, micro_batch=2, global_batch=4)
    probe = cell(comm_ms=60, micro_batch=8, global_batch=16, phases={"forward": 39.0, "backward_compute": 78.0})
    found = proposals(basis(small, replica=small, probe=probe))
    batch = named(found, "batch")
    assert not batch.exact
    factor = int(batch.changes["micro_batch"] or 0) // 2
    assert batch.changes["lr"] == pytest.approx(0.1 * factor)
    assert batch.gain is not None
    # 10% of the computation follows the batch: 1 + 0.1 (k - 1) of 90 ms
    share = (39 + 78 - 90) / 90 / 3
    step = 65 + 95 + share * 90 * (factor - 1)
    assert batch.gain.value == pytest.approx(factor * 160 / step, rel=0.12)


def test_the_work_on_units_follows_their_number() -> None:
    """Of 30 ms that a sharded cell takes beyond whole replicas, one unit in place of 5 leaves 6."""
    gpt = {"workload": "gpt", "model": {"d_model": 16, "num_layers": 4, "vocab_size": 32, "max_seq_len": 8, "n_heads": 2},
           "data_digest": "s"}  # fmt: skip
    shape = profile(fake_runs.spec("x", **gpt))
    longer = replace(shape, forward_ns=shape.forward_ns + 10 * MS, backward_ns=shape.backward_ns + 20 * MS)
    phases = {"forward": 40.0, "backward_compute": 80.0, "data_wait": 0.0, "other": 0.0}
    sharded = made("cell", strategy="fsdp2", comm_ms=0, profile=longer, phases=phases, jitter=0.001, **gpt).result
    whole = made("copy", comm_ms=0, profile=shape, **gpt).result
    free = prices(latency_ms=0.001, mb_per_ms=1000)
    found = proposals(Basis(cell=sharded, others=(whole,), prices=free, replica=whole, cores=4))
    unit = named(found, "unit")
    assert unit.changes == {"strategy_options.blocks_per_unit": 0}
    assert unit.gain is not None
    assert unit.gain.value == pytest.approx(125 / 101, rel=0.01)
    assert unit.gain.low is not None
    assert unit.gain.low < 125 / 113  # half of it may be copies, which stay


def test_accumulation_at_the_same_global_batch_is_exact() -> None:
    found = named(proposals(basis(cell(accumulation=4, micro_batch=8, global_batch=64))), "accumulation")
    assert found.changes == {"accumulation": 1, "micro_batch": 32}
    assert found.exact


def test_naive_is_offered_overlap_and_the_strategy_drops_foreign_options() -> None:
    found = proposals(basis(cell(strategy="naive", comm_ms=30)))
    assert {each.changes["strategy"] for each in found if each.knobs == ("strategy",)} == {"bucketed", "ddp"}
    after = changed(
        fake_runs.spec("x", strategy="bucketed", strategy_options={"bucket_cap_mb": 4.0}), {"strategy": "naive"}
    )
    assert "bucket_cap_mb" not in after.strategy_options


def test_combinations_hold_each_knob_once_and_changed_mathematics_only_beside_the_exact_one() -> None:
    found = proposals(basis(cell(comm_ms=60, data_ms=60, strategy_options={"bucket_cap_mb": 1000.0})))
    several = [each for each in found if len(each.knobs) > 1]
    assert any(each.exact for each in several)
    assert any(not each.exact for each in several)
    assert all(len(set(each.knobs)) == len(each.knobs) for each in several)


def test_what_changes_the_mathematics_is_tried_only_when_it_is_allowed() -> None:
    offered = [
        Proposal(key="cap", knobs=("bucket",), changes={}, gain=Estimate(value=1.2), exact=True, risk=""),
        Proposal(key="bf16", knobs=("hook",), changes={}, gain=Estimate(value=1.5), exact=False, risk=""),
        Proposal(key="both", knobs=("bucket", "batch"), changes={}, gain=Estimate(value=1.9), exact=False, risk=""),
    ]
    tried = {
        allowed: [each.key for each in admitted(offered, 6, allowed=allowed_knobs((allowed,)))[0]]
        for allowed in ("hook", "batch", "all")
    }
    assert tried == {"hook": ["bf16", "cap"], "batch": ["both", "cap"], "all": ["both", "bf16", "cap"]}
    kept, left = admitted(offered, 6, allowed=frozenset())
    assert [each.key for each in kept] == ["cap"]
    assert set(left) == {"bf16", "both"}
    assert len(admitted(offered, 6, allowed=CHANGES_MATHEMATICS)[0]) == 3
    assert len(admitted(offered, 1, allowed=CHANGES_MATHEMATICS)[0]) == 1


def test_words_of_the_options_are_checked() -> None:
    assert loss_limit("2%") == loss_limit("0.02") == 0.02
    for wrong in ("-1%", "much", "nan", "5000%"):
        with pytest.raises(UsageError):
            loss_limit(wrong)
    with pytest.raises(UsageError, match="did you mean 'precision'"):
        allowed_knobs(("precison",))


def losing(of: CellResult, loss_at: Any) -> CellResult:
    """``of`` with the mean loss ``loss_at(samples seen)``."""
    samples = []
    for rank in of.samples:
        steps, seen = [], 0
        for each in rank.steps:
            seen += each.global_samples
            steps.append(replace(each, loss_sum=loss_at(seen) * each.samples))
        samples.append(RankSamples(header=rank.header, steps=tuple(steps)))
    return replace(of, samples=tuple(samples))


def at_batch(factor: int, steps: int, of: int = 32) -> CellResult:
    """A cell of two ranks with ``of`` samples a rank, times ``factor``."""
    found = cell(steps=steps, micro_batch=of * factor, global_batch=2 * of * factor)
    grown = tuple(
        RankSamples(
            header=r.header,
            steps=tuple(replace(s, samples=of * factor, global_samples=2 * of * factor) for s in r.steps),
        )
        for r in found.samples
    )
    return replace(found, samples=grown)


def test_losses_are_compared_at_the_same_number_of_samples() -> None:
    base = losing(at_batch(1, 64), lambda seen: 4 / (1 + seen / 1000))
    same = losing(at_batch(4, 16), lambda seen: 4 / (1 + seen / 1000))
    slower = losing(at_batch(4, 16), lambda seen: 4 / (1 + seen / 4000))
    found = loss_change(base, same)
    assert found is not None
    assert abs(found[1]) < 0.05
    assert learned_less(base, same, 0.05) is None
    assert (loss_change(base, slower) or (0, 0))[1] > 0.5
    assert "allowed 5.0%" in (learned_less(base, slower, 0.05) or "")
    assert loss_change(base, losing(at_batch(4, 6), lambda _: 1.0)) is None  # 3 steps there


class Trained(Bench):
    """Trains nothing: cells with a batch of a rank above ``most`` learn half as fast."""

    def __init__(self, most: int) -> None:
        super().__init__(Path(), launch={}, data_dir=None)
        self.most, self.asked = most, list[int]()

    def run(self, name: str, specs: Iterable[CellSpec], **_: Any) -> None:
        assert name == "loss"
        self.asked += [spec.micro_batch for spec in specs]

    def read(self, name: str, spec: CellSpec) -> CellResult | None:  # noqa: ARG002
        done = at_batch(spec.micro_batch, steps=spec.steps or 0, of=1)  # type: ignore[arg-type]
        slow = 1 + (spec.micro_batch > self.most)
        return losing(done, lambda seen: 4 / (1 + seen / 1000 / slow))


@pytest.mark.parametrize(("most", "offered"), [(1000, {64, 4}), (17, {16, 4}), (4, {4}), (2, set())])
def test_the_largest_batch_that_learns_enough_is_proposed_and_no_larger_one(most: int, offered: set[int]) -> None:
    small = cell(comm_ms=200, micro_batch=2, global_batch=4)
    probe = cell(comm_ms=200, micro_batch=8, global_batch=16, phases={"forward": 31.0, "backward_compute": 62.0})
    bench = Trained(most)
    losses = Losses(bench, small.spec, 0.1)
    limited, lost = learning(basis(small, replica=small, probe=probe), losses)
    assert bench.asked == [2, 4, 8, 16, 32, 64]
    batches = [each for each in proposals(limited) if each.knobs == ("batch",)]
    assert {each.changes["micro_batch"] for each in batches} == offered
    assert {each.changes["micro_batch"] for each in lost.values()} == {n for n in bench.asked if n > most}
    losses.judge(batches)
    assert len(bench.asked) == 6  # none is trained again


def test_a_trial_that_ran_out_of_memory_is_lost() -> None:
    gone = bench_evidence.failed("cell", "oom", "CUDA out of memory").result
    assert failure_of(gone) == Lost(reason="out of memory")
    assert failure_of(None) is not None
    assert isinstance(score_of([cell(), gone]), Lost)
    score = score_of([cell()])
    assert isinstance(score, Estimate)
    assert score.value == pytest.approx(100 * MS / 64, rel=0.03)


def test_a_gain_is_that_of_repeats_taken_in_turn() -> None:
    before = [cell(comm_ms=53 + 20 * n) for n in range(4)]
    after = [cell(comm_ms=3 + 15 * n) for n in range(4)]
    found = gain_of(before, after)
    assert found is not None
    assert found.low is not None
    assert found.low < found.value < (found.high or 0)
    assert found.value == pytest.approx(180 / 122.5, rel=0.05)
    assert gain_of(before[:3], after[:3]) is None


def test_trials_become_cells_of_a_matrix_with_the_ids_that_are_looked_for() -> None:
    spec = fake_runs.spec("cell", batch_rule="micro_batch", model={"size": "tiny"}, dataset_options={"samples": 64})
    smaller = Proposal(
        key="cap", knobs=("bucket",), changes={"strategy_options.bucket_cap_mb": 1.0}, gain=None, exact=True, risk=""
    )
    specs = trial_specs(spec, [smaller])
    matrix = load_matrix(
        matrix_of(specs.values(), name="made", launch={"threads_per_rank": 1}, measure={"budget_s": 1})
    )
    assert [draft.strategy_options.as_dict()["bucket_cap_mb"] for draft in matrix.cells] == [None, 1.0]
    assert cell_settings(specs["cap"])["strategy_options"]["bucket_cap_mb"] == 1.0
    twice = repeated(specs, 2)
    assert [key for key, _ in twice] == [BASELINE, "cap"] * 2
    assert len({each.cell_id for each in twice.values()}) == 4
    assert twice["cap", 0].cell_id == specs["cap"].cell_id


def test_losses_are_trained_over_as_many_samples() -> None:
    spec = fake_runs.spec("cell")
    larger = Proposal(key="more", knobs=("batch",), changes={"micro_batch": 256}, gain=None, exact=False, risk="")
    found = loss_specs(spec, [larger], loss_samples(spec, [larger]))
    assert {key: (each.steps or 0) * each.global_batch for key, each in found.items()} == {
        BASELINE: 12288,
        "more": 12288,
    }  # type: ignore[operator]


def test_the_change_is_in_the_users_own_keys() -> None:
    spec = fake_runs.spec("cell")
    larger = Proposal(
        key="more", knobs=("batch", "bucket"), gain=None, exact=False, risk="",
        changes={"micro_batch": 128, "strategy_options.bucket_cap_mb": 4.0},
    )  # fmt: skip
    diff = settings_diff(spec, changed(spec, larger.changes), larger)
    assert diff == (
        "- global_batch: 64", "+ global_batch: 256",
        "- strategy_options.bucket_cap_mb: null", "+ strategy_options.bucket_cap_mb: 4.0",
    )  # fmt: skip
    assert overrides_of(diff) == ("--set base.global_batch=256", "--set base.strategy_options.bucket_cap_mb=4.0")
