"""The monitor as a callback of HF's Trainer and of Lightning: the hook sees the steps of their optimizers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from stepscope.monitor import StepMonitor


class _Watched:
    """The monitor of a framework's training. folder: of the monitor, which goes on to the end of the process: trainings
    after one another are one job, as under ``stepscope run``. As each of them ends its figures so far go into the
    framework's own log, as ``stepscope/KEY``."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.monitor = StepMonitor(folder, by_optimizer=True)

    def figures(self) -> dict[str, float]:
        """Return the figures of the job so far, for a log."""
        return {f"stepscope/{key}": value for key, value in self.monitor.summary().items()}


def trainer_callback(folder: str | Path) -> Any:
    """Return a ``transformers.TrainerCallback``: ``Trainer(..., callbacks=[trainer_callback("runs/today")])``."""
    return _trainer_class()(folder)


def lightning_callback(folder: str | Path) -> Any:
    """Return a ``lightning.pytorch.Callback``: ``Trainer(callbacks=[lightning_callback("runs/today")])``."""
    return _lightning_class()(folder)


@cache
def _trainer_class() -> Any:
    from transformers import TrainerCallback

    class TrainerMonitor(_Watched, TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            self.monitor.start()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            self.monitor.flush()
            if state.is_world_process_zero and (figures := self.figures()):
                state.log_history.append({"step": state.global_step, **figures})

    return TrainerMonitor


@cache
def _lightning_class() -> Any:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class LightningMonitor(_Watched, Callback):  # type: ignore[misc]
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            self.monitor.start()

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            self.monitor.flush()
            if trainer.is_global_zero and trainer.logger is not None and (figures := self.figures()):
                trainer.logger.log_metrics(figures, step=trainer.global_step)

    return LightningMonitor
