"""device_rows: counts every device event, or gives the block back."""

from __future__ import annotations

import json

import pytest
from tests.trace_builder import build, rank_text

from stepscope.traces.wire import device_rows


def block_of(text: str) -> bytes:
    begin = text.index('"traceEvents": [') + len('"traceEvents": [')
    return text[begin : text.rindex("\n  ]")].encode()


@pytest.mark.parametrize("generation", ["relative", "lines", "absolute", "whole"])
def test_every_generation_of_kinetos_own_layout_is_scanned(generation: str) -> None:
    job = build(generation=generation)
    rows = device_rows(block_of(rank_text(job, 0)))
    assert rows is not None
    assert sum(not r[0].startswith(b"user") for r in rows) == job.truth[0].device_events
    assert sum(r[1].startswith(b"ProfilerStep#") for r in rows) == len(job.truth[0].steps)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("void mm_kernel", 'void \\"mm\\"_kernel'),
        ('"dur": 100.000', '"dur": -1.000'),
        ('"dur": 100.000', '"dur": 1e2'),
        ('"cat": "kernel"', '"cat": "concurrent_kernel"'),
        ('"dur": 20.000', '"duration": 20.000'),
        ('"name": "ProfilerStep#10", "pid": 100', '"name": "ProfilerStep#10", "x": 1, "pid": 100'),
    ],
)
def test_a_block_that_does_not_add_up_is_given_back(old: str, new: str) -> None:
    text = rank_text(build(), 0)
    assert old in text
    assert device_rows(block_of(text.replace(old, new, 1))) is None


@pytest.mark.parametrize("layout", ["default", "compact", "indent1", "indent2", "indent4", "bare", "sorted"])
def test_other_layouts_are_scanned_in_full_or_given_back(layout: str) -> None:
    job = build()
    text = rank_text(job, 0, layout=layout)
    rows = device_rows(text.encode(), kineto=False)
    if layout == "sorted":
        assert rows is None
    else:
        assert rows is not None
        assert sum(not r[0].startswith(b"user") for r in rows) == job.truth[0].device_events
        assert sum(r[0].startswith(b"user") for r in rows) == len(job.truth[0].steps)


def test_a_step_that_the_pattern_passes_by_gives_the_block_back() -> None:
    step = {
        "args": {},
        "cat": "user_annotation",
        "dur": 5,
        "name": "ProfilerStep#3",
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": 2,
    }
    assert device_rows(json.dumps(step).encode(), kineto=False) is None
    of_device = {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": "ProfilerStep#3",
        "pid": 0,
        "tid": 7,
        "ts": 2,
        "dur": 5,
    }
    assert device_rows(json.dumps(of_device).encode(), kineto=False) == []


def test_a_block_without_device_events_has_no_rows() -> None:
    assert device_rows(b'\n  {\n    "ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1\n  }') == []
