"""``stepscope slurm``: the batch scripts of a benchmark or a training job on many nodes."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch


class Slurm(Options):
    """Write the batch scripts that run a matrix, a sweep or a training command on nodes of a Slurm cluster.

    stepscope slurm mine.yaml --gpus-per-node 4 --time 2:00:00 -o jobs --submit

    stepscope slurm --nodes 2 --gpus-per-node 4 -o jobs -- run -- torchrun train.py
    """

    command: list[str] = argument(
        "A matrix file, or a command: bench, comm, run or profile with its options, or a training command (run).",
        "MATRIX.yaml|-- COMMAND...",
    )
    output: Path | None = option(
        "Folder of the scripts, logs and results, which all nodes see; default: ./stepscope-runs/slurm-NAME-TIME.",
        "DIR",
        "-o",
    )
    submit: bool = switch("Hand the scripts to Slurm; without, they are only written.")
    layout: str = option(
        "one-job: cells one after the other; array: a task for each cell.", "one-job|array", default="one-job"
    )
    at_once: int | None = option("With --layout array: tasks that run at the same time.", "N", min=1)
    nodes: int | None = option(
        "Number of nodes; default: as many as the largest world of the matrix needs.", "N", min=1
    )
    gpus_per_node: int | None = option("GPUs of each node, one rank on each.", "N", min=1)
    ranks_per_node: int | None = option("Ranks on each node; default: one for each GPU.", "N", min=1)
    cpus_per_node: int | None = option("Cores of each node, for all its ranks.", "N", min=1)
    time: str | None = option("Time limit, as Slurm writes it: 2:00:00; default: the partition's.", "TIME")
    partition: str | None = option("Partition.", "NAME")
    account: str | None = option("Account.", "NAME")
    sbatch: tuple[str, ...] = option(
        "Any other option of sbatch: --sbatch=--qos=high. Repeatable.", "OPTION", default=()
    )
    setup: tuple[str, ...] = option(
        "A line of shell that runs first: 'module load cuda'. Repeatable.", "LINE", default=()
    )
    python: str | None = option("Python of the ranks, with torch; default: this one, in an image python3.", "PATH")
    container_image: str | None = option("Run the ranks in this image, by pyxis and enroot.", "IMAGE")
    apptainer: str | None = option("Run the ranks in this image, by apptainer.", "IMAGE")
    mount: tuple[str, ...] = option(
        "With an image: a folder that ranks see; this folder and that of -o are. Repeatable.", "DIR", default=()
    )
    requeue: int | None = option(
        "How often the job may begin again: near its time limit, preempted, after a lost node. Default: 20 for a matrix or "
        "sweep, which keeps what is measured; 0 for a training command.",
        "N",
        min=0,
    )
    warn: int = option(
        "Seconds before the time limit at which the job stops by itself.", "SECONDS", default=120, min=10
    )
    force: bool = switch("Replace scripts in the folder that differ.")


COMMAND = Command(options=Slurm, where="stepscope.cli.slurm_run", panel="On a cluster")
