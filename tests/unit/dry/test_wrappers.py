"""Wrappers that share work among GPUs: when their collectives may begin, and who waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dry_runs import dry_run

pytest.importorskip("torch")

TRAINS = """
    import torch, torch.distributed as dist
    from torch import nn
    dist.init_process_group("nccl")
    layers = [nn.Sequential(nn.Linear(64, 64), nn.SyncBatchNorm(64)) for _ in range(4)]
    model = nn.Sequential(*layers).cuda()
    wrap = nn.parallel.DistributedDataParallel

    def train(model, optimizer):
        while True:
            model(torch.randn(4, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
MIB = 1 << 20


def test_buckets_go_as_they_fill_and_are_waited_for_as_the_backward_pass_ends(tmp_path: Path) -> None:
    record = dry_run(
        TRAINS
        + """
    model = wrap(model, device_ids=[0], bucket_cap_mb=0.03)
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    model.register_comm_hook(None, bf16_compress_hook)
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    """,
        tmp_path,
    )
    buckets = [call for call in record["calls"] if call["carries"] == "gradients"]
    item, linear, norm = 2, 64 * 65, 128
    assert [call["size_bytes"] for call in buckets] == [item * (2 * linear + 2 * norm)] * 2
    assert [call["dtype"] for call in buckets] == ["bfloat16"] * 2
    phases = [record["operators"][index]["phase"] for index in record["order"]]
    last = max(at for at, phase in enumerate(phases) if phase == "backward")
    assert buckets[0]["after"] < buckets[1]["after"] <= buckets[0]["waited"] <= last
    assert record["settings"]["ddp.bucket_bytes"] == str(int(0.03 * MIB))
    statistics = [call for call in record["calls"] if call["carries"] == "activations"]
    assert [(c["op"], c["size_bytes"]) for c in statistics] == [("all_gather", 8 * 4 * 129)] * 4 + [
        ("all_reduce", 4 * 128)
    ] * 4
    buffers = [call for call in record["calls"] if call["carries"] == "parameters"]
    assert [(c["op"], c["size_bytes"]) for c in buffers] == [("broadcast", 4 * 4 * 128), ("broadcast", 4 * 8)]


def test_a_bucket_may_be_asked_for_that_the_script_does_not_ask_for(tmp_path: Path) -> None:
    script = TRAINS + "\n    train(wrap(model), torch.optim.SGD(model.parameters(), 0.1))\n"
    record = dry_run(script, tmp_path, changes={"bucket": str(16 << 10)})
    sizes = [call["size_bytes"] for call in record["calls"] if call["carries"] == "gradients"]
    assert len(sizes) == 4
    assert sum(sizes) == 4 * 4 * (64 * 65 + 128)


def test_fsdp1_gathers_no_further_ahead_than_its_limit(tmp_path: Path) -> None:
    record = dry_run(
        TRAINS
        + """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    layers = [FSDP(nn.Linear(64, 64).cuda()) for _ in range(6)]
    model = FSDP(nn.Sequential(*layers))
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    """,
        tmp_path,
    )
    gathers = [call for call in record["calls"] if call["op"] == "all_gather" and call["phase"] == "forward"]
    assert [call["size_bytes"] for call in gathers] == [4 * 64 * 65] * 6
    ready = [call["after"] for call in gathers]
    assert ready[0] == ready[2] < ready[3] < ready[4]
    assert all(call["after"] < call["waited"] for call in gathers)
    assert record["wrappers"] == ["fsdp1"]


def test_an_optimizer_within_the_backward_pass_is_refused_with_its_line(tmp_path: Path) -> None:
    failure = dry_run(
        TRAINS
        + """
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = wrap(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, overlap_with_ddp=True, lr=0.1)
    model.register_comm_hook(None, ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer))
    """,
        tmp_path,
    )
    assert (failure["reason"], failure["place"]) == ("unsupported", "script.py:19")
