"""What is told of a job that stands still before it hangs, and of which one nothing is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.e2e.profiled import PYTHON
from tests.e2e.runs import Cli

from stepscope.launch.hang_watch import HangWatch
from stepscope.store.layout import ProfileLayout

pytestmark = pytest.mark.e2e

TRAIN = Path(__file__).parent / "ending_job.py"
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def test_an_evaluation_and_a_checkpoint_are_no_stall(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "p"
    process = cli.start("run", "-o", str(out), "--", *TORCHRUN, str(TRAIN), "slow", "20", "60")
    watch = HangWatch(ProfileLayout(out), None, stall_s=1.0)
    found = []
    while process.poll() is None:
        time.sleep(0.05)
        found.append(watch.look())
    process.communicate()
    assert ProfileLayout(out).stack_request.exists(), "they were asked"
    assert [each for each in found if each is not None] == []


def test_a_stall_is_told_with_what_ranks_do(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "p"
    process = cli.start("run", "-o", str(out), "--", *TORCHRUN, str(TRAIN), "hang", "20", "60", "9")
    watch = HangWatch(ProfileLayout(out), None, stall_s=1.0)
    found = []
    while process.poll() is None:
        time.sleep(0.05)
        if (seen := watch.look()) is not None:
            found.append(seen)
    process.communicate()
    ((stage, stall),) = found
    assert (stage, stall.ranks, stall.waiting, stall.step) == ("stall", (1,), (0,), 20)
    assert dict(stall.parts)[0] == "all_reduce"
    assert 1 < stall.silent_s < 7
