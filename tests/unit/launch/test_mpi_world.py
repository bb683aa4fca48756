"""The worlds of mpirun and of Ray Train, as torch's launchers would describe them; the interface between hosts."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from stepscope.core.errors import MissingError, UsageError
from stepscope.launch.join import group_id, joined_world, with_interface, world_environ

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-n1-4242@1", "PMIX_RANK": "5",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
RAY = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "41001", "RAY_JOB_ID": "02000000", "RAY_RAYLET_PID": "77",
}  # fmt: skip


def test_a_process_of_open_mpi_is_a_rank_that_meets_where_it_is_told_to() -> None:
    found = world_environ({**OPEN_MPI, "MASTER_ADDR": "n1"})
    world = {name: found[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")}
    assert world == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "n1"}
    assert 20_000 <= int(found["MASTER_PORT"]) < 40_000
    other = world_environ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "MASTER_ADDR": "n1"})
    assert other["MASTER_PORT"] == found["MASTER_PORT"], "one start of a world has one port"
    again = {**OPEN_MPI, "MASTER_ADDR": "n1", "PMIX_NAMESPACE": "prterun-n1-4343@1"}
    assert group_id(again) != group_id({**OPEN_MPI, "MASTER_ADDR": "n1"})


def test_ranks_of_one_host_meet_there_and_need_nothing_more() -> None:
    assert joined_world(HYDRA) == (1, 2)
    assert world_environ(HYDRA)["MASTER_ADDR"] == "127.0.0.1"


def test_rank_zero_is_on_the_first_host_of_the_scheduler(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("c7\nc7\nc8\n")
    assert world_environ({**OPEN_MPI, "PBS_NODEFILE": str(nodes)})["MASTER_ADDR"] == "c7"
    assert world_environ({**OPEN_MPI, "LSB_MCPU_HOSTS": "h3 4 h4 4"})["MASTER_ADDR"] == "h3"
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    found = world_environ({**OPEN_MPI, **slurm})  # srun started mpirun's daemons, one on each host
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"]) == ("5", "8", "localhost")


def test_a_world_without_a_place_to_meet_is_refused_with_what_to_export() -> None:
    with pytest.raises(MissingError, match="on which host rank 0 is") as caught:
        joined_world(OPEN_MPI)
    assert "mpirun -x MASTER_ADDR=HOST" in str(caught.value.fix)


def test_one_process_of_mpirun_is_no_world() -> None:
    assert joined_world({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "many"}, "OMPI_COMM_WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": ""}, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "8"}, "contradict"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "4"}, "contradict"),
    ],
)
def test_variables_that_make_no_sense_are_refused(change: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        joined_world(OPEN_MPI | change)


def test_pmix_alone_states_no_size_and_says_so() -> None:
    with pytest.raises(UsageError, match="PMIX_RANK=3"):
        joined_world({"PMIX_RANK": "3", "PMIX_NAMESPACE": "x"})


def test_a_worker_of_ray_train_has_torchs_own_variables() -> None:
    assert joined_world(RAY) == (1, 2)
    assert "02000000" in group_id(RAY)


def test_ranks_of_several_hosts_take_the_interface_that_leads_to_rank_zero() -> None:
    there = [
        (name, each.address) for name, all_ in psutil.net_if_addrs().items() for each in all_ if "." in each.address
    ]
    own = [(name, address) for name, address in there if not address.startswith("127.")]
    if not own:
        pytest.skip("this machine has loopback only")
    name, address = own[0]
    found = with_interface({**RAY, "MASTER_ADDR": address})
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == (name, name)
    assert with_interface({**RAY, "MASTER_ADDR": address, "GLOO_SOCKET_IFNAME": "ib0"})["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in with_interface({**RAY, "MASTER_ADDR": "127.0.0.1"})
    assert "GLOO_SOCKET_IFNAME" not in with_interface({**RAY, "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": address})
