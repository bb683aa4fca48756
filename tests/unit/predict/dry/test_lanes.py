"""The step of a dry run over time: lanes that add up to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.dry_ranks import dry_rank, product

from stepscope.predict.dry.lanes import lanes
from stepscope.predict.dry.step import Pricing
from stepscope.predict.step.layout import Cluster
from stepscope.records.dry_run import DryCall, DryRank

LARGE = product(8192, 8192, 8192)
BACKWARD = replace(LARGE, phase="backward")


def a_rank(size_bytes: int) -> DryRank:
    """Two products forward, two backward; a reduction begins between those and is waited for before the optimizer's."""
    call = DryCall(op="all_reduce", size_bytes=size_bytes, dtype="float32", group=0, at=3, waited=4, phase="backward")
    after = replace(LARGE, phase="optimizer")
    return dry_rank((LARGE, LARGE, BACKWARD, BACKWARD, after), calls=(call,), groups=(tuple(range(8)),))


@pytest.mark.parametrize(("size_bytes", "waits"), [(1 << 20, False), (1 << 32, True)])
def test_what_computes_and_what_waits_fill_the_step(size_bytes: int, waits: bool) -> None:
    pricing = Pricing(cluster=Cluster.of("h100-sxm", 8))
    over = lanes(a_rank(size_bytes), pricing)
    assert over is not None
    assert any(span.waiting for span in over.computing) is waits
    assert [span.of for span in over.computing if not span.waiting] == ["forward", "backward", "optimizer"]
    ends = [(span.start_ns, span.end_ns) for span in over.computing]
    assert all(end <= start + 1 for (_, end), (start, _) in pairwise(ends))
    busy = sum(end - start for start, end in ends)
    assert busy == pytest.approx(over.step_ns, rel=0.02)
    (sent,) = over.communicating
    forward_end = over.computing[0].end_ns
    assert sent.start_ns > forward_end
    assert sent.end_ns <= over.computing[-1].start_ns + 1


def test_communication_that_is_taken_to_hide_has_no_lanes() -> None:
    assert lanes(a_rank(1 << 20), Pricing(cluster=Cluster.of("h100-sxm", 8), overlap=True)) is None
