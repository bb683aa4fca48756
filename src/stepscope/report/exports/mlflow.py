"""A run of MLflow in the experiment ``stepscope``: curves over steps, and tags for what it is of. PLACE: a tracking URI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.report.exports import Snapshot, extra

EXPERIMENT = "stepscope"
MOST_METRICS = 1000
"""Figures that one call may log, by MLflow's own limit."""


class MlflowRun:
    """One run at ``uri``."""

    def __init__(self, uri: str, job: str) -> None:
        with extra("mlflow-skinny"):
            from mlflow import MlflowClient
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
        self._uri, self._metric, self._error = uri, Metric, MlflowException
        try:
            self._client: Any = MlflowClient(tracking_uri=uri)
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
            self._experiment = (
                self._client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
            )
            self._run: Any = self._client.create_run(self._experiment, run_name=job)
        except MlflowException as error:
            raise self._as_error(error) from error

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:  # noqa: ARG002
        values = [
            self._metric(key, value, round(stretch.at_unix_ns / 1e6), stretch.step)
            for stretch in stretches
            for key, value in stretch.flat.items()
        ]
        try:
            for at in range(0, len(values), MOST_METRICS):
                self._client.log_batch(self._run.info.run_id, metrics=values[at : at + MOST_METRICS])
        except self._error as error:
            raise self._as_error(error) from error

    def close(self) -> str:
        self._client.set_terminated(self._run.info.run_id)
        return f"{self._uri}, run {self._run.info.run_id}"

    def _as_error(self, error: Exception) -> StepscopeError:
        return StepscopeError(f"MLflow at {self._uri} did not take it", why=str(error).splitlines()[0])


EXPORTER = MlflowRun
