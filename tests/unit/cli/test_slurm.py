"""What ``stepscope slurm`` decides: worlds, nodes, scripts; what it refuses; what it does without Slurm and with its no."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.cli import slurm_run
from stepscope.cli.commands.slurm import Slurm
from stepscope.core.errors import MissingError, UsageError
from stepscope.launch.slurm import limit_s
from stepscope.launch.training_command import program_of_ranks

MATRIX = """\
version: 1
base: {workload: mlp, model: {size: tiny}, dataset: synthetic, dataset_options: {samples: 512}, global_batch: 32, steps: 20}
axes: {strategy: [ddp, fsdp2], world_size: [1, 2, 8]}
exclude: [{strategy: fsdp2, world_size: 1}]
measure: {timeout_s: 900}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder with a matrix, and no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "mine.yaml").write_text(MATRIX)
    return tmp_path


def sbatch(folder: Path, text: str) -> None:
    """A stand-in for Slurm's."""
    (folder / "bin").mkdir()
    (folder / "bin" / "sbatch").write_text(f"#!/bin/bash\n{text}\n")
    (folder / "bin" / "sbatch").chmod(0o755)


def slurm(*command: str, **options: object) -> int:
    return slurm_run.run(Slurm(command=list(command), **{"output": Path("jobs"), **options}))


def text(name: str) -> str:
    return Path("jobs", name).read_text()


def measured(name: str) -> list[list[str]]:
    """Nodes, ranks and words of each world of a script."""
    return [line.split()[1:] for line in text(name).splitlines() if re.match(r"(\d+\) )?measure \d", line)]


@pytest.mark.usefixtures("folder")
def test_a_matrix_is_measured_world_by_world() -> None:
    assert slurm("mine.yaml", gpus_per_node=4, time="10") == 0
    bench = ["-m", "stepscope.cli", "bench", "mine.yaml", "--set=measure.timeout_s=480", "-o", '"$RUN"']
    assert measured("mine.sbatch") == [["1", "1", *bench], ["1", "2", *bench], ["2", "4", *bench]]
    assert "#SBATCH --nodes=2\n" in text("mine.sbatch")
    assert "#SBATCH --requeue" in text("mine.sbatch")
    assert "REQUEUES=20" in text("mine.sbatch")


@pytest.mark.usefixtures("folder")
def test_an_array_has_a_task_for_each_cell_by_the_nodes_they_need() -> None:
    assert slurm("mine.yaml", gpus_per_node=4, layout="array", at_once=2) == 0
    assert "#SBATCH --array=0-2%2\n" in text("mine-1-nodes.sbatch")
    assert "#SBATCH --array=0-1%2\n" in text("mine-2-nodes.sbatch")
    shares = re.findall(r"^\d+\) measure (\d \d) .*--share=(\S+)", text("mine-1-nodes.sbatch"), re.MULTILINE)
    assert shares == [("1 1", "1/1"), ("1 2", "1/2"), ("1 2", "2/2")]
    assert '"$FOLDER"/run-*' in text("report.sbatch")


@pytest.mark.usefixtures("folder")
def test_a_training_command_runs_under_the_monitor_and_is_not_begun_again() -> None:
    assert slurm("torchrun", "--nproc-per-node=2", "train.py", "--lr", "3", nodes=3) == 0
    assert "\nwatch 3 2 train.py --lr 3\n" in text("train.sbatch")
    assert '-m stepscope.cli run -o "$RUN" -- "${LINE[@]}"' in text("train.sbatch")
    assert "#SBATCH --no-requeue" in text("train.sbatch")
    assert (
        slurm("profile", "--steps", "4", "--", "python", "-m", "my.train", ranks_per_node=1, requeue=2, force=True) == 0
    )
    assert "\nwatch 1 1 -m my.train\n" in text("train.sbatch")
    assert '-m stepscope.cli profile --steps 4 -o "$RUN"' in text("train.sbatch")


