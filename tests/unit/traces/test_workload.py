"""What names say of the kind of job: who runs it, whether it trains, how its loader works, whether graphs are replayed."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, call, kernel, launch, mark, op, trace
from tests.trace_evidence import by_hand, found

from stepscope.diagnose.engine import check
from stepscope.diagnose.job_facts import facts_of
from stepscope.diagnose.rules import data_loading, host_sync, launch_bound, python_overhead, small_kernels
from stepscope.records.trace_rules import JobSigns
from stepscope.traces.events import RankView
from stepscope.traces.workload import frameworks_of, job_signs

US = 1000

ENGINES = {
    "vllm": "execute_context_0(0)_generation_16(16)",
    "sglang": "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(1790): run_batch",
    "tensorrt_llm": "[Executor] _forward_step 12: 0 ctx reqs, 16 gen reqs",
}


def signs(*rows: Row) -> JobSigns:
    return job_signs(RankView(trace(*rows)))


@pytest.mark.parametrize(("engine", "name"), ENGINES.items())
def test_an_engine_is_known_by_its_marks_and_trains_nothing(engine: str, name: str) -> None:
    rows = [mark(name, 0, 90 * US), launch(0, 5 * US, 1), kernel("nvjet_tst", 6 * US, 80 * US, 1)]
    made = trace(*rows)
    assert frameworks_of(made.events, made.meta) == (engine,)
    (job,) = by_hand(*rows).traces
    assert facts_of(job.summary).trains is False


@pytest.mark.parametrize(
    ("name", "serves"),
    [
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<true>", True),
        ("_ZN4vllm25paged_attention_v2_kernelE", True),
        ("void mmha::masked_multihead_attention_kernel<float>", True),
        ("_fwd_grouped_kernel_stage1", True),
        ("decode", True),
        ("decoder_layer", False),
        ("nvjet_tst_128x256", False),
    ],
)
def test_kernels_and_marks_of_any_server_are_known(name: str, serves: bool) -> None:
    assert signs(kernel(name, 0, 10)).serves is serves


def test_a_training_that_makes_its_own_samples_trains() -> None:
    rows = [
        mark("execute_context_0(0)_generation_8(8)", 0, 50 * US),
        launch(0, 5 * US, 1),
        kernel("paged_attention", 6 * US, 40 * US, 1),
        launch(60 * US, 65 * US, 2),
        kernel("flash_bwd_dq_dk_dv_loop", 70 * US, 99 * US, 2),
    ]
    (job,) = by_hand(*rows).traces
    assert facts_of(job.summary).trains is True


def test_what_nothing_tells_is_unknown() -> None:
    (job,) = by_hand(launch(0, 5, 1), kernel("gemm", 6, 80, 1)).traces
    assert facts_of(job.summary).trains is None


LOADER = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"


@pytest.mark.parametrize(("kind", "workers"), [("MultiProcessing", True), ("SingleProcess", False)])
def test_a_loader_says_whether_it_has_workers(kind: str, workers: bool) -> None:
    assert signs(mark(LOADER.format(kind), 0, 10), kernel("k", 20, 30)).loader_workers is workers
    assert signs(mark("load_batch", 0, 10), kernel("k", 20, 30)).loader_workers is None
    both = [mark(LOADER.format(kind), 0, 100), mark(LOADER.format("SingleProcess"), 100, 110), kernel("k", 20, 30)]
    assert signs(*both).loader_workers is workers


def waits_for_data(kind: str) -> list[Row]:
    rows = []
    for i in range(4):
        at = 200 * i * US
        rows += [
            mark(LOADER.format(kind), at, at + 100 * US),
            op("aten::mm", at + 100 * US, at + 110 * US),
            launch(at + 101 * US, at + 106 * US, i + 1),
            kernel("gemm", at + 110 * US, at + 200 * US, i + 1),
        ]
    return rows


def test_workers_are_not_advised_to_a_loader_that_has_them() -> None:
    texts = [a.text for a in found(data_loading.RULE, by_hand(*waits_for_data("MultiProcessing"))).advice]
    assert texts[0] == (
        "the loader has worker processes already, which do not keep up: raise num_workers, or prefetch_factor"
    )
    assert not any("in advance in worker processes" in text for text in texts)
    texts = [a.text for a in found(data_loading.RULE, by_hand(*waits_for_data("SingleProcess"))).advice]
    assert texts[0].startswith("load batches in advance in worker processes, none does now")
    assert not any("persistent_workers" in text for text in texts)


def decodes(call_name: str, *, between: int, long: int = 8, mark_name: str = ENGINES["vllm"]) -> list[Row]:
    """Four replays of twenty kernels; the host is late by ``between`` us before each."""
    rows, at = [], 0
    for i in range(4):
        begun = at
        rows.append(call(call_name, at, at + 20 * US, correlation=i + 1))
        at += 25 * US
        for _ in range(20):
            rows.append(kernel("void vllm::rms_norm_kernel<c10::BFloat16>", at, at + long * US, i + 1))
            at += (long + 1) * US
        rows.append(mark(mark_name, begun, at))
        at += between * US
    return rows


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"])
def test_replays_of_graphs_are_advised_no_graphs_and_no_training(name: str) -> None:
    evidence = by_hand(*decodes(name, between=1))
    assert signs(*decodes(name, between=1)).replayed == 1.0
    words = " | ".join(a.text for a in found(small_kernels.RULE, evidence).advice)
    assert "vLLM: --max-num-seqs" in words
    for never in ("micro-batch", "optimizer", "torch.compile(model)", "replay CUDA graphs"):
        assert never not in words
    late = by_hand(*decodes(name, between=400, long=40), op("aten::copy_", 0, 10))
    outcomes = [check(rule, late) for rule in (launch_bound.RULE, python_overhead.RULE)]
    findings = [f for outcome in outcomes if isinstance(outcome, tuple) for f in outcome]
    texts = [a.text for f in findings for a in f.advice]
    assert texts
    assert not any("replay CUDA graphs" in text or "micro-batch" in text for text in texts)


def test_a_server_that_waits_is_advised_to_read_later() -> None:
    rows: list[Row] = []
    for i in range(6):
        at = 200 * i * US
        rows += [
            op("aten::mm", at, at + 9 * US),
            launch(at, at + 5 * US, i + 1),
            kernel("paged_attention", at + 6 * US, at + 120 * US, i + 1),
            call("hipMemcpyWithStream", at + 10 * US, at + 130 * US),
        ]
    finding = found(host_sync.RULE, by_hand(*rows))
    texts = " | ".join(a.text for a in finding.advice)
    assert "mostly in hipMemcpyWithStream" in finding.evidence[0]
    assert "read them while the next batch runs" in texts
    assert "losses" not in texts


def test_a_server_that_runs_eagerly_is_advised_its_own_graphs() -> None:
    rows: list[Row] = [mark(ENGINES["vllm"], 0, 2000 * US)]
    for i in range(20):
        at = 100 * i * US
        rows += [op("_C::rms_norm", at, at + 9 * US), launch(at, at + 5 * US, i + 1)]
        rows.append(kernel("void vllm::rms_norm_kernel<c10::BFloat16>", at + 6 * US, at + 20 * US, i + 1))
    texts = [a.text for a in found(python_overhead.RULE, by_hand(*rows)).advice]
    assert any(text.startswith("vLLM: start without --enforce-eager") for text in texts)
    assert not any("torch.compile(model)" in text or "trains" in text for text in texts)
