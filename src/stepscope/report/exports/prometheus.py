"""A file for the textfile collector of Prometheus' node_exporter, written whole each time; no package is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from stepscope.report.exports import EXPORTED, Snapshot
from stepscope.store.writer import make_dir, write_bytes

Labels = Mapping[str, object]

STEPS, ENDED, LATE = "stepscope_job_steps_total", "stepscope_job_ended", "stepscope_rank_late"
LAST_STEP = "stepscope_job_last_step_timestamp_seconds"


class Textfile:
    """``stepscope-JOB.prom`` in ``folder``."""

    def __init__(self, folder: str, job: str) -> None:
        self._path = make_dir(Path(folder)) / f"stepscope-{re.sub(r'[^A-Za-z0-9_.-]', '_', job)}.prom"

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:  # noqa: ARG002
        write_bytes(self._path, text(now).encode())

    def close(self) -> str:
        return str(self._path)


def metric(key: str, of: Literal["job", "rank"] = "job") -> str:
    """Return the name of a figure's metric: times are in seconds, shares are called ratios."""
    return f"stepscope_{of}_{key.removeprefix('diary_').replace('_ns', '_seconds').replace('_fraction', '_ratio')}"


def text(now: Snapshot) -> str:
    """Write the exposition format 0.0.4, of the job and of each rank. The label is ``run``: ``job`` is the scraper's own."""
    job: Labels = {"run": now.job}
    lines = [
        *_metric_lines(STEPS, "counter", "steps that every rank has ended", [(job, now.step)]),
        *_metric_lines("stepscope_job_ranks", "gauge", "ranks that have a step diary", [(job, len(now.ranks))]),
        *_metric_lines(ENDED, "gauge", "1 once the job has ended", [(job, int(now.ended))]),
        *_metric_lines(LAST_STEP, "gauge", "end of the last step", [(job, now.at_unix_ns / 1e9)]),
    ]
    rank_of: Mapping[int, Labels] = {rank: {**job, "rank": rank, "host": now.hosts[rank]} for rank in now.ranks}
    late = [(labels, int(rank in now.late)) for rank, labels in rank_of.items()]
    lines += _metric_lines(LATE, "gauge", "1 while the other ranks wait for it", late)
    for key, figure in EXPORTED.items():
        factor = 1e-9 if figure.unit == "ns" else 1.0
        if (value := now.figures.get(key)) is not None:
            help_text = f"{figure.title}: {figure.help}"
            lines += _metric_lines(metric(key), "gauge", help_text, [(job, value * factor)])
        ranks = [
            (rank_of[rank], value * factor)
            for rank, figures in now.ranks.items()
            if (value := figures.get(key)) is not None
        ]
        if ranks:
            lines += _metric_lines(metric(key, "rank"), "gauge", f"{figure.title} of the rank", ranks)
    return "".join(f"{line}\n" for line in lines)


def _metric_lines(name: str, kind: str, help_text: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    escaped = help_text.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        written = ",".join(f'{key}="{_escaped_label(str(label))}"' for key, label in labels.items())
        lines.append(f"{name}{{{written}}} {value!r}")
    return lines


def _escaped_label(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


EXPORTER = Textfile
