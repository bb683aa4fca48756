"""A command that takes part in a job which `stepscope run` starts on another host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stepscope.core.errors import MissingError, UsageError
from stepscope.launch import hooked_job
from stepscope.records.profile import JobEnd, ProfileRecord
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record

ROOT = Path(__file__).parents[3]


def started(layout: ProfileLayout) -> dict[str, str]:
    record = ProfileRecord(command=("true",), folder=".", host="n1", first=None, argv=())
    return hooked_job.prepare(layout, record, nccl_debug=False, step_optimizer=2, memory=False)


def test_it_has_the_hook_of_the_job_whoever_comes_first(tmp_path: Path) -> None:
    layout = ProfileLayout(tmp_path / "job")
    begun: list[dict[str, str]] = []
    starter = threading.Timer(0.3, lambda: begun.append(started(layout)))
    starter.start()
    found = hooked_job.environment_of(layout, patience_s=20)
    starter.join()
    assert json.loads(found["STEPSCOPE_HOOK"]) == json.loads(begun[0]["STEPSCOPE_HOOK"])
    assert json.loads(found["STEPSCOPE_HOOK"])["step_optimizer"] == 2
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(hooked_job.HOOK)


def test_no_job_and_an_ended_job_are_refused(tmp_path: Path) -> None:
    layout = ProfileLayout(tmp_path / "job")
    with pytest.raises(MissingError, match="no job began"):
        hooked_job.environment_of(layout, patience_s=0.1)
    started(layout)
    write_record(layout.end, JobEnd(kind="ok", code=0))
    with pytest.raises(UsageError, match="has ended"):
        hooked_job.environment_of(layout, patience_s=0.1)


@pytest.mark.long
@pytest.mark.e2e
def test_two_hosts_are_one_job(tmp_path: Path) -> None:
    """As the pods of a manifest: each starts the ranks of its own node, and one of them watches."""
    port = str(20_000 + os.getpid() % 10_000)
    names = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    train = [sys.executable, "-m", "torch.distributed.run", str(ROOT / "examples/train_ddp.py"), "--steps", "30"]
    pods = [
        subprocess.Popen(
            [sys.executable, "-m", "stepscope.cli", "run", *join, "-o", str(tmp_path / "job"), "--", *train],
            env={**os.environ, **names, "PET_NODE_RANK": str(node)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for node, join in ((0, []), (1, ["--join"]))
    ]  # fmt: skip
    said = [pod.communicate(timeout=110) for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    ranks = sorted(path.name for path in (tmp_path / "job/.stepscope").glob("rank-*.json"))
    assert ranks == ["rank-00000.json", "rank-00001.json"]
    assert "2 ranks" in said[0][0]
