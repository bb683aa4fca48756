"""The program of a rank in a training command, whatever starts its ranks."""

from __future__ import annotations

import shlex

import pytest

from stepscope.core.errors import UsageError
from stepscope.launch.training_command import rank_program


@pytest.mark.parametrize(
    ("line", "words", "launcher", "ranks"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1", "train.py --lr 1", "torchrun", 8),
        ("torchrun --nnodes=2 --nproc_per_node=4 -m pkg.train a", "-m pkg.train a", "torchrun", 4),
        ("torchrun --standalone --nproc-per-node gpu train.py", "train.py", "torchrun", None),
        ("torchrun --no-python --nproc-per-node 2 python x.py", "x.py", "torchrun", 2),
        ("python -m torch.distributed.run --nproc-per-node 2 x.py", "x.py", "torchrun", 2),
        ("accelerate launch --num_processes 8 train.py -x", "train.py -x", "accelerate", None),
        ("python -m accelerate.commands.launch --config_file c.yaml t.py", "t.py", "accelerate", None),
        ("srun -N 2 --ntasks-per-node=4 python train.py", "train.py", "srun", 4),
        ("srun torchrun --nproc-per-node 8 t.py", "t.py", "torchrun", 8),
        ("mpirun -np 16 --map-by ppr:8:node python t.py", "t.py", "mpirun", 8),
        ("python -u train.py", "-u train.py", None, None),
    ],
)
def test_a_rank_runs_its_script(line: str, words: str, launcher: str | None, ranks: int | None) -> None:
    program = rank_program(shlex.split(line))
    assert " ".join(program.words[1:]) == words
    assert (program.launcher, program.ranks) == (launcher, ranks)
    assert "python" in program.words[0]


def test_what_stands_before_the_launcher_stays() -> None:
    assert rank_program(["uv", "run", "torchrun", "t.py"]).words == ("uv", "run", "python", "t.py")
    assert rank_program(["./t.py", "a"]).words == ("./t.py", "a")


@pytest.mark.parametrize(
    "line", ["bash run.sh", "deepspeed train.py", "torchrun --nproc-per-node 2", "srun -N 2 python", "make"]
)
def test_a_command_without_a_known_program_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        rank_program(shlex.split(line))
