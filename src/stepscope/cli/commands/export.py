"""``stepscope export``: figures of a watched job for Prometheus and Grafana, OpenTelemetry, TensorBoard, W&B, MLflow."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option

TO = "Where to: prometheus:DIR, otlp:URL, tensorboard:DIR, wandb:PROJECT, mlflow:URI, grafana:FILE; may be repeated."


class Export(Options):
    """Write the figures of a job's step diary into another tool.

    stepscope export RUN --to prometheus:DIR
    """

    path: Path = argument("Folder of `stepscope run`, `stepscope profile` or StepMonitor.", "RUN")
    to: tuple[str, ...] = option(TO, "KIND:PLACE", default=())


COMMAND = Command(options=Export, where="stepscope.cli.export_run", panel="Look at a job")
