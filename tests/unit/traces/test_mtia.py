"""MTIA's own events: copies run beside the kernels of their stream, waits are no work, the device's queue is no process."""

from __future__ import annotations

import json
from pathlib import Path

from stepscope.traces.events import Category
from stepscope.traces.job import analyse_job
from stepscope.traces.load import load_file


def span(cat: str, name: str, ts: float, dur: float, pid: int = 9, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 4, "ts": ts, "dur": dur, "args": args}


def write(folder: Path) -> Path:
    rows: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "MTIA 9"}},
        {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": "trainer"}},
    ]
    for i in range(4):
        at = 10_000.0 * i
        rows += [
            span("mtia_runtime", "runFunction - job_prep_and_submit", at, 300, pid=77, correlation=i + 1),
            span("mtia_runtime", "synchronize", at + 310, 1, correlation=100 + i),
            span("mtia_ccp_events", "fc-dtype_Float", at + 400, 5000, stream=1, correlation=i + 1),
            span("mtia_ccp_events", "dma_request", at + 500, 100, stream=1, size=64),
            span("mtia_ccp_events", "event_wait", at + 5400, 4000, stream=1),
        ]
    file = folder / "rank-0.json"
    file.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": rows}))
    return file


def test_copies_and_waits_are_no_computation(tmp_path: Path) -> None:
    events = load_file(write(tmp_path)).events
    kinds = {events.name_of(i): Category(int(events.category[i])) for i in range(len(events)) if events.is_device[i]}
    assert kinds == {"fc-dtype_Float": Category.KERNEL, "dma_request": Category.MEMCPY}
    (rank,) = analyse_job(tmp_path).ranks
    assert rank.budget is not None
    assert rank.budget.parts.compute_ns == 20_000_000  # no kernel is cut where a copy begins inside it
    assert rank.budget.parts.exposed_memory_ns == 0
    assert [fact.kind for fact in rank.quality] == ["unknown-kernels"]  # its queue is no second process


def test_the_device_alone_reads_the_same(tmp_path: Path) -> None:
    file = write(tmp_path)
    both = [load_file(file, device_only=alone).events for alone in (False, True)]
    assert [e.dur_ns[e.is_device].sum() for e in both] == [20_400_000] * 2
