"""Scripts of ``stepscope slurm`` on a real Slurm of two nodes."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.slurm.cluster import Cluster, statuses, wait_until

from stepscope.cli import slurm_run
from stepscope.cli.commands.slurm import Slurm
from stepscope.cli.console import out

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MATRIX = """\
version: 1
base: {workload: mlp, model: {size: tiny}, dataset: synthetic, dataset_options: {samples: 512}, lr: 0.05, global_batch: 32,
       steps: 20}
axes: {strategy: [ddp, fsdp2], world_size: [1, 2]}
exclude: [{strategy: fsdp2, world_size: 1}]
launch: {threads_per_rank: 1}
measure: {warmup: 2, budget_s: 5, timeout_s: 60}
"""


def stepscope(slurm: Cluster, folder: Path, *words: str) -> str:
    """What the command prints, in ``folder``, with this cluster's sbatch."""
    done = slurm.run(sys.executable, "-m", "stepscope.cli", *words, cwd=folder)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def submitted(said: str) -> tuple[str, str]:
    """The job and its report."""
    found = re.search(r"submitted job (\d+), and job (\d+) for the report", said)
    assert found is not None, said
    return found[1], found[2]


def test_each_node_has_one_task_and_the_nodes_name_the_place_to_meet(
    slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script as it is, with a program in torchrun's place that says what it was started with."""
    torchrun = tmp_path / "python"
    torchrun.write_text(
        '#!/bin/bash\n[ "$2" = stepscope.cli ] || echo "$SLURM_NODEID $GLOO_SOCKET_IFNAME $*" > seen-$SLURM_NODEID\n'
    )
    torchrun.chmod(0o755)
    (tmp_path / "mine.yaml").write_text(MATRIX)
    options = Slurm(
        command=["mine.yaml"], ranks_per_node=1, nodes=2, time="5", output=Path("jobs"), python=str(torchrun), submit=True
    )  # fmt: skip
    with chdir(tmp_path), patch.dict(os.environ, slurm.environ):
        out.cache_clear()
        assert slurm_run.run(options) == 0
        out.cache_clear()
    job, _ = submitted(capsys.readouterr().out)
    slurm.wait(job, "COMPLETED")
    assert "#SBATCH --nodes=2" in (tmp_path / "jobs/mine.sbatch").read_text()
    port = 20_000 + int(job)
    for node in (0, 1):
        rank, interface, *words = (tmp_path / f"seen-{node}").read_text().split()
        assert (rank, interface) == (str(node), "eth0")
        asked = dict(word.partition("=")[::2] for word in words if "=" in word)
        assert asked["--nnodes"] == "2"
        assert asked["--node-rank"] == str(node)
        assert asked["--master-addr"] == f"{slurm.net}.1", "the name n1 does not resolve here"
        assert asked["--master-port"] == str(port)


@pytest.mark.long
def test_a_matrix_that_needs_more_nodes_is_refused_in_slurms_words(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MATRIX.replace("[1, 2]", "[1, 4]"))
    line = ("-m", "stepscope.cli", "slurm", "mine.yaml", "--ranks-per-node", "1", "-o", "jobs", "--submit")
    done = slurm.run(sys.executable, *line, cwd=tmp_path)
    assert done.returncode == 3
    assert "node configuration is not available" in done.stderr
    assert slurm.run("squeue", "-h").stdout == ""


@pytest.mark.long
def test_a_matrix_is_measured_on_both_nodes_and_reported(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MATRIX)
    words = ("slurm", "mine.yaml", "--ranks-per-node", "1", "--time", "8", "-o", "jobs", "--submit")
    job, report = submitted(stepscope(slurm, tmp_path, *words))
    slurm.wait(job, "COMPLETED", patience_s=200)
    assert {cell["status"] for cell in statuses(tmp_path / "jobs/run").values()} == {"ok"}
    assert len(statuses(tmp_path / "jobs/run")) == 3
    slurm.wait(report, "COMPLETED", patience_s=200)
    assert (tmp_path / "jobs/report/report.html").exists() or list((tmp_path / "jobs/report").glob("*.html"))


@pytest.mark.long
def test_an_array_measures_each_cell_in_a_folder_of_its_own(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MATRIX)
    words = (
        "slurm",
        "mine.yaml",
        "--layout",
        "array",
        "--ranks-per-node",
        "1",
        "--time",
        "8",
        "-o",
        "jobs",
        "--submit",
    )
    said = stepscope(slurm, tmp_path, *words)
    report = re.findall(r"\d+", said.partition("and job ")[2])[0]
    slurm.wait(report, "COMPLETED", "FAILED", patience_s=300)
    found = {run.name: statuses(run) for run in (tmp_path / "jobs").glob("run-*")}
    assert {name: [cell["status"] for cell in cells.values()] for name, cells in found.items()} == {
        "run-1-nodes-0": ["ok"], "run-2-nodes-0": ["ok"], "run-2-nodes-1": ["ok"],
    }  # fmt: skip
    assert slurm.state(report) == "COMPLETED"


@pytest.mark.long
def test_a_sweep_of_several_worlds_is_one_run(slurm: Cluster, tmp_path: Path) -> None:
    sweep = ("comm", "--sizes", "1K", "--ranks", "1,2", "--iters", "20")
    words = ("slurm", "--nodes", "2", "--ranks-per-node", "1", "--time", "8", "-o", "jobs", "--submit", "--", *sweep)
    job, _ = submitted(stepscope(slurm, tmp_path, *words))
    slurm.wait(job, "COMPLETED", patience_s=200)
    found = statuses(tmp_path / "jobs/run")
    assert [cell["status"] for cell in found.values()] == ["ok", "ok"]


@pytest.mark.long
def test_srun_alone_starts_ranks_that_join_one_world(slurm: Cluster, tmp_path: Path) -> None:
    """``srun stepscope bench``: a task for each rank, on two nodes that have no names."""
    (tmp_path / "mine.yaml").write_text(MATRIX)
    done = slurm.run(
        "srun", "-N2", "--ntasks-per-node=1", sys.executable, "-m", "stepscope.cli", "bench", "mine.yaml", "-o", "run",
        cwd=tmp_path, timeout_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = statuses(tmp_path / "run").values()
    assert sorted(str(cell["status"]) for cell in found) == ["ok", "ok", "unsupported"]


@pytest.mark.long
def test_a_training_command_is_watched_on_both_nodes(slurm: Cluster, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "train_ddp.py"
    words = ("slurm", "--nodes", "2", "--ranks-per-node", "1", "--time", "8", "-o", "jobs", "--submit", "--", "run", "--",
             "torchrun", str(script), "--steps", "30")  # fmt: skip
    job, report = submitted(stepscope(slurm, tmp_path, *words))
    slurm.wait(job, "COMPLETED", patience_s=200)
    wait_until((tmp_path / "jobs/run/verdict.json").exists, "a verdict", 5)
    ranks = sorted((tmp_path / "jobs/run/.stepscope").glob("rank-*.json"))
    assert [path.stem for path in ranks] == ["rank-00000", "rank-00001"]
    slurm.wait(report, "COMPLETED", patience_s=200)


@pytest.mark.long
def test_doctor_compares_the_two_nodes(slurm: Cluster, tmp_path: Path) -> None:
    """``srun stepscope doctor``: the first task reports for both; the second has another variable."""
    command = f'[ "$SLURM_PROCID" = 1 ] && export NCCL_DEBUG=INFO; exec {sys.executable} -m stepscope.cli doctor --json'
    done = slurm.run("srun", "-N2", "--ntasks-per-node=1", "bash", "-c", command, cwd=tmp_path, timeout_s=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["nodes"]) == 2
    assert [(each["key"], set(each["values"].values())) for each in found["differences"]] == [
        ("variable NCCL_DEBUG", {"not set", "INFO"})
    ]
    assert [pair["error"] for pair in found["pairs"]] == [None, None]
