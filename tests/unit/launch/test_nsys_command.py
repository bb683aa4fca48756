"""nsys goes around each rank's program, with what the installed version knows."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.e2e.fake_nsys import NEW, OLD

from stepscope.core.errors import UsageError
from stepscope.launch.nsys_command import Nsys, around_ranks

FOLDER = Path("/out/window-1")
LINE = (
    "nsys profile --trace=cuda,nvtx,osrt,cudnn,cublas,nccl --capture-range=cudaProfilerApi --capture-range-end=stop "
    "--sample=none --cpuctxsw=none --force-overwrite=true --output=/out/window-1/rank-"
)


def _line(command: str, said: str = NEW) -> str:
    return shlex.join(around_ranks(shlex.split(command), Nsys(version="2025.1.1", help=said), FOLDER)).replace("'", "")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", LINE + "0 python train.py --lr 1"),
        ("/env/bin/python3.11 -m train", LINE + "0 /env/bin/python3.11 -m train"),
        (
            "/no/torchrun --standalone --nproc_per_node 8 --tee=3 train.py --lr 9",
            f"/no/torchrun --standalone --nproc_per_node 8 --tee=3 --no_python {LINE}%q{{RANK}} python -u train.py --lr 9",
        ),
        (
            "/no/torchrun --nproc-per-node=2 -m package.train -m x",
            f"/no/torchrun --nproc-per-node=2 --no_python {LINE}%q{{RANK}} python -u -m package.train -m x",
        ),
        (
            "/no/torchrun --nnodes 2 --no-python ./train --fast",
            f"/no/torchrun --nnodes 2 --no-python {LINE}%q{{RANK}} ./train --fast",
        ),
        (
            "python3 -m torch.distributed.run --nproc-per-node 2 train.py",
            f"python3 -m torch.distributed.run --nproc-per-node 2 --no_python {LINE}%q{{RANK}} python3 -u train.py",
        ),
        (
            "/no/accelerate launch --num_processes 2 train.py --x",
            f"/no/accelerate launch --num_processes 2 --no_python {LINE}%q{{RANK}} python -u train.py --x",
        ),
        ("srun -N 2 --ntasks 8 python train.py", f"srun -N 2 --ntasks 8 {LINE}%q{{SLURM_PROCID}} python train.py"),
        (
            "mpirun -np 2 -x PYTHONPATH python3 train.py",
            f"mpirun -np 2 -x PYTHONPATH {LINE}%q{{OMPI_COMM_WORLD_RANK}} python3 train.py",
        ),
    ],
)
def test_each_launcher_starts_nsys_which_starts_the_program(command: str, expected: str) -> None:
    assert _line(command) == expected


def test_an_old_version_is_asked_for_what_it_knows() -> None:
    assert _line("python train.py", OLD) == (
        "nsys profile --trace=cuda,nvtx,osrt,cublas --capture-range=cudaProfilerApi --stop-on-range-end=true --kill=none "
        "--force-overwrite=true --output=/out/window-1/rank-0 python train.py"
    )


@pytest.mark.parametrize(
    "command", ["bash train.sh", "deepspeed train.py", "torchrun --nproc-per-node 2", "torchrun --run-path train.py"]
)
def test_a_command_whose_program_is_not_seen_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match="--nsys") as refused:
        _line(command)
    assert refused.value.fix
