"""Gauges for a receiver of OpenTelemetry (OTLP over HTTP), through its SDK. PLACE: its URL, such as http://localhost:4318."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.report.exports import EXPORTED, Snapshot, extra

PATH = "/v1/metrics"
TIMEOUT_S = 5


class Receiver:
    """One receiver; nothing runs between two writes."""

    def __init__(self, url: str, job: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"otlp:{url}: not the URL of a receiver", fix="for example otlp:http://localhost:4318")
        self._url = url if parts.path.strip("/") else url.rstrip("/") + PATH
        with extra("opentelemetry-exporter-otlp-proto-http"):
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
            from opentelemetry.sdk.resources import Resource
        self._reader: Any = InMemoryMetricReader()
        resource = Resource.create({"service.name": "stepscope", "stepscope.job": job})
        self._provider: Any = MeterProvider([self._reader], resource=resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("stepscope")
        self._success: Any = MetricExportResult.SUCCESS
        self._exporter: Any = OTLPMetricExporter(endpoint=self._url, timeout=TIMEOUT_S)
        self._steps: Any = meter.create_gauge("stepscope.steps", description="steps that every rank has ended")
        self._gauges: dict[str, Any] = {
            key: meter.create_gauge(
                f"stepscope.{key}", unit="ns" if figure.unit == "ns" else "1", description=figure.title
            )
            for key, figure in EXPORTED.items()
        }

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:  # noqa: ARG002
        self._steps.set(now.step)
        for key, gauge in self._gauges.items():
            if (value := now.figures.get(key)) is not None:
                gauge.set(value)
            for rank, figures in now.ranks.items():
                if (value := figures.get(key)) is not None:
                    gauge.set(value, {"rank": rank, "host": now.hosts[rank]})
        if self._exporter.export(self._reader.get_metrics_data()) != self._success:
            raise StepscopeError(f"{self._url} did not take the figures", fix="check that a receiver listens there")

    def close(self) -> str:
        self._provider.shutdown()
        self._exporter.shutdown()
        return self._url


EXPORTER = Receiver
