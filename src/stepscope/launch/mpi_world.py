"""The world of an MPI launcher (mpirun, mpiexec), as torch's launchers would describe it.

MPI launchers state rank and size in variables of their own, and no place to meet: that is MASTER_ADDR where it is exported,
this host where all ranks are on it, else the first host of the job as its scheduler lists it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import MissingError, UsageError
from stepscope.launch.ports import FIRST_PORT, PORTS

_STATED = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_RANK", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
)
"""Variables with the rank, size, local rank and local size: of Open MPI, MVAPICH, Intel MPI and MPICH's hydra, Cray PALS."""

_JOBS = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "PALS_APID",
    "PBS_JOBID",
    "LSB_JOBID",
    "SLURM_JOB_ID",
)
"""Variables that name one start of a world, the same on all of its ranks: the first that is set counts."""


def mpi_world(environ: Mapping[str, str], *, first_host: Callable[[str], str]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a process of mpirun.

    Empty outside a world of several ranks. first_host: of a host list of Slurm's. Raises UsageError where PMIx alone states
    a rank, or numbers contradict each other, MissingError where nothing says where ranks meet.
    """
    names = next((variables for variables in _STATED if environ.get(variables[0]) and environ.get(variables[2])), None)
    if names is None:
        _refuse_pmix_alone(environ)
        return {}
    values = [environ.get(name, "") for name in names]
    if odd := [name for name, value in zip(names, values, strict=True) if not value.isdigit()]:
        raise UsageError(
            f"{names[0]} is set, but {odd[0]} is {environ.get(odd[0])!r}, not a number",
            fix="start the command with mpirun or mpiexec, with the environment that it sets",
        )
    rank, size, local, here = map(int, values)
    if size == 1:
        return {}
    if rank >= size or local >= here:
        raise UsageError(
            f"{names[0]}={rank} and {names[1]}={size} contradict each other, or {names[2]}={local} and {names[3]}={here}"
        )
    job = next((environ[name] for name in _JOBS if environ.get(name)), "")
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(here),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or _head_host(environ, alone=here == size, first_host=first_host),
        "MASTER_PORT": environ.get("MASTER_PORT") or str(FIRST_PORT + zlib.crc32(job.encode()) % PORTS),
    }


def _head_host(environ: Mapping[str, str], *, alone: bool, first_host: Callable[[str], str]) -> str:
    """Return the host of rank 0: launchers put it on the first one."""
    if alone:
        return "127.0.0.1"
    if nodes := environ.get("SLURM_JOB_NODELIST"):
        return first_host(nodes)
    with suppress(OSError):
        if lines := Path(environ.get("PBS_NODEFILE", "")).read_text("utf-8").split():
            return lines[0]
    if hosts := environ.get("LSB_MCPU_HOSTS", environ.get("LSB_HOSTS", "")).split():
        return hosts[0]
    raise MissingError(
        "mpirun started this world, and nothing says on which host rank 0 is",
        why="MPI launchers state no place to meet, and no scheduler lists the hosts",
        fix="export it to all ranks: mpirun -x MASTER_ADDR=HOST (Open MPI), mpiexec -genv MASTER_ADDR HOST (others)",
    )


def _refuse_pmix_alone(environ: Mapping[str, str]) -> None:
    """Raise UsageError: PMIx states a rank in the environment, and the size only to programs that ask its library."""
    if (
        environ.get("PMIX_RANK", "").isdigit()
        and not environ.get("SLURM_STEP_ID")
        and not environ.get("OMPI_COMM_WORLD_SIZE")
    ):
        raise UsageError(
            f"PMIX_RANK={environ['PMIX_RANK']} is set, and no variable states the number of ranks",
            why="PMIx gives it to MPI programs alone",
            fix="start it with mpirun or srun, or export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
        )
