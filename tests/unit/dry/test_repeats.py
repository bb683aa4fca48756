"""Operators that a dry run answers from memory give what torch gives, and lists of DTensors go to their parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dry_runs import dry_run

pytest.importorskip("torch")

REPEATED = """
    import torch

    def form(t):
        if isinstance(t, (list, tuple)):
            return [form(one) for one in t]
        return (t.shape, t.stride(), t.storage_offset(), t.dtype, t.device)

    def calls():
        x = torch.randn(4, 8, 6, device="cuda", dtype=torch.bfloat16)
        half = x[:, ::2]
        many = [torch.randn(3, device="cuda"), torch.randn(4, device="cuda")]
        views = [x.view(32, 6), x.transpose(0, 2), half, x.expand(2, 4, 8, 6), x.split(3, -1)[0], half.unsqueeze(0)]
        made = [x + 1, half * 2.0, x @ x.transpose(1, 2), x.sum(-1), x.max(-1).values, half.contiguous(), x.float(),
                torch.cat([x, x]), x.new_zeros(3), torch._foreach_mul(many, 2.0), x.to("cpu"), torch.full_like(x, 3)]
        assert all(view.untyped_storage()._cdata == x.untyped_storage()._cdata for view in views)
        assert all(t.untyped_storage()._cdata != x.untyped_storage()._cdata for t in made[:5])
        assert x.mul_(2) is x and many[0].add_(many[0]) is many[0] and torch._foreach_add_(many, 1.0) is not x
        return form([*views, *made])

    first = calls()
    assert calls() == first and calls() == first
    assert (torch.ones(2, 2, device="cuda") + 1).dtype is not (torch.ones(2, 2, device="cuda") + True > 0).dtype

    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.randn(2, 4, device="cuda")).sum().backward()
        optimizer.step()
"""

LISTS = """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("nccl")
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False, device="cuda") for _ in range(3)])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(2, 64, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert type(optimizer.state[model[0].weight]["exp_avg"]) is torch.distributed.tensor.DTensor
"""


def test_results_from_memory_are_torchs(tmp_path: Path) -> None:
    record = dry_run(REPEATED, tmp_path)
    assert record["steps"] == 2, record


def test_lists_of_dtensors_go_to_their_parts(tmp_path: Path) -> None:
    record = dry_run(LISTS, tmp_path, world=16)
    rows = {row["op"]: row for row in record["operators"] if row["phase"] == "optimizer"}
    assert rows["aten._foreach_addcdiv_.ScalarList"]["shapes"] == [[4, 64]] * 9
    assert not [call for call in record["calls"] if call["phase"] == "optimizer"]
