"""Tables of a job made of its events: launches, queues, copies, counters, each against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.core.errors import UsageError

Event = dict[str, Any]


def event(cat: str, name: str, start: float, end: float, **args: Any) -> Event:
    """One event in microseconds, on the host's thread, or on the stream that it names."""
    device = "stream" in args
    place = {"pid": 0, "tid": args["stream"]} if device else {"pid": 1, "tid": 1}
    extra = {"device": 0} if device else {}
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "args": args | extra, **place}


def launched(number: int, call: float, start: float, end: float, name: str = "gemm", stream: int = 7) -> list[Event]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", call, call + 1, correlation=number),
        event("kernel", name, start, end, correlation=number, stream=stream),
    ]


def opened(folder: Path, *events: Event) -> stepscope.Job:
    document = {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [*events]}
    (folder / "rank0.json").write_text(json.dumps(document))
    return stepscope.open(folder)


def test_work_of_the_device_has_its_launch_operator_and_annotation(tmp_path: Path) -> None:
    job = opened(
        tmp_path,
        event("user_annotation", "forward", 0, 50),
        event("cpu_op", "aten::linear", 1, 40),
        event("cpu_op", "aten::mm", 2, 30),
        *launched(1, 5, 10, 20),
        *launched(2, 20, 24, 30, "gelu"),
        *launched(3, 60, 61, 62, "loose"),
    )
    rows = list(job.table("device_events"))
    assert [row["operator"] for row in rows] == ["aten::mm", "aten::mm", None]
    assert [row["annotation"] for row in rows] == ["forward", "forward", None]
    assert [row["delay_ns"] for row in rows] == [5000, 4000, 1000]
    (of_mm,) = job.table("operator_kernels")
    assert (of_mm["operator"], of_mm["kernels"], of_mm["count"]) == ("aten::mm", "gemm → gelu", 1)
    assert (of_mm["launch_delay_ns"], of_mm["start_delay_ns"]) == (3000, 5000)


def test_the_queue_of_a_stream_is_what_waits_on_it(tmp_path: Path) -> None:
    job = opened(tmp_path, *launched(1, 0, 10, 20), *launched(2, 4, 20, 30), *launched(3, 6, 8, 9, stream=9))
    assert [(row["stream"], row["ts_ns"], row["length"]) for row in job.table("queue")] == [
        (7, 0, 1), (7, 4000, 2), (7, 10000, 1), (7, 20000, 0), (9, 6000, 1), (9, 8000, 0),
    ]  # fmt: skip
    seven, nine = job.table("queues")
    assert (seven["launched"], seven["longest"], seven["full_ns"]) == (2, 2, 0)
    assert seven["mean"] == pytest.approx((4 * 1 + 6 * 2 + 10 * 1) / 20)
    assert nine["mean"] == 1


def test_the_rate_of_copies_adds_up_while_they_run(tmp_path: Path) -> None:
    def copy(number: int, start: float, end: float, size: int, **args: Any) -> Event:
        name = "Memcpy HtoD (Pinned -> Device)"
        return event("gpu_memcpy", name, start, end, correlation=number, stream=number, bytes=size, **args)

    job = opened(tmp_path, copy(1, 0, 10.5, 21_000), copy(2, 5, 10, 5_000), *launched(3, 0, 20, 30))
    assert [row["rate"] for row in job.table("copy_rate")] == pytest.approx([2e9, 3e9, 2e9, 0])
    assert set(job.table("copy_rate")["kind"]) == {"HtoD"}
    rate = {"memory bandwidth (GB/s)": 2.5}
    whole = opened(tmp_path, copy(1, 0, 10, 20_000, **rate), *launched(3, 0, 20, 30))  # it took 8 us, written as 10
    assert [row["rate"] for row in whole.table("copy_rate")] == pytest.approx([2.5e9, 0])


def test_counters_are_matched_with_operators_in_order(tmp_path: Path) -> None:
    counted = [event("cuda_profiler_range", f"k{i}", 10 * i, 10 * i + 1, **{"inst.sum": i}) for i in (1, 2)]
    operators = [event("cpu_op", "aten::linear", 0, 9), event("cpu_op", "aten::mm", 1, 8)]
    calls = [event("cuda_runtime", "cudaLaunchKernel", at, at + 1, correlation=at) for at in (3, 20)]
    job = opened(tmp_path, *counted[::-1], *operators, *calls)
    first, second = job.table("counters")
    assert (first["kernel"], first["operator"], first["top_operator"], first["inst.sum"]) == (
        "k1", "aten::mm", "aten::linear", 1,
    )  # fmt: skip
    assert (second["kernel"], second["operator"]) == ("k2", None)
    unlike = opened(tmp_path, *counted, *operators, calls[0])
    assert list(unlike.table("counters")["operator"]) == [None, None]


def test_a_section_has_the_rows_of_each_rank(tmp_path: Path) -> None:
    opened(tmp_path, *launched(1, 0, 10, 20))
    other = json.loads((tmp_path / "rank0.json").read_text())
    other["distributedInfo"]["rank"] = 1
    other["traceEvents"][1]["dur"] = 4
    (tmp_path / "rank1.json").write_text(json.dumps(other))
    job = stepscope.open(tmp_path)
    assert job.kernels["total"] == [7000]
    rows = job.table("kernels", by_rank=True)
    assert [(row["rank"], row["total"]) for row in rows] == [(0, 10_000), (1, 4_000)]
    with pytest.raises(UsageError):
        job.table("findings", by_rank=True)
