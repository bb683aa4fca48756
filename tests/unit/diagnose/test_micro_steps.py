from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.borders import bucket
from tests.trace_evidence import generated

from stepscope.diagnose.job_facts import micro_steps
from stepscope.records.profile import JobSetup
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import AnnotationRow

MIB = 1 << 20


def reduced(
    folder: Path, *buckets: tuple[int, int], forward: int | None = None, parameters: int | None = None
) -> TraceSummary:
    """Every step of one rank reduces (launch in us, bytes) in this order."""
    summary = generated(folder, world=2, steps=3).traces[0].summary
    (each, *_) = summary.ranks
    rows = tuple(
        bucket(each, s.step, i, size, exposed_ns=0, start_ns=at * 1000)
        for s in each.steps
        for i, (at, size) in enumerate(buckets)
    )
    called = AnnotationRow(
        rank=0, name="DistributedDataParallel.forward", calls=(forward or 0) * len(each.steps), host_ns=1, device_ns=0,
        device_busy_ns=0, device_events=0, device_span_ns=None,
    )  # fmt: skip
    facts = replace(each.facts, setup=JobSetup(parameters=parameters) if parameters else None)
    one = replace(each, buckets=rows, facts=facts, annotations=(called,) if forward else ())
    return replace(summary, ranks=(one,))


FOUR_PASSES = [(at + place, size) for at in (0, 100, 200, 300) for place, size in ((0, MIB), (10, 8 * MIB))]


@pytest.mark.parametrize(
    ("buckets", "known", "passes"),
    [
        (FOUR_PASSES, {}, 4),  # a forward pass fits between the repetitions
        (FOUR_PASSES, {"forward": 4}, 4),
        (FOUR_PASSES, {"forward": 1}, 1),  # one pass with eight buckets
        (FOUR_PASSES, {"parameters": 9 * MIB // 4}, 4),
        (FOUR_PASSES, {"parameters": 9 * MIB}, 1),  # every gradient is reduced once
        ([(i * 10, 8 * MIB) for i in range(4)], {}, 1),  # four equal buckets of one pass, or four passes: not said
        ([(i * 10, 8 * MIB) for i in range(4)], {"parameters": 2 * MIB}, 4),
        ([(i * 10, 8 * MIB) for i in range(4)], {"forward": 4, "parameters": 8 * MIB}, 1),  # four buckets, once for all
        ([(0, MIB), (50, 8 * MIB), (60, MIB), (110, 8 * MIB)], {}, 1),  # no forward pass fits between
        (
            [(0, MIB), (10, 8 * MIB), (100, 2 * MIB), (110, 8 * MIB)],
            {"forward": 2},
            1,
        ),  # two models, one after the other
    ],
)
def test_passes_that_reduce_the_same_gradients(
    buckets: list[tuple[int, int]], known: dict[str, int], passes: int, tmp_path: Path
) -> None:
    assert micro_steps(reduced(tmp_path, *buckets, **known)) == passes
