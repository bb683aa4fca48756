"""The world of srun's tasks, as torch's launchers would describe it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.torch_forks import ForkedPopen, shared_server

from stepscope.core.errors import MissingError, UsageError
from stepscope.launch.join import first_host, group_id, joined_world, rank_zero_port, slurm_world, tasks_per_node

TASK = {
    "SLURM_JOB_ID": "4321", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "7", "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_TASKS_PER_NODE": "4,3",
}  # fmt: skip


def test_a_task_of_srun_is_a_rank() -> None:
    assert slurm_world(TASK, address=lambda host: f"{host}.cluster") == {
        "RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "gpu07.cluster",
        "MASTER_PORT": "24323",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"SLURM_STEP_ID": ""}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "", "SLURM_STEP_ID": ""}]
)
def test_a_batch_script_and_a_step_of_one_task_are_no_world(change: dict[str, str]) -> None:
    assert slurm_world(TASK | change) == {}
    assert joined_world(TASK | change) is None


@pytest.mark.parametrize("change", [{"SLURM_PROCID": "x"}, {"SLURM_LOCALID": ""}, {"SLURM_STEP_NODELIST": ""}])
def test_a_step_that_lacks_a_variable_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        slurm_world(TASK | change)


def test_torchs_own_variables_come_first() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    assert joined_world(TASK | torchrun) == (0, 2)
    assert "n1-29500" in group_id(TASK | torchrun)


def test_a_host_that_nobody_knows_is_an_error_and_never_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match="gpu07"):
        slurm_world(TASK)


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[007-009,12],login1", "gpu007"),
        ("r[1-2]c[03,5]", "r1c03"),
        ("a[5]-x", "a5-x"),
    ],
)
def test_the_first_host_of_a_list(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


@pytest.mark.parametrize(("text", "counts"), [("2(x3)", [2, 2, 2]), ("4(x2),3", [4, 4, 3]), ("8", [8]), ("?", [])])
def test_tasks_by_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


def test_ranks_meet_at_a_port_that_is_free() -> None:
    here = TASK | {"SLURM_STEP_NODELIST": "localhost"}
    port = rank_zero_port(here)
    assert port is not None
    with socket.create_server(("", port)):
        later = rank_zero_port(here | {"SLURM_JOB_ID": str(port - 20_000 - 2)})
    assert later is not None
    assert port < later < 32_000
    assert rank_zero_port(here | {"MASTER_PORT": "29500"}) is None
    assert slurm_world(TASK | {"MASTER_PORT": "29500"}, address=str)["MASTER_PORT"] == "29500"


@pytest.mark.e2e
def test_tasks_of_srun_join_one_world(tmp_path: Path) -> None:
    """Two processes as srun would start them, the port of their job in use: one run folder, one table, cells on both."""
    line = [
        sys.executable, "-m", "stepscope.cli", "bench", "--preset", "quick", "-o", str(tmp_path / "run"),
        "--set", "axes.strategy=[ddp]", "--set", "axes.model.size=[tiny]", "--steps", "4", "--warmup", "1",
    ]  # fmt: skip
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    step = clean | {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0",
        "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environs = [{**step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in "01"]
    with ExitStack() as held:
        with suppress(OSError):  # in use already: as good
            held.enter_context(socket.create_server(("", int(slurm_world(environs[0])["MASTER_PORT"]))))
        tasks = [
            ForkedPopen(
                line, server=shared_server(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=each
            )
            for each in environs
        ]
        for task in tasks:
            held.callback(task.communicate)
            held.callback(task.kill)
        printed = [task.communicate(timeout=100) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], printed
    assert "ddp" in printed[0][0]
    assert printed[1][0] == ""
    results = (tmp_path / "run" / "results.jsonl").read_text()
    assert '"world_size":2' in results.replace(" ", "")
