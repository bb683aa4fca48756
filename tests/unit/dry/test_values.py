"""What a script reads from tensors without data: known values, means that follow, and what its control flow rests on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.dry_runs import dry_run

pytest.importorskip("torch")

SCRIPT = """
    import json
    import torch, torch.nn as nn, torch.nn.functional as F

    say = {}
    a = torch.randn(4, 4, device="cuda")
    say["read"] = [a.sum().item(), bool(torch.isnan(a).any()), f"{a.mean():.2f}", a[0].tolist(), a.cpu().numpy().shape]
    say["finite"] = [bool(torch.isfinite(a).all()), torch.allclose(a, a)]
    sizes = torch.tensor([3, 4, 5])
    say["known"] = [sizes.max().item(), sizes.tolist(), int(torch.as_tensor(sizes.numpy()).sum()), (sizes > 3).tolist()]
    say["chosen"] = [list(a[a > 0].shape), list(torch.where(a > 0)[0].shape), list(torch.unique(a).shape)]
    experts = torch.topk(torch.randn(64, 8, device="cuda"), 2)[1]
    mask = F.one_hot(experts, num_classes=8).permute(2, 1, 0)
    say["routed"] = [torch.where(mask[n])[0].shape[0] for n in range(8)]
    counts = torch.histc(experts.float(), bins=8, min=0, max=7).view(2, 4).sum(1)
    say["counted"] = [counts.tolist(), str(counts.device)]

    def early_stop():
        loss = a.mean().item()
        average = loss / 2
        return average > 3 if average else 0

    early_stop()
    if a.max() > 5:
        raise SystemExit
    print(json.dumps(say))
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(a).sum().backward()
        optimizer.step()
"""


def test_values_are_answered_and_noted(tmp_path: Path) -> None:
    record = dry_run(SCRIPT, tmp_path)
    said = json.loads(next(line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")))
    assert said["read"] == [1.0, False, "1.00", [1.0] * 4, [4, 4]]
    assert said["finite"] == [True, True]
    assert said["known"] == [5, [3, 4, 5], 12, [False, True, True]]
    assert said["chosen"] == [[16], [16], [16]]
    assert said["routed"] == [16] * 8
    assert said["counted"] == [[64, 64], "cuda:0"]
    assert {note["place"] for note in record["notes"] if note["code"] == "value-decides"} == {
        "script.py:19",
        "script.py:24",
    }
    assert "script.py:7" in {note["place"] for note in record["notes"] if note["code"] == "value-read"}
    assert "script.py:10" not in {note["place"] for note in record["notes"]}


def test_a_value_decides_only_where_it_is_in_the_condition(tmp_path: Path) -> None:
    record = dry_run(
        """
        import torch
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for i in range(2):
            loss = model(torch.randn(4, 4, device="cuda")).sum()
            loss.backward(); optimizer.zero_grad()
            if i % 10 == 0: print(loss.item())
            if torch.isnan(loss): raise SystemExit
            if loss.item() > 5: print("large")
            optimizer.step()
        """,
        tmp_path,
    )
    decides = [note["place"] for note in record["notes"] if note["code"] == "value-decides"]
    only_read = [note["place"] for note in record["notes"] if note["code"] == "value-read"]
    assert "script.py:9" in decides
    assert "script.py:10" in decides
    if hasattr((lambda: 0).__code__, "co_positions"):
        assert (decides, only_read) == (["script.py:9", "script.py:10"], ["script.py:8"])


def test_what_never_steps_for_an_answer_names_its_line(tmp_path: Path) -> None:
    failure = dry_run(
        """
        import torch
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for i in range(2):
            loss = model(torch.randn(4, 4, device="cuda")).sum()
            loss.backward()
            if loss.item() > 5:
                optimizer.step()
        """,
        tmp_path,
    )
    assert failure["reason"] == "no-step"
    assert "script.py:8" in failure["text"]