@pytest.mark.usefixtures("folder")
def test_sections_of_a_suite_train_first_and_sweep_then() -> None:
    assert slurm("bench", "--preset", "suite", "--only", "comm,scaling", gpus_per_node=4) == 0
    *training, sweep = measured("suite.sbatch")
    assert {word for world in training for word in world if "--only" in word} == {"--only=scaling"}
    assert sweep[:2] == training[-1][:2]
    assert "--only=comm" in sweep


@pytest.mark.usefixtures("folder")
def test_a_sweep_has_all_ranks_or_those_asked_for() -> None:
    assert slurm("comm", "--ops", "all_gather", nodes=2, gpus_per_node=4) == 0
    assert measured("comm.sbatch")[0][:6] == ["2", "4", "-m", "stepscope.cli", "comm", "--ops"]
    assert slurm("comm", "--ranks", "2,8", gpus_per_node=4, force=True) == 0
    assert [world[:2] for world in measured("comm.sbatch")] == [["1", "2"], ["2", "4"]]
    assert {word for world in measured("comm.sbatch") for word in world if "--ranks" in word} == {"--ranks=2,8"}


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("mine.yaml", {}, "how many ranks"),
        ("mine.yaml", {"gpus_per_node": 3}, "8 ranks fill no whole number"),
        ("mine.yaml", {"gpus_per_node": 4, "nodes": 1}, "8 ranks need 2 nodes"),
        ("mine.yaml", {"gpus_per_node": 4, "layout": "aray"}, "did you mean 'array'"),
        ("mine.yaml", {"gpus_per_node": 4, "time": "soon"}, "--time"),
        ("mine.yaml", {"gpus_per_node": 4, "time": "2"}, "no time to measure"),
        ("mine.yaml", {"gpus_per_node": 4, "at_once": 3}, "--at-once"),
        ("mine.yaml", {"gpus_per_node": 4, "mount": ("/data",)}, "--mount"),
        ("mine.yaml", {"gpus_per_node": 4, "sbatch": ("qos=high",)}, "not an option of sbatch"),
        ("mine.yaml", {"gpus_per_node": 4, "setup": ("a\nb",)}, "several lines"),
        ("mine.yaml", {"gpus_per_node": 4, "apptainer": "a", "container_image": "b"}, "both name the image"),
        ("bench mine.yaml -o here", {"gpus_per_node": 4}, "--output"),
        ("bench mine.yaml --only training", {"gpus_per_node": 4}, "section"),
        ("bench mine.yaml --set launch.env.A=b", {"gpus_per_node": 4}, "launch.env sets A"),
        ("bench mine.yaml --set comm.ops=all", {"gpus_per_node": 4}, "sweeps collectives"),
        ("comm --ops all_reduce", {"gpus_per_node": 4, "layout": "array"}, "cells of a matrix"),
        ("stepscope doctr", {"gpus_per_node": 4}, "command for a job"),
        ("run", {"gpus_per_node": 4}, "command"),
        ("accelerate launch train.py", {"gpus_per_node": 4}, "how this command starts its ranks"),
        ("torchrun --nnodes 2 train.py", {"gpus_per_node": 4}, "--nnodes"),
        ("torchrun --nproc-per-node 2 train.py", {"gpus_per_node": 4}, "2 ranks"),
        ("torchrun --nproc-per-node gpu train.py", {"gpus_per_node": 4}, "a number"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_is_refused_before_anything_is_written(
    command: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(Exception, match=re.escape(said)) as caught:
        slurm(*command.split(), **options)
    assert getattr(caught.value, "exit_code", None) == 2
    assert not Path("jobs").exists()


@pytest.mark.parametrize("base", ["mine.yaml", "run -- train.py"])
@pytest.mark.usefixtures("folder")
def test_every_option_changes_a_script_or_is_refused(base: str) -> None:
    """But where scripts are written to, and what becomes of them."""
    changes: dict[str, object] = {
        "layout": "array", "nodes": 3, "gpus_per_node": 8, "ranks_per_node": 2, "cpus_per_node": 8, "time": "30",
        "partition": "gpu", "account": "team", "sbatch": ("--qos=high",), "setup": ("module load cuda",),
        "python": "python3.12", "container_image": "IMAGE", "apptainer": "IMAGE", "requeue": 3, "warn": 60,
        "at_once": 2, "mount": ("/data",),
    }  # fmt: skip
    assert {*changes, "command", "output", "submit", "force"} == set(vars(Slurm(command=[])))

    def lines(output: str, **options: object) -> list[str]:
        slurm(*base.split(), output=Path(output), **{"gpus_per_node": 4, **options})
        named = sorted(path for path in Path(output).glob("*.sbatch"))
        found = [line for path in named for line in path.read_text().replace(output, "jobs").splitlines()]
        return [line for line in found if not line.startswith("# Written by")]

    plain = lines("plain")
    refused = set()
    for name, value in changes.items():
        try:
            assert lines(name.replace("_", "-"), **{name: value}) != plain, f"{name} is ignored"
        except UsageError:
            refused.add(name)
    assert refused == {"at_once", "mount", *(["layout"] if base != "mine.yaml" else [])}


@pytest.mark.usefixtures("folder")
def test_a_changed_script_is_kept() -> None:
    slurm("mine.yaml", gpus_per_node=4)
    slurm("mine.yaml", gpus_per_node=4)
    Path("jobs/mine.sbatch").write_text("mine")
    with pytest.raises(UsageError, match=re.escape("another mine.sbatch")):
        slurm("mine.yaml", gpus_per_node=4)
    assert text("mine.sbatch") == "mine"
    slurm("mine.yaml", gpus_per_node=4, force=True)
    assert text("mine.sbatch") != "mine"


@pytest.mark.usefixtures("folder")
def test_without_sbatch_the_text_is_written_and_submitting_ends_with_3() -> None:
    with pytest.raises(MissingError, match="sbatch is not here") as caught:
        slurm("mine.yaml", gpus_per_node=4, submit=True)
    assert "sbatch jobs/mine.sbatch" in str(caught.value.fix)
    assert Path("jobs/mine.sbatch").exists()


def test_slurms_no_is_said_in_its_words_and_nothing_is_submitted(folder: Path) -> None:
    sbatch(
        folder,
        'echo "$@" >> asked; echo "allocation failure: Requested node configuration is not available" >&2; exit 1',
    )
    with pytest.raises(MissingError, match="nothing was submitted") as caught:
        slurm("mine.yaml", gpus_per_node=4, submit=True)
    assert caught.value.why == "allocation failure: Requested node configuration is not available"
    assert slurm("mine.yaml", gpus_per_node=4) == 0
    assert {line.split()[0] for line in (folder / "asked").read_text().splitlines()} == {"--test-only"}


def test_the_report_comes_after_all_jobs(folder: Path) -> None:
    sbatch(folder, '[ "$1" = --test-only ] && exit 0; echo "$@" >> asked; wc -l < asked')
    (folder / "bin" / "wc").symlink_to("/usr/bin/wc")
    assert slurm("mine.yaml", gpus_per_node=4, layout="array", submit=True) == 0
    *_, last = (folder / "asked").read_text().splitlines()
    assert last.startswith("--parsable --dependency=afterany:1:2 ")


@pytest.mark.parametrize(
    ("time", "seconds"), [("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-12", 129_600), ("1-00:00:01", 86_401)]
)
def test_a_time_limit_is_read_as_slurm_does(time: str, seconds: int) -> None:
    assert limit_s(time) == seconds


@pytest.mark.parametrize(
    ("command", "program", "ranks"),
    [
        ("train.py --lr 1", "train.py --lr 1", None),
        ("python -u train.py", "train.py", None),
        ("python3.11 -m my.train x", "-m my.train x", None),
        ("torchrun --nproc_per_node 8 --max-restarts 3 train.py --nnodes 9", "--max-restarts 3 train.py --nnodes 9", 8),
        ("python -m torch.distributed.run --nproc-per-node=2 -m my.train", "-m my.train", 2),
    ],
)
def test_the_program_of_the_ranks_is_left_of_a_training_command(command: str, program: str, ranks: int | None) -> None:
    assert program_of_ranks(command.split()) == (tuple(program.split()), ranks)
