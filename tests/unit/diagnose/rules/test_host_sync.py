"""The host waits for the device, or for memory of the driver."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, call, kernel, launch, op
from tests.trace_evidence import by_hand, found, quiet

from stepscope.diagnose.rules.host_sync import RULE

US = 1000


def driven(take: str, give: str, *, kernels: int = 60, every: int = 1, takes: int = 80, gives: int = 170) -> list[Row]:
    """Kernels of 100 us; before every so many of them the host takes memory, behind it gives it back, in so many us."""
    rows: list[Row] = []
    at = 0
    for i in range(kernels):
        asks = i % every == 0
        if asks:
            rows.append(call(take, at, at + takes * US))
            at += takes * US
        rows += [
            op("aten::mm", at, at + 9 * US),
            launch(at, at + 5 * US, i + 1),
            kernel("gemm", at + 8 * US, at + 108 * US, i + 1),
        ]
        at += 10 * US
        if asks:
            rows.append(call(give, at, at + gives * US))
            at += gives * US
        else:
            at += 98 * US
    return rows


@pytest.mark.parametrize(
    ("take", "give"), [("cudaMalloc", "cudaFree"), ("hipMalloc", "hipFree"), ("cuMemMap", "cuMemUnmap")]
)
def test_an_allocator_without_a_cache_is_found_in_a_trace(take: str, give: str) -> None:
    finding = found(RULE, by_hand(*driven(take, give)))
    assert finding.title.startswith("the allocator keeps no cache: the device idles")
    assert f"in {take} and {give}" in finding.title
    assert finding.evidence[-1] == f"60 {take}, 60 {give}, 2.0 calls a kernel"
    assert finding.share == pytest.approx(159 / 260, abs=0.02)
    steps = {a.text.partition(":")[0] for a in finding.advice}
    assert ("make sizes repeat, or let segments grow in place" in steps) == (take != "cuMemMap")


def test_a_loop_that_empties_its_cache_has_one() -> None:
    finding = found(RULE, by_hand(*driven("cudaMalloc", "cudaFree", kernels=700, every=13)))
    assert finding.title.startswith("the allocator asks the driver again and again")
    assert not any("CACHING" in a.text for a in finding.advice)


@pytest.mark.parametrize(("give", "kernels"), [("cudaMalloc", 60), ("cudaFree", 40)])
def test_a_pool_that_grows_is_a_cache(give: str, kernels: int) -> None:
    finding = found(RULE, by_hand(*driven("cudaMalloc", give, kernels=kernels)))
    assert finding.title.startswith("the host waits for memory of the driver, and the device then idles")


@pytest.mark.parametrize(
    ("take", "give"), [("cudaMallocAsync", "cudaFreeAsync"), ("cuMemAllocAsync", "cuMemFreeAsync")]
)
def test_the_pool_of_an_asynchronous_driver_is_a_cache_unless_it_asks_for_long(take: str, give: str) -> None:
    short = driven(take, give, takes=45, gives=45)
    assert "the device idles 0% of the window" in quiet(RULE, by_hand(*short))
    finding = found(RULE, by_hand(*driven(take, give)))
    assert finding.title.startswith("the allocator gives its pool back: the device idles 60%")
    assert not any("CACHING" in a.text or "segments" in a.text for a in finding.advice)


@pytest.mark.parametrize(
    ("name", "module"),
    [("cudaDeviceSynchronize", "cuda"), ("aclrtSynchronizeDevice", "npu"), ("musaDeviceSynchronize", "musa")],
)
def test_the_advice_has_the_module_of_the_device(name: str, module: str) -> None:
    finding = found(RULE, by_hand(*driven("cudaEventRecord", name)))
    assert f"mostly in {name}" in finding.evidence[0]
    assert f"remove torch.{module}.synchronize()" in finding.advice[0].text


def test_launches_that_wait_are_told_from_reads() -> None:
    rows: list[Row] = []
    for i in range(8):
        at = 300 * i * US
        rows += [
            op("aten::mm", at, at + 250 * US),
            call("hipLaunchKernel", at + 5 * US, at + 215 * US, correlation=i + 1),
            kernel("gemm", at + 10 * US, at + 210 * US, i + 1),
        ]
    finding = found(RULE, by_hand(*rows))
    assert "mostly in hipLaunchKernel" in finding.evidence[0]
    assert [a.command for a in finding.advice] == ["unset HIP_LAUNCH_BLOCKING"]
