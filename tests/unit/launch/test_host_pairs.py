"""Which pair and which end of the network is slow, by made rates; the tasks of a started world as hosts."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from itertools import permutations

import pytest

from stepscope.core.errors import MissingError
from stepscope.launch.hosts.checkup import check_up, document
from stepscope.launch.hosts.pairs import TriedPair, rounds, slow_ends, slow_pairs
from stepscope.launch.hosts.tasks import gather, meeting_port, named_apart, nodes_of
from stepscope.launch.ports import free_port


def pairs(hosts: str, rates: dict[str, float] | None = None) -> list[TriedPair]:
    """Of all hosts at 1 GB/s but for ``rates``: ``ab`` is from a to b, ``a*`` from a to all."""
    rates = rates or {}
    return [
        TriedPair(
            source=a, target=b, address="x", round_trip_ns=50_000,
            bytes_per_s=rates.get(a + b, rates.get(f"{a}*", rates.get(f"*{b}", 1e9))),
        )
        for a, b in permutations(hosts, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "rates", "ends"),
    [
        ("abcd", {}, []),
        ("abcd", {"a*": 0.7e9}, []),
        ("abcd", {"c*": 0.2e9}, [("c", "out")]),
        ("abcd", {"*b": 0.2e9}, [("b", "in")]),
        ("abcd", {"b*": 0.2e9, "*b": 0.2e9}, [("b", "out"), ("b", "in")]),
        ("abcd", {"ac": 0.2e9}, []),
        ("abc", {"c*": 0.2e9}, [("c", "out")]),
        ("abc", {"b*": 0.2e9, "*b": 0.2e9}, [("b", "out"), ("b", "in")]),
        ("ab", {"ab": 0.5e9}, []),
        ("ab", {"ab": 0.2e9}, []),  # of two hosts, either end may be the slow one
    ],
)
def test_the_end_that_explains_slow_pairs_is_named(
    hosts: str, rates: dict[str, float], ends: list[tuple[str, str]]
) -> None:
    found = pairs(hosts, rates)
    assert [(end.host, end.direction) for end in slow_ends(found)] == ends
    assert bool(slow_pairs(found)) == any(rate < 0.5e9 for rate in rates.values())


@pytest.mark.parametrize("number", [2, 3, 4, 7])
def test_every_two_hosts_meet_once_and_no_host_is_in_two_pairs_at_once(number: int) -> None:
    found = rounds(list(range(number)))  # type: ignore[arg-type]
    met = [frozenset(pair) for together in found for pair in together]
    assert len(met) == len(set(met)) == number * (number - 1) // 2
    for together in found:
        busy = [host for pair in together for host in pair]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, 1),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2),
        ({"WORLD_SIZE": "2", "SLURM_NNODES": "2"}, 2),
        ({"WORLD_SIZE": "2"}, 1),
        ({"WORLD_SIZE": "1", "SLURM_NNODES": "2"}, 1),
    ],
)
def test_nodes_of_a_world_are_counted(environ: dict[str, str], nodes: int) -> None:
    assert nodes_of(environ) == nodes


def test_tasks_of_other_nodes_answer_and_their_differences_are_found() -> None:
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    code = f"import sys; from stepscope.launch.hosts.tasks import answer_first_task;answer_first_task({environ!r})"
    with ExitStack() as stack:
        task = subprocess.Popen([sys.executable, "-c", code], env={"NCCL_DEBUG": "INFO", "PATH": ""})
        stack.callback(task.wait)
        stack.callback(task.kill)
        (other,) = gather(environ, 2, stack, patience_s=30)
        found = check_up([other], torch_timeout_s=1)
        assert [node.environment.variables["NCCL_DEBUG"] for node in found.nodes] == ["INFO"]
        assert document(found)["nodes"][0]["clock_error_ns"] > 0
        assert named_apart([other])[0].host == found.nodes[0].name
    assert task.returncode is not None


def test_a_node_that_does_not_come_is_missed() -> None:
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    with ExitStack() as stack, pytest.raises(MissingError, match="1 node of 2"):
        gather(environ, 2, stack, patience_s=0.05)
    assert meeting_port(environ) == int(environ["MASTER_PORT"]) + 1
