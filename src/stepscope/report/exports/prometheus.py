"""A file for the textfile collector of Prometheus' node_exporter, written whole each time; no package is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stepscope.report.exports import Snapshot
from stepscope.results.job_figures import DIARY
from stepscope.store.writer import make_dir, write_bytes

Labels = Mapping[str, object]


class Textfile:
    """``stepscope-JOB.prom`` in ``folder``."""

    def __init__(self, folder: str, job: str) -> None:
        self._path = make_dir(Path(folder)) / f"stepscope-{re.sub(r'[^A-Za-z0-9_.-]', '_', job)}.prom"

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:  # noqa: ARG002
        write_bytes(self._path, text(now).encode())

    def close(self) -> str:
        return str(self._path)


def text(now: Snapshot) -> str:
    """Write the exposition format 0.0.4, of the job and of each rank. Times are in seconds, shares are called ratios."""
    job: Labels = {"job": now.job}
    lines = [
        *_metric("stepscope_job_steps_total", "counter", "steps that every rank has ended", [(job, now.step)]),
        *_metric("stepscope_job_ranks", "gauge", "ranks that have a step diary", [(job, len(now.ranks))]),
        *_metric("stepscope_job_ended", "gauge", "1 once the job has ended", [(job, int(now.ended))]),
        *_metric(
            "stepscope_job_last_step_timestamp_seconds", "gauge", "end of the last step", [(job, now.at_unix_ns / 1e9)]
        ),
    ]
    for key, figure in DIARY.items():
        factor = 1e-9 if figure.unit == "ns" else 1.0
        name = key.removeprefix("diary_").replace("_ns", "_seconds").replace("_fraction", "_ratio")
        help_text = f"{figure.title}: {figure.help}"
        if (value := now.figures[key]) is not None:
            lines += _metric(f"stepscope_job_{name}", "gauge", help_text, [(job, value * factor)])
        ranks = [
            ({**job, "rank": rank, "host": now.hosts[rank]}, value * factor)
            for rank, figures in now.ranks.items()
            if (value := figures[key]) is not None
        ]
        if ranks:
            lines += _metric(f"stepscope_rank_{name}", "gauge", f"{figure.title} of the rank", ranks)
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, kind: str, help_text: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    escaped = help_text.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        written = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        lines.append(f"{name}{{{written}}} {value!r}")
    return lines


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


EXPORTER = Textfile
