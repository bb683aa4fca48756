"""A dry run of what chooses: as many rows for each, and values that ranks exchange where every rank has the same."""

from __future__ import annotations

from pathlib import Path

from tests.dry_runs import dry_run

MIXTURE = """
    import torch, torch.nn as nn, torch.distributed as dist

    dist.init_process_group("gloo")
    count = torch.tensor([3])
    dist.all_reduce(count)
    router, experts = nn.Linear(16, 8), nn.ModuleList(nn.Linear(16, 32) for _ in range(8))
    optimizer = torch.optim.SGD([*router.parameters(), *experts.parameters()], lr=0.1)
    while True:
        x = torch.randn(int(count), 64, 16).flatten(0, 1)
        chosen = router(x).topk(2).indices
        hot = nn.functional.one_hot(chosen, 8).permute(2, 1, 0)
        loss = 0
        for number in (hot.sum((1, 2)) > 0).nonzero().flatten().tolist():
            place, row = torch.where(hot[number])
            loss = loss + experts[number](x[row]).sum()
        for number, rows in enumerate(torch.bincount(chosen.flatten(), minlength=8).tolist()):
            loss = loss + experts[number](x[:rows]).sum() + experts[number](x[(chosen == number).any(-1)]).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_every_expert_gets_as_many_rows_and_known_values_are_added_up_over_ranks(tmp_path: Path) -> None:
    record = dry_run(MIXTURE, tmp_path, world=4)
    tokens, even = 3 * 4 * 64, 3 * 4 * 64 * 2 // 8
    forward = [record["operators"][row] for row in record["order"] if record["operators"][row]["phase"] == "forward"]
    products = [row["out_shapes"][0] for row in forward if row["flop"]]
    assert products == [[tokens, 8], *[[even, 32]] * 24]
    assert {note["code"] for note in record["notes"]} >= {"experts"}
