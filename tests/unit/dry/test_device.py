"""What a script finds of GPUs under a dry run: torch.cuda answers, and tensors on cuda behave as there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.dry_runs import dry_run

pytest.importorskip("torch")

SCRIPT = """
    import copy, json
    import torch, torch.nn as nn, torch.nn.functional as F

    say = {}
    cuda = torch.cuda
    say["device"] = [cuda.is_available(), cuda.device_count(), cuda.get_device_name(),
                     list(cuda.get_device_capability("cuda:3")),
                     cuda.get_device_properties(0).total_memory, cuda.is_bf16_supported(), cuda.mem_get_info()[1]]
    cuda.set_device("cuda:2")
    say["current"] = [cuda.current_device(), str(torch.zeros(1, device="cuda").device)]
    with cuda.device(5):
        say["inside"] = cuda.current_device()
    cuda.set_device(0)
    with cuda.stream(cuda.Stream()), cuda.nvtx.range("x"):
        events = [cuda.Event(enable_timing=True) for _ in range(2)]
        [event.record() for event in events]
        cuda.synchronize()
        say["elapsed"] = events[0].elapsed_time(events[1])
    cuda.manual_seed_all(1)
    generator = torch.Generator(device="cuda").manual_seed(2)
    say["drawn"] = str(torch.randn(2, device="cuda", generator=generator).device)

    layer = nn.Linear(64, 64)
    weight = layer.weight
    layer.to("cuda", torch.bfloat16)
    say["moved"] = [layer.weight is weight, weight.is_cuda, str(weight.dtype)]
    with torch.device("meta"):
        empty = nn.Linear(4, 4)
    say["materialised"] = str(empty.to_empty(device="cuda")(torch.ones(1, 4, device="cuda")).device)
    say["copied"] = str(copy.deepcopy(empty)(torch.ones(1, 4).pin_memory().cuda(non_blocking=True)).device)
    torch.set_default_device("cuda")
    say["default"] = torch.ones(1).is_cuda
    torch.set_default_device("cpu")

    model = nn.Linear(64, 64).cuda()
    x = torch.randn(8, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        y = model(x)
        say["autocast"] = [str(t.dtype) for t in (y, F.softmax(y, -1), F.layer_norm(y, (64,)), F.mse_loss(y, x))]

    def kernel(dtype=torch.bfloat16, heads=4, mask=None, **options):
        q = torch.randn(2, 4, 32, 64, device="cuda", dtype=dtype, requires_grad=True)
        k = torch.randn(2, heads, 32, 64, device="cuda", dtype=dtype)
        out = F.scaled_dot_product_attention(q, k, k, mask, **options)
        name = out.grad_fn.name()
        out.sum().backward()
        return name[len("ScaledDotProduct"):-len("Backward0")]
    mask = torch.ones(2, 1, 32, 32, device="cuda", dtype=torch.bool)
    say["attention"] = [kernel(is_causal=True), kernel(heads=2, enable_gqa=True), kernel(torch.float32),
                        kernel(mask=mask, dropout_p=0.1)]

    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        F.silu(F.dropout(F.rms_norm(model.weight, (64,)), 0.1)).sum().backward()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if len(say) < 20:
            say["scaled"] = scaler.get_scale()
            print(json.dumps(say), flush=True)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def test_a_script_finds_the_gpus_asked_for(tmp_path: Path) -> None:
    gpu = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 << 30, "capability": [8, 0]}
    record = dry_run(SCRIPT, tmp_path, world=16, device=gpu)
    text = (tmp_path / "log").read_text()
    said = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert said["device"] == [True, 8, gpu["name"], [8, 0], 80 << 30, True, 80 << 30]
    assert (said["current"], said["inside"]) == ([2, "cuda:2"], 5)
    assert said["drawn"] == said["materialised"] == said["copied"] == "cuda:0"
    assert said["moved"] == [True, True, "torch.bfloat16"]
    assert said["default"] is True
    assert said["autocast"] == ["torch.float16", "torch.float32", "torch.float32", "torch.float32"]
    flash, efficient = "FlashAttention", "EfficientAttention"
    assert said["attention"] == [flash, flash, efficient, efficient]
    assert record["device"] == "cuda"
    made = {row["op"][5:-8] for row in record["operators"]}
    assert {"_fused_rms_norm", "_fused_rms_norm_backward", "silu_backward", "native_dropout"} <= made
    optimizer = {row["op"] for row in record["operators"] if row["phase"] == "optimizer"}
    assert any(op.startswith("aten._foreach_addcdiv_") for op in optimizer)
    products = [row for row in record["operators"] if row["op"] in ("aten.mm.default", "aten.addmm.default")]
    assert {row["dtypes"][0] for row in products} == {"float16"}
    assert said["scaled"] == 65536
    assert {note["code"] for note in record["notes"]} == {"alone"}


@pytest.mark.parametrize("line", ["torch.cuda.CUDAGraph()", "torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())"])
def test_what_takes_a_gpu_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    failure = dry_run(f"import torch\n{line}\n", tmp_path)
    assert (failure["reason"], failure["place"]) == ("unsupported", "script.py:2")
