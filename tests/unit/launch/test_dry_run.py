"""A dry run's processes: what each is told, and what becomes of those that leave no step. No torch is loaded here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.launch.dry_run import DrySettings, dry_run
from stepscope.predict.collectives.choose import known_gpu
from stepscope.records.dry_run import DryFailure, DryRank, DryRun
from stepscope.store.layout import DryLayout

EXAMPLE = Path(__file__).parents[2] / "data" / "schema" / "dry_rank-1.json"

LEAVES_A_RECORD = f"""
import json, os, pathlib
options = json.loads(os.environ["STEPSCOPE_HOOK"])["dry"]
document = json.loads(pathlib.Path({str(EXAMPLE)!r}).read_text())
pipeline = {{"schedule": "Schedule1F1B", "micro_batches": 2, "ranks": [0, 2], "actions": []}}
document.update(rank=options["rank"], world_size=options["world"], pipeline=pipeline)
name = "world-%06d-rank-%06d.json" % (options["world"], options["rank"])
pathlib.Path(options["output"], ".stepscope", name).write_text(json.dumps(document))
print({{k: os.environ.get(k) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")}})
"""


def ran(
    folder: Path, script: str, gpus: tuple[int, ...], *, timeout_s: float = 60.0
) -> tuple[DryRun, list[DryRank | DryFailure]]:
    (folder / "train.py").write_text(script)
    outcomes: list[DryRank | DryFailure] = []
    run = DryRun(
        command=(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(folder / "train.py")),
        folder=str(folder), argv=(), gpus=gpus, gpu="h100-sxm",
    )  # fmt: skip
    settings = DrySettings(gpu=known_gpu("h100-sxm"), timeout_s=timeout_s)
    done = dry_run(DryLayout(folder / "out"), run, settings, tell=lambda outcome, _: outcomes.append(outcome))
    return done, outcomes


def test_every_world_and_every_stage_has_a_rank(tmp_path: Path) -> None:
    done, outcomes = ran(tmp_path, LEAVES_A_RECORD, (2, 4))
    assert done.failures == ()
    assert done.ranks_per_node == 2
    assert {(rank.world_size, rank.rank) for rank in outcomes if isinstance(rank, DryRank)} == {
        (2, 0),
        (2, 2),
        (4, 0),
        (4, 2),
    }
    text = DryLayout(tmp_path / "out").log(4, 2).read_text().replace("'", '"')
    assert json.loads(text) == {
        "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"
    }  # fmt: skip


LEAVES_NO_STEP = """
import json, os, pathlib
options = json.loads(os.environ["STEPSCOPE_HOOK"])["dry"]
document = {"schema": "stepscope.dry_failure/1", "tool_version": "test", "created": "2026-11-28T00:00:00Z"}
document.update(world_size=2, rank=0, reason="no-step", text="exit code 2", place=None, fix=None)
pathlib.Path(options["output"], ".stepscope", "failure-000002-rank-000000.json").write_text(json.dumps(document))
print("unrecognized arguments: --acum")
"""


@pytest.mark.parametrize(
    ("script", "reason", "words"),
    [
        (LEAVES_NO_STEP, "no-step", "unrecognized arguments: --acum"),
        ("raise SystemExit(0)", "no-step", "before it imported torch"),
        ("raise ValueError('no data')", "raised", "ValueError: no data"),
        ("import time; time.sleep(60)", "timeout", "no second step within 1 s"),
        ("import os; os.kill(os.getpid(), 9)", "raised", "signal 9"),
    ],
)
def test_a_world_without_a_step_says_why(
    tmp_path: Path, script: str, reason: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.launch.dry_run.LATE_S", 0.0)
    done, _ = ran(tmp_path, script, (2,), timeout_s=1.0 if reason == "timeout" else 60.0)
    (failure,) = done.failures
    assert failure.reason == reason
    assert words in failure.text


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 GPUs do not fill nodes of 2"):
        ran(tmp_path, "raise SystemExit(0)", (3,))
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other.txt").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        ran(tmp_path, "raise SystemExit(0)", (2,))
