"""The record of a script under a dry run: operators, FLOP, collectives with what they wait for, and why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.dry_runs import dry_run

pytest.importorskip("torch")

FSDP2 = """
    import torch, torch.nn as nn
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    model = nn.Sequential(*[Block() for _ in range(3)])
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        x = torch.randn(4, 16, 64)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PARAMETERS, TOKENS = 3 * 2 * 64 * 256, 4 * 16


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dry_run(FSDP2, tmp_path_factory.mktemp("sharded"), world=64)


def calls_of(record: dict[str, Any], op: str) -> list[dict[str, Any]]:
    return [call for call in record["calls"] if call["op"] == op]


def test_flop_are_those_of_the_whole_step(sharded: dict[str, Any]) -> None:
    flop = sum(sharded["operators"][row]["flop"] for row in sharded["order"])
    first_input_has_no_gradient = 2 * TOKENS * 64 * 256
    assert flop == 6 * PARAMETERS * TOKENS - first_input_has_no_gradient


def test_operators_know_their_module_phase_and_line(sharded: dict[str, Any]) -> None:
    products = [row for row in sharded["operators"] if row["op"] == "aten.mm.default"]
    assert {row["module"] for row in products} == {"*.up", "*.down"}
    assert {row["phase"] for row in products} == {"forward", "backward"}
    assert {row["place"] for row in products} == {"script.py:17"}
    assert {row["dtypes"][0] for row in products} == {"bfloat16"}


def test_collectives_have_their_sizes_groups_and_order(sharded: dict[str, Any]) -> None:
    whole = 2 * 64 * 256 * 2
    gathers = calls_of(sharded, "all_gather")
    assert [call["size_bytes"] for call in gathers] == [whole] * 6
    assert [call["size_bytes"] for call in calls_of(sharded, "reduce_scatter")] == [2 * whole] * 3
    assert sharded["groups"] == [{"ranks": list(range(64)), "axis": "shard"}]
    assert {call["carries"] for call in gathers} == {"parameters"}


def test_what_a_gather_waits_for_is_what_its_streams_say(sharded: dict[str, Any]) -> None:
    forward = [call for call in calls_of(sharded, "all_gather") if call["phase"] == "forward"]
    assert all(call["waited"] == call["at"] for call in forward)  # the host asks for it where it is needed
    assert forward[2]["after"] < forward[1]["waited"] + 10  # but it may begin as the gather before it is unpacked
    assert forward[2]["after"] < forward[2]["at"]
    backward = [call for call in calls_of(sharded, "all_gather") if call["phase"] == "backward"]
    assert backward[-1]["at"] < backward[-1]["waited"]  # prefetched
    assert all(call["after"] <= call["at"] <= call["waited"] for call in sharded["calls"])


def test_shards_are_held_and_states_counted(sharded: dict[str, Any]) -> None:
    kinds = ("parameters", "gradients", "optimizer")
    before = dict(zip((*kinds, "activations"), sharded["memory"]["samples"][0], strict=False))
    assert before["parameters"] == PARAMETERS * 4 // 64
    assert before["optimizer"] - 2 * before["parameters"] < 100  # and counts of steps
    assert before["gradients"] in (0, before["parameters"])
    assert sharded["parameters"] == sharded["trained"] == PARAMETERS


@pytest.mark.parametrize(
    ("script", "reason", "place"),
    [
        ("import torch\nfor _ in range(3):\n    torch.ones(3)\n", "no-step", None),
        ("import torch\nopen('missing')\n", "needs-data", "script.py:2"),
        ("import torch.distributed as d\nd.init_process_group('gloo', world_size=3)\n", "world", "script.py:2"),
        (
            "import torch\nfrom torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (3, 2))\n",
            "world",
            "script.py:3",
        ),
    ],
)  # fmt: skip
def test_why_there_is_no_step(tmp_path: Path, script: str, reason: str, place: str | None) -> None:
    failure = dry_run(script, tmp_path)
    assert (failure["reason"], failure["place"]) == (reason, place)


def test_a_script_is_recorded_twice_alike(tmp_path: Path, sharded: dict[str, Any]) -> None:
    again = dry_run(FSDP2, tmp_path, world=64)
    assert {**again, "created": ""} == {**sharded, "created": ""}


@pytest.mark.usefixtures("sharded")
def test_a_collective_beside_computation_is_waited_for_where_the_script_waits_and_tf32_is_seen(tmp_path: Path) -> None:
    script = """
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        torch.backends.cuda.matmul.allow_tf32 = True
        weight = torch.nn.Parameter(torch.randn(64, 64))
        optimizer = torch.optim.SGD([weight], 0.1)
        while True:
            x = torch.randn(8, 64)
            whole, part = torch.empty(8 * dist.get_world_size(), 64), torch.empty(1, 64)
            works = [
                dist.all_gather_into_tensor(whole, x, async_op=True), dist.reduce_scatter_tensor(part, x, async_op=True)
            ]
            y = x * 2
            for work in works:
                work.wait()
                y = y * 3
            (y @ weight).sum().backward()
            optimizer.step()
    """
    record = dry_run(script, tmp_path)
    assert record["settings"] == {"float32_matmul_precision": "high"}
    calls = record["calls"]
    assert [(call["op"], call["waited"] - call["at"]) for call in calls] == [("all_gather", 1), ("reduce_scatter", 2)]


def test_on_the_host_a_collective_that_is_not_asynchronous_holds_up_its_thread_whatever_the_stream(
    tmp_path: Path,
) -> None:
    record = dry_run(FSDP2.replace('"nccl"', '"gloo"'), tmp_path, world=4, device=None)
    assert {call["op"]: call["waited"] - call["at"] for call in record["calls"]} == {
        "all_gather": 0,
        "reduce_scatter": 0,
    }
    assert record["device"] == "cpu"
