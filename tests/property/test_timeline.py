"""What holds for every timeline."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stepscope.predict.overlap import Transport
from stepscope.predict.timeline import best_bucket, step_timeline
from stepscope.records.plan import ModelFacts, ParameterFact, Setting
from stepscope.records.prediction import BackwardProfile, ReadyGradient
from stepscope.strategies import REGISTRY as STRATEGIES

SETTING = Setting(device="cpu", backend="gloo", world_size=2, precision="fp32", optimizer="sgd")
ROUNDING = 3  # ns: every printed time is rounded by itself
KINDS = [("naive", {}), ("naive", {"flat": True}), ("interleaved", {}), ("bucketed", {}), ("ddp", {}),
         ("bucketed", {"bucket_cap_mb": 1.0}), ("ddp", {"bucket_cap_mb": 0.01}), ("ddp", {"hook": "bf16"})]  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> tuple[ModelFacts, BackwardProfile]:
    sizes = draw(st.lists(st.integers(1, 2**20), min_size=1, max_size=12))
    gaps = draw(st.lists(st.integers(0, 10**7), min_size=len(sizes) + 1, max_size=len(sizes) + 1))
    at = list(itertools.accumulate(gaps))
    facts = ModelFacts(
        parameters=tuple(ParameterFact(name=f"p{i}", numel=n, dtype="float32") for i, n in enumerate(sizes)),
        ready_order=tuple(reversed(range(len(sizes)))),
        forward_flops_per_sample=1,
    )
    backward = BackwardProfile(
        clock="perf_counter", steps=1, micro_batch=1, data_wait_ns=draw(st.integers(0, 10**6)),
        forward_ns=draw(st.integers(0, 10**7)), earlier_backward_ns=0, backward_ns=at[-1],
        optimizer_ns=draw(st.integers(0, 10**6)), other_ns=0,
        ready=tuple(ReadyGradient(name=f"p{i}", ready_ns=at[k]) for k, i in enumerate(facts.ready_order)),
    )  # fmt: skip
    return facts, backward


links = st.tuples(st.floats(0, 1e7), st.floats(0, 1e2)).map(lambda link: lambda _, size: link[0] + size * link[1])
transports = st.builds(
    Transport,
    lanes=st.integers(1, 3),
    compute_slowdown=st.sampled_from([1.0, 1.2, 3.0]),
    comm_slowdown=st.sampled_from([1.0, 1.5]),
)
kinds = st.sampled_from(KINDS)


@given(steps(), links, transports, kinds)
def test_a_timeline_adds_up_and_keeps_its_order(made, link, transport, kind) -> None:
    (facts, profile), (key, options) = made, kind
    spec = STRATEGIES.load(key)
    plan = spec.comm_plan(facts, SETTING, spec.options(**options))
    line = step_timeline(profile, plan, link, transport=transport)

    assert line.step_ns >= line.before_ns + line.backward_alone_ns + line.exposed_ns + line.after_ns
    assert line.step_ns >= line.compute_ns == profile.step_ns
    scale = 2 if options.get("hook") == "bf16" else 1
    assert line.comm_bytes * scale == facts.gradient_bytes
    assert tuple(m for b in line.buckets for m in b.members) == tuple(m for op in plan for m in op.members)
    assert sorted(m for b in line.buckets for m in b.members) == sorted(p.name for p in facts.parameters)

    ready_at = {r.name: r.ready_ns for r in profile.ready}
    for bucket in line.buckets:
        assert bucket.ready_ns <= bucket.launch_ns <= bucket.start_ns <= bucket.end_ns
        assert bucket.ready_ns + ROUNDING >= max(ready_at[m] for m in bucket.members)  # backward only gets slower
        alone = link(bucket.op, bucket.size_bytes)
        assert bucket.end_ns - bucket.start_ns >= alone * (1 - 1e-9) - ROUNDING
        assert 0 <= bucket.exposed_ns <= bucket.end_ns - bucket.start_ns
        assert bucket.lane < transport.lanes
    for before, after in itertools.pairwise(line.buckets):
        assert before.launch_ns <= after.launch_ns
        assert before.start_ns <= after.start_ns
    for lane in range(transport.lanes):
        mine = [b for b in line.buckets if b.lane == lane]
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(mine))
    assert line.exposed_ns == max(0, max(b.end_ns for b in line.buckets) - line.backward_ns)
    assert max(b.exposed_ns for b in line.buckets) <= line.exposed_ns
    if line.hidden_fraction is not None:
        assert -1e-9 <= line.hidden_fraction <= 1
    free = step_timeline(profile, plan, lambda _, __: 0.0, transport=transport)
    assert (free.step_ns, free.exposed_ns) == (profile.step_ns, 0)


@given(steps(), links)
def test_overlap_is_never_slower_than_the_same_collectives_after_backward(made, link) -> None:
    facts, profile = made
    for lanes in (1, 2):
        naive, hooks = (
            step_timeline(
                profile,
                STRATEGIES.load(key).comm_plan(facts, SETTING, STRATEGIES.load(key).options()),
                link,
                transport=Transport(lanes=lanes),
            )
            for key in ("naive", "interleaved")
        )
        assert hooks.step_ns <= naive.step_ns + ROUNDING


@given(steps(), links)
def test_the_named_size_is_predicted_no_slower_than_any_other(made, link) -> None:
    facts, profile = made
    choice = best_bucket(profile, facts, SETTING, link, candidates_mb=(0.25, 1, 4))
    steps_ns = [c.timeline.step_ns for c in choice.candidates]
    assert choice.chosen.timeline.step_ns <= min(steps_ns) * 1.005
    assert sorted(cap for c in choice.candidates for cap in c.bucket_caps_mb) == [0.25, 1, 4]
    partitions = [tuple(b.members for b in c.timeline.buckets) for c in choice.candidates]
    assert len(set(partitions)) == len(partitions)
