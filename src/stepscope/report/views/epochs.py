"""Every epoch of every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stepscope.records.training import TrainingRun
from stepscope.report.table import Column, Format, Table, duration, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._training import rate_column


def build(runs: Sequence[TrainingRun]) -> Table:
    """One row an epoch."""

    def of_epoch(field: str) -> Callable[[Any], Any]:
        return lambda item: getattr(item[1], field)

    decimals = Format(lambda value: f"{value:.4g}" if abs(value) >= 1 else f"{value:.4f}")
    return tabled(
        "epochs",
        "Epochs",
        (
            Column("run", "run", lambda item: item[0].label, role="identity", lead=True),
            Column("world_size", "ranks", lambda item: item[0].world_size, whole, role="identity"),
            Column("epoch", "epoch", of_epoch("number"), whole, role="identity"),
            Column("duration_ns", "time", of_epoch("duration_ns"), duration),
            Column("train_loss", "loss", of_epoch("train_loss"), decimals),
            Column("train_accuracy", "train accuracy", of_epoch("train_accuracy"), decimals),
            Column("validation_loss", "validation loss", of_epoch("validation_loss"), decimals),
            Column("validation_accuracy", "validation accuracy", of_epoch("validation_accuracy"), decimals),
            rate_column(runs, of_epoch("samples_per_s"), of=lambda item: item[0]),
            Column("samples_seen", "samples", of_epoch("samples_seen"), whole),
        ),
        ((run, epoch) for run in runs for epoch in run.epochs),
        footnotes=("time: training only, slowest rank. samples: trained on by all ranks together.",),
    )


VIEW = View(key="epochs", title="Epochs", needs=("runs",), table=build)
