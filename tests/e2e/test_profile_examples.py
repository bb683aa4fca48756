"""`stepscope profile` on the training scripts of examples/: the job is as without it, its traces say what it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.runs import Cli

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def _losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("loss ")]


def _run(cli: Cli, launcher: list[str], script: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """The job as it is, and what `profile` prints of it; exit codes and losses are compared."""
    line = [*launcher, str(EXAMPLES / f"{script}.py")]
    alone = subprocess.run(line, capture_output=True, text=True, env=cli.environ)
    assert alone.returncode == 0, alone.stderr
    done = cli("profile", "-o", str(folder), "--", *line)
    assert done.code == 0, done.err
    assert _losses(done.out) == _losses(alone.stdout) != []
    return alone, done.out


@pytest.mark.long
@pytest.mark.timeout(600)
def test_reductions_of_the_naive_script_are_a_phase_of_their_own(cli: Cli, tmp_path: Path) -> None:
    _, said = _run(cli, TORCHRUN, "train_naive", tmp_path / "p")
    assert "gradients are reduced after backward" in said
    document = cli("trace", str(tmp_path / "p"), "--json").json()
    of_phase = {row["phase"]: row for row in document["phases"] if row["rank"] == 0}
    assert of_phase["forward"]["comm_ns"] == of_phase["backward"]["comm_ns"] == 0
    assert of_phase["communication"]["comm_ns"] > 0
    assert len({(row["rank"], row["step"]) for row in document["steps"]}) == 6


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", ["train_ddp", "train_fsdp2", "train_tp", "train_hf_like"])
def test_an_example_trains_as_without_the_hook(cli: Cli, tmp_path: Path, script: str) -> None:
    _, said = _run(cli, TORCHRUN, script, tmp_path / "p")
    assert "of 2 ranks" in said
    assert cli("diagnose", str(tmp_path / "p")).code == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_one_process_without_a_launcher_is_profiled(cli: Cli, tmp_path: Path) -> None:
    _, said = _run(cli, [sys.executable], "train_hf_like", tmp_path / "p")
    assert "of 1 rank" in said
