"""HF's Trainer and Lightning, where they are installed: unedited under `run`, and with a callback of `stepscope.monitor`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepscope.diagnose.jobs import judge_job
from stepscope.results.profiled_job import read_profiled_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

JOB = str(Path(__file__).parent / "framework_job.py")
NEEDS = {"hf": ("transformers", "accelerate"), "lightning": ("lightning",)}
STEPS = 50 + 30


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("framework", NEEDS)
def test_callback_and_command_see_the_same_job(framework: str, ranks: int, tmp_path: Path) -> None:
    for module in NEEDS[framework]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed; no dependency of ours: pip install {module}")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    start = [sys.executable, *(launcher if ranks > 1 else ()), JOB, framework, str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    whole = {}
    for way, line in (
        ("command", [sys.executable, "-m", "stepscope.cli", "run", "-o", "command", "--", *start, "unused"]),
        ("callback", [*start, "callback"]),
    ):
        subprocess.run(line, cwd=tmp_path, env=environment, check=True, capture_output=True)
        job, judged = read_profiled_job(tmp_path / way), judge_job(tmp_path / way)
        assert job is not None
        assert job.steps is not None
        assert judged is not None
        assert (job.steps.all_steps, job.steps.ranks, job.steps.world_size) == (STEPS, ranks, ranks)
        parts = {name: float(np.nanmean(values)) for name, values in job.steps.parts_ns.items()}
        assert min(parts[name] for name in ("data", "forward", "backward", "optimizer")) > 0
        assert (job.steps.comm_ns.mean() > 0) == (ranks > 1)
        whole[way] = parts["forward"] + parts["backward"]
        assert not [cost for cost in judged.verdict.costs if cost.kind in ("straggler", "uneven-work")]
    assert 0.4 < whole["callback"] / whole["command"] < 2.5
    assert not (tmp_path / "unused").exists()
