"""Spans for a timeline: exact totals, few enough, packed and unpacked to the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hand_events import kernel, trace
from tests.trace_builder import build, write_job

from stepscope.stats.spans import EMPTY, Spans, union
from stepscope.traces import timeline_spans as module
from stepscope.traces.events import RankView
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import EVERYTHING, Wanted
from stepscope.traces.timeline_spans import coarser, fewer, timeline_spans
from stepscope.traces.waits import pack, unpack


def spans(*pairs: tuple[int, int]) -> Spans:
    return union(np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64))


def pairs(given: Spans) -> list[tuple[int, int]]:
    return list(zip(given.starts.tolist(), given.ends.tolist(), strict=True))


some_spans = st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**10)), min_size=0, max_size=60).map(
    lambda found: spans(*((start, start + length) for start, length in found)) if found else EMPTY
)


@given(some_spans, st.integers(-(10**15), 0))
def test_packing_keeps_every_edge(given_spans: Spans, origin: int) -> None:
    assert pairs(unpack(pack(given_spans, origin=origin, unit=1), origin=origin, unit=1)) == pairs(given_spans)


@given(some_spans, some_spans, st.integers(2, 20))
def test_fewer_spans_cover_all_that_was_covered(a: Spans, b: Spans, limit: int) -> None:
    kept, merged_ns = fewer({"a": a, "b": b}, limit=limit)
    assert len(kept["a"]) + len(kept["b"]) <= max(limit, bool(len(a)) + bool(len(b)))
    for before, after in ((a, kept["a"]), (b, kept["b"])):
        assert bool(len(before)) == bool(len(after))
        gaps = after.starts[1:] - after.ends[:-1]
        assert not len(gaps) or gaps.min() > merged_ns
        # Only gaps were closed: what is added is no longer than the longest closed gap, each time.
        assert after.measure - before.measure <= (len(before) - len(after)) * merged_ns


def test_the_shortest_gaps_are_closed_first() -> None:
    kept, merged_ns = fewer({"compute": spans((0, 10), (12, 20), (120, 130), (133, 140))}, limit=2)
    assert (pairs(kept["compute"]), merged_ns) == ([(0, 20), (120, 140)], 3)
    assert fewer({"compute": spans((0, 1), (2, 3))}, limit=2)[1] == 0


def test_kinds_tile_the_window_as_the_budget_does(tmp_path: Path) -> None:
    folder = write_job(build(shape="ddp", world=2, steps=3), tmp_path / "job")
    summary = analyse_job(folder, Wanted(sections=EVERYTHING | {"spans"}))
    for found in summary.ranks:
        totals = {each.kind: each.total_ns for each in found.spans.kinds}
        parts = found.budget.parts
        assert totals == {
            "compute": parts.compute_ns,
            "hidden_comm": parts.overlap_ns,
            "exposed_comm": parts.exposed_comm_ns,
            "copies": parts.exposed_memory_ns,
        }
        assert parts.exposed_comm_ns > 0
        assert found.spans.window_ns == parts.window_ns
        assert found.spans.start_ns == found.budget.start_ns
        for each in found.spans.kinds:
            drawn = unpack(each.packed, origin=found.spans.start_ns, unit=found.spans.unit_ns)
            assert (drawn.measure, len(drawn)) == (each.total_ns, each.count)


def test_many_kernels_become_few_spans_and_keep_their_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPANS", 500)
    monkeypatch.setattr(module, "MAX_NAMED", 5)
    rows = [
        kernel("gemm" if n % 7 else "ncclDevKernel_AllReduce", 1000 * n, 1000 * n + 700 + n % 5) for n in range(5000)
    ]
    made = trace(*rows)
    found = timeline_spans(RankView(made))
    assert sum(each.kept for each in found.kinds) <= 500
    assert sum(each.count for each in found.kinds) == 5000
    assert sum(each.total_ns for each in found.kinds) == sum(700 + n % 5 for n in range(5000))
    assert found.merged_ns >= 296
    assert len(found.named) == 5
    assert {each.duration_ns for each in found.named} == {704}

    less = coarser(found, limit=50, named=2)
    assert sum(each.kept for each in less.kinds) <= 50
    assert [each.total_ns for each in less.kinds] == [each.total_ns for each in found.kinds]
    assert less.merged_ns >= found.merged_ns
    assert len(less.named) == 2


def test_a_trace_without_work_has_no_timeline() -> None:
    made = trace(kernel("gemm", 5, 5))
    assert timeline_spans(RankView(made)) is None


def test_the_longest_gaps_carry_the_cause_that_has_most_of_them(tmp_path: Path) -> None:
    folder = write_job(build(shape="ddp", world=2, steps=3, data_ns=40_000_000), tmp_path / "job")
    summary = analyse_job(folder, Wanted(sections=EVERYTHING | {"spans"}))
    for found in summary.ranks:
        longest = max(found.spans.gaps, key=lambda gap: gap.duration_ns)
        assert longest.cause == "data"
        assert longest.duration_ns > 20_000_000
        assert longest.start_ns >= found.spans.start_ns
