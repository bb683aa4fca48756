"""A few steps of a pipeline after the timed ones, and what its stages computed in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns

from stepscope.rank.instruments.regions import Regions
from stepscope.rank.loading import Batch
from stepscope.rank.sampling import StepSamples
from stepscope.rank.strategies import Session
from stepscope.rank.strategies.pipeline import PipelineSession
from stepscope.rank.training import Training
from stepscope.records.pipeline import PipelineProfile, PipelineSpan

STEPS = 12


def pipeline_profile(
    session: Session,
    training: Training,
    windows: Iterator[tuple[StepSamples, Iterator[Batch]]],
    barrier: Callable[[], None],
) -> PipelineProfile:
    """windows: without end, at least one in an epoch is full. A first micro-step only: the others repeat its schedule."""
    assert isinstance(session, PipelineSession)
    plain, watch = Regions(enabled=False), session.watch
    steps: list[tuple[PipelineSpan, ...]] = []
    barrier()
    synced = perf_counter_ns()
    watch.synchronize = True
    while len(steps) < STEPS:
        window, batches = next(windows)
        if window.full:
            training.step(window, batches, plain)
            steps.append(tuple(watch.spans[: len(watch.spans) // window.micro_steps]))
    watch.synchronize = False
    return PipelineProfile(layout=session.layout, split=session.split, synced_ns=synced, steps=tuple(steps))
