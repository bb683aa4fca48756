"""Curves over steps for TensorBoard, through the package tensorboard; torch is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.report.exports import Snapshot, extra
from stepscope.store.writer import make_dir, writing


class EventFile:
    """An event file in ``folder``/JOB."""

    def __init__(self, folder: str, job: str) -> None:
        self._folder = make_dir(Path(folder) / job)
        with extra("tensorboard"):
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        with writing(self._folder):
            self._writer: Any = EventFileWriter(str(self._folder))

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:  # noqa: ARG002
        for stretch in stretches:
            values = [
                self._summary.Value(tag=f"stepscope/{key}", simple_value=value) for key, value in stretch.flat.items()
            ]
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=stretch.at_unix_ns / 1e9, step=stretch.step, summary=summary))
        with writing(self._folder):
            self._writer.flush()

    def close(self) -> str:
        with writing(self._folder):
            self._writer.close()
        return str(self._folder)


EXPORTER = EventFile
