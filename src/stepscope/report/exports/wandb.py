"""A run of W&B: curves over steps, and the figures of all steps as its summary. WANDB_MODE=offline sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.report.exports import Snapshot, extra


class WandbRun:
    """One run of ``project``."""

    def __init__(self, project: str, job: str) -> None:
        with extra("wandb"):
            import wandb
        settings = wandb.Settings(console="off", silent=True)
        try:
            self._run: Any = wandb.init(project=project, name=job, job_type="stepscope", settings=settings)
        except wandb.Error as error:
            raise StepscopeError(
                "no run of W&B could be begun", why=str(error), fix="WANDB_MODE=offline, or log in"
            ) from error

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:
        for stretch in stretches:
            self._run.log(stretch.flat, step=stretch.step)
        self._run.summary.update(now.flat)

    def close(self) -> str:
        self._run.finish()
        return str(self._run.dir if self._run.offline else self._run.url)


EXPORTER = WandbRun
