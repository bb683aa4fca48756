"""A gap belongs to the call that ends it: a wait by name or by its times, a late launch, or something on the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.hand_events import Row, call, copy, kernel, launch, op, trace

from stepscope.traces.blocking_calls import blocks_on
from stepscope.traces.events import Category
from stepscope.traces.rank_pass import analyse
from stepscope.traces.sections import Wanted

US = 1000

HOLDS = {
    kind: tuple(names.split())
    for kind, names in {
        "device": """cudaDeviceSynchronize hipDeviceSynchronize cuCtxSynchronize musaDeviceSynchronize
            rtDeviceSynchronize""",
        "stream": """cudaStreamSynchronize cudaStreamSynchronize_v3020 cudaStreamSynchronize_ptsz cuEventSynchronize
            hipStreamSynchronize hipEventSynchronize zeEventHostSynchronize zeCommandQueueSynchronize piEventsWait
            zeFenceHostSynchronize zeCommandListHostSynchronize urQueueFinish urEventWait aclrtSynchronizeStream
            AscendCL@aclrtSynchronizeStreamWithTimeout musaStreamSynchronize newStreamSynchronize
            sycl::queue::wait_and_throw event::wait""",
        "copy": """cudaMemcpy cudaMemcpy2D cudaMemcpyToSymbol cuMemcpyDtoH_v2 cuMemcpyHtoD hipMemcpy hipMemcpyWithStream
            hipMemcpyDtoH aclrtMemcpy musaMemcpy2D""",
        "memory": """cudaMalloc cudaFree cudaHostAlloc hipExtMallocWithFlags hipFree cuMemMap urUSMFree zeMemAllocDevice
            aclrtFree""",
    }.items()
}

RETURNS = (
    "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpyPeerAsync", "cuMemcpyDtoHAsync_v2", "cudaMemsetAsync",
    "cudaMallocAsync", "cudaFreeAsync", "cudaEventQuery", "cudaEventRecord", "cudaStreamWaitEvent",
    "cuStreamWaitValue32", "hipMemGetInfo", "cuMemGetInfo_v2", "urEnqueueEventsWaitWithBarrier", "urEnqueueUSMMemcpy",
    "zeCommandListAppendWaitOnEvents", "aclrtStreamWaitEvent", "aclrtMemcpyAsync", "cudaGraphLaunch",
)  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in HOLDS.items() for name in names])
def test_calls_that_hold_the_host_say_what_they_wait_for(kind: str, name: str) -> None:
    assert blocks_on(name) == kind


@pytest.mark.parametrize("name", RETURNS)
def test_calls_that_return_at_once_wait_for_nothing(name: str) -> None:
    assert blocks_on(name) is None


def causes(*rows: Row) -> dict[str, tuple[int, str | None]]:
    """Idle time in us by cause, and its call."""
    found = analyse(trace(*rows), Wanted(sections=frozenset({"idle"})))
    return {i.cause: (i.idle_ns // US, i.call) for i in found.idle}


def two_kernels(*between: Row, at: int, starts: int) -> dict[str, tuple[int, str | None]]:
    """A kernel until 500 us; the next one is launched ``at`` us, in 5 us, and ``starts``."""
    return causes(
        op("aten::mm", 0, 20 * US),
        launch(5 * US, 10 * US, 1),
        kernel("a", 15 * US, 500 * US, 1),
        *between,
        launch(at * US, (at + 5) * US, 2),
        kernel("b", starts * US, (starts + 100) * US, 2),
    )


@pytest.mark.parametrize("name", [name for kind in ("device", "stream", "copy") for name in HOLDS[kind]])
@pytest.mark.parametrize("category", [Category.RUNTIME, Category.DRIVER])
def test_a_gap_behind_a_call_that_waits_is_its_own(name: str, category: Category) -> None:
    wait = replace(call(name, 12 * US, 510 * US, correlation=9), category=category)
    found = two_kernels(wait, at=540, starts=550)
    assert found == {"sync": (45, name), "launch_latency": (5, None)}


def test_waits_that_follow_each_other_are_one() -> None:
    waits = (
        call("cudaStreamSynchronize", 12 * US, 510 * US),
        call("cudaMemcpy", 560 * US, 700 * US),
        call("cudaFree", 720 * US, 900 * US),
    )
    assert two_kernels(*waits, at=930, starts=940)["sync"] == (435, "cudaStreamSynchronize")
    apart = (waits[0], call("cudaMemcpy", 850 * US, 900 * US))
    assert two_kernels(*apart, at=930, starts=940)["sync"] == (260, "cudaStreamSynchronize")


@pytest.mark.parametrize(("began", "is_its_own"), [(12, 260), (400, 120), (480, 110)])
def test_what_the_host_does_after_a_wait_counts_as_the_waits_up_to_its_length(began: int, is_its_own: int) -> None:
    wait = call("cudaStreamSynchronize", began * US, 510 * US)
    assert two_kernels(wait, at=1500, starts=1510)["sync"] == (is_its_own, "cudaStreamSynchronize")


def test_a_gap_that_the_driver_fills_with_memory_is_its_own() -> None:
    malloc = call("cudaMalloc", 520 * US, 800 * US)
    assert two_kernels(malloc, at=850, starts=860)["sync"] == (355, "cudaMalloc")
    short = call("cudaMalloc", 520 * US, 600 * US)
    assert "sync" not in two_kernels(short, at=850, starts=860)


def test_a_copy_from_pageable_memory_holds_the_host_as_long_as_it_runs() -> None:
    rows = (
        launch(5 * US, 10 * US, 1),
        kernel("a", 15 * US, 500 * US, 1),
        call("cudaMemcpyAsync", 12 * US, 560 * US, correlation=2),
        copy("Memcpy DtoH (Device -> Pageable)", 500 * US, 550 * US, 2),
        launch(600 * US, 605 * US, 3),
        kernel("b", 610 * US, 700 * US, 3),
    )
    assert causes(*rows) == {"sync": (55, "cudaMemcpyAsync"), "launch_latency": (5, None)}


@pytest.mark.parametrize("name", ["hipMemcpyWithStream", "cudaMemcpyAsync", "cuMemcpyDtoH_v2"])
def test_a_copy_that_starts_late_inside_its_call_holds_the_host(name: str) -> None:
    rows = (
        launch(5 * US, 10 * US, 1),
        kernel("a", 15 * US, 500 * US, 1),
        call(name, 540 * US, 5060 * US, correlation=2),
        copy("Memcpy DtoH (Device -> Pageable)", 5000 * US, 5040 * US, 2),
        launch(5070 * US, 5075 * US, 3),
        kernel("b", 5080 * US, 5180 * US, 3),
    )
    assert causes(*rows) == {"sync": (4535, name), "launch_latency": (5, None)}


@pytest.mark.parametrize(
    ("start", "end", "waits"),
    [(20, 505, True), (20, 560, False), (490, 700, False), (20, 480, False)],
    ids=["returns with the work", "returns later", "lasts beyond it", "returns before"],
)
def test_a_call_of_unknown_name_waits_where_it_returns_with_the_last_work(start: int, end: int, waits: bool) -> None:
    found = two_kernels(call("vendorFlush", start * US, end * US), at=750, starts=760)
    assert (found.get("sync", (0, None))[1] == "vendorFlush") == waits


def test_a_wait_of_an_idle_device_is_a_wait() -> None:
    """The host comes late to it, and the device has nothing: it waits for something that is not in the file."""
    wait = call("hipEventSynchronize", 530 * US, 4900 * US)
    assert two_kernels(wait, at=4920, starts=4930)["sync"] == (4425, "hipEventSynchronize")
    short = call("hipEventSynchronize", 530 * US, 600 * US)
    assert "sync" not in two_kernels(short, at=4920, starts=4930)


def test_the_first_launch_of_a_kernel_waits_for_nothing() -> None:
    first = call("cudaLaunchKernel", 520 * US, 900 * US, correlation=2)
    found = causes(
        launch(5 * US, 10 * US, 1),
        kernel("a", 15 * US, 500 * US, 1),
        first,
        kernel("b", 880 * US, 895 * US, 2),
        launch(920 * US, 925 * US, 3),
        kernel("c", 930 * US, 950 * US, 3),
    )
    assert "sync" not in found


def test_work_that_starts_long_after_its_launch_waits_on_the_device() -> None:
    assert two_kernels(at=520, starts=5000) == {"host_late": (25, "cudaLaunchKernel"), "dependency": (4475, None)}
    assert two_kernels(at=520, starts=590) == {"host_late": (25, "cudaLaunchKernel"), "launch_latency": (65, None)}
    assert two_kernels(at=100, starts=5000) == {"dependency": (4500, None)}


def test_a_replayed_graph_launches_all_its_kernels() -> None:
    graph = call("cudaGraphLaunch", 5 * US, 20 * US, correlation=1)
    kernels = [kernel("k", (30 + 10 * i) * US, (38 + 10 * i) * US, 1) for i in range(10)]
    assert causes(graph, *kernels) == {"kernel_gap": (18, None)}
