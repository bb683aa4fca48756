"""Batch scripts and manifests, letter by letter: their text is what a user submits.

To renew after a wanted change: ``STEPSCOPE_RENEW_GOLDEN=1 pytest tests/golden``, then read the difference.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from tests.golden.agreed import agreed

from stepscope.launch.kubernetes import KINDS, TrainingJob, manifest_text
from stepscope.launch.slurm import (
    BatchJob,
    Container,
    Resources,
    TaskWorld,
    array_text,
    measuring_text,
    report_text,
    watched_text,
)

BENCH = ("-m", "stepscope.cli", "bench", "mine.yaml")
JOB = BatchJob(
    name="mine",
    folder="/shared/jobs",
    workdir="/home/me/my project",
    typed="stepscope slurm mine.yaml --gpus-per-node 4 -o jobs",
    resources=Resources(nodes=2, gpus_per_node=4, cpus_per_node=32, time="2:00:00", partition="gpu", account="team",
                        more=("--qos=high",)),
    python="/home/me/.venv/bin/python",
    rank_python="/home/me/.venv/bin/python",
    setup=("module load cuda",),
    requeues=20,
)  # fmt: skip
WORLDS = [
    TaskWorld(nodes=1, ranks=1, words=BENCH),
    TaskWorld(nodes=1, ranks=4, words=BENCH),
    TaskWorld(nodes=2, ranks=4, words=BENCH),
]
TRAIN = TaskWorld(nodes=2, ranks=4, words=("train.py", "--name", "it's mine"))
IN_IMAGE = replace(
    JOB,
    rank_python="python3",
    container=Container(runtime="pyxis", image="nvcr.io/nvidia/pytorch:25.10-py3", mounts=("/data",)),
)
IN_APPTAINER = replace(IN_IMAGE, container=Container(runtime="apptainer", image="/images/torch.sif", mounts=("/data",)))
TEXTS = {
    "one-job": measuring_text(JOB, WORLDS),
    "array": array_text(JOB, WORLDS[:2], run="run-1-nodes", at_once=1),
    "run": watched_text(replace(JOB, requeues=0), TRAIN, watcher=("run", "--deep", "off")),
    "profile-pyxis": watched_text(replace(IN_IMAGE, requeues=0), TRAIN, watcher=("profile",)),
    "apptainer": measuring_text(IN_APPTAINER, WORLDS[2:]),
    "report": report_text(JOB, results='"$FOLDER/run"'),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_reads_as_agreed(kind: str) -> None:
    job = TrainingJob(
        name="train", image="me/torch:1", program=("train.py", "--lr", "3"), nodes=2, ranks_per_node=8, gpus_per_node=8,
        claim="shared",
    )  # fmt: skip
    agreed(
        f"cluster/{kind}.yaml",
        manifest_text(job, kind=kind, typed="stepscope k8s --image me/torch:1 -- torchrun train.py"),
    )


@pytest.mark.parametrize("name", TEXTS)
def test_a_script_reads_as_agreed_and_is_shell(name: str) -> None:
    agreed(f"cluster/{name}.sbatch", TEXTS[name])
    subprocess.run(["bash", "-n"], input=TEXTS[name], text=True, check=True, timeout=30)
