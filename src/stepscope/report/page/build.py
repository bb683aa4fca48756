"""Evidence and diagnosis -> the page's text. One file: style and scripts inside, nothing fetched, nothing run but ours."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.diagnose import narrator
from stepscope.machine.overview import overview
from stepscope.records.cell import RunRecord
from stepscope.records.finding import Diagnosis, JobVerdict
from stepscope.report import contents
from stepscope.report.charts import Drawing, begin, records_of
from stepscope.report.page.overview import (
    answer,
    headline,
    key_figures,
    shown_dry,
    shown_findings,
    shown_verdict,
    worth_saying,
)
from stepscope.report.page.timeline import drawn, embedded, timeline
from stepscope.report.render.files import as_html
from stepscope.report.vega import Chart
from stepscope.report.views import scaling
from stepscope.results.evidence import Evidence
from stepscope.store.writer import write_bytes

MAX_NOTES = 200
KIND_WORDS = {
    "bench": "stepscope bench",
    "comm": "stepscope comm",
    "trace": "traces",
    "imported": "imported",
    "dry": "dry run",
}


def configurations(evidence: Evidence) -> tuple[tuple[str, str, str], ...]:
    """Return for each run folder its name, the commands that made it, and its resolved matrix as YAML."""
    return tuple(
        (record.name, "\n".join(_command_lines(record)), _matrix_yaml(record.matrix)) for record in evidence.records
    )


def _command_lines(record: RunRecord) -> list[str]:
    return [shlex.join(argv) for argv in record.commands or ((record.argv,) if record.argv else ())]


def _matrix_yaml(matrix: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(_plain_value(matrix), sort_keys=False, allow_unicode=True, width=100)


def _plain_value(value: Any) -> Any:
    """Return mappings and sequences of any kind as those that YAML knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain_value(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(element) for element in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def sources(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """Return each path with what it was read as; then the files of folders of mixed files, and whether they were read."""
    paths = [
        (str(source.path), source.format or KIND_WORDS.get(source.kind, source.kind)) for source in evidence.sources
    ]
    return (*paths, *((text, state) for state, text in narrator.files_found(evidence)))


def notes(evidence: Evidence) -> tuple[str, ...]:
    """Return what was repaired, left out or assumed on the way, of every source; each once."""
    texts = list(evidence.all_notes)
    for trace in evidence.traces:
        many = len(evidence.traces) > 1
        for note in trace.summary.notes:
            texts.append(f"{trace.name}: {note.text}" if many else note.text)
        for rank in trace.summary.ranks:
            where = f"{trace.name}, " if many else ""
            texts += [f"{where}rank {rank.facts.rank}: {note.text}" for note in rank.notes]
    unique = list(dict.fromkeys(texts))
    more = len(unique) - MAX_NOTES
    return (*unique[:MAX_NOTES], *((f"and {more} more",) if more > 0 else ()))


_PACKAGE = "stepscope.report"
_FOLDER = "templates"
_SCALING = ("scaling", "speedup_efficiency")
"""Views whose charts stand beside the table of scaling."""
_STEPS = (
    "throughput_over_time",
    "memory_over_time",
    "diary",
    "step_parts",
    "overlap_gain",
    "dry_lanes",
    "dry_memory",
    "predicted_scaling",
)
"""Views whose charts stand above the timeline: all steps, of which it shows a few; the same step made in two ways."""
_FIRST = (
    "history",
    "step_budget",
    "comm_share",
    "throughput",
    "strategies",
    "precision",
    "epoch_time",
    "accuracy",
    "loss",
    "memory",
    "memory_kinds",
)
"""Views whose charts come first, in this order."""


def write_page(path: Path, **page: Any) -> Path:
    """Write the page, as of :func:`page_text`, to ``path``, which is returned."""
    write_bytes(path, page_text(**page).encode("utf-8", errors="backslashreplace"))
    return path


def page_text(
    *,
    title: str,
    evidence: Evidence,
    diagnosis: Diagnosis,
    made_by: tuple[str, ...] = (),
    drop_epochs: int = 1,
    drawing: Drawing | None = None,
    merged: Mapping[str, Path] | None = None,
    verdict: JobVerdict | None = None,
    live: tuple[float, str] | None = None,
) -> str:
    """Return the whole page. Every string from outside is escaped; scripts and style are allowed by their hashes alone.

    made_by: the command line. drop_epochs: as in ``evidence.scaling``. drawing: its charts, where they are being drawn
    already. merged: files beside the page, as of ``merged_files``. verdict: of a profiled job, which leads. live: of a job
    that runs, every how many seconds a browser reads the page again, and how far the job is.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    styles, scripts = _template_sources("page.css"), _template_sources("page.js", "timeline.js")
    environment = Environment(
        loader=PackageLoader(_PACKAGE, _FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["as_html"] = lambda *of: Markup(as_html(*of))
    environment.filters["capfirst"] = lambda text: text[:1].upper() + text[1:]
    data = timeline(evidence, diagnosis.findings, merged)
    return environment.get_template("page.html.j2").render(
        title=title,
        styles=styles,
        scripts=scripts,
        policy=_content_policy(styles, scripts),
        version=__version__,
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        made_by=shlex.join(made_by),
        live=live,
        jobs=data["jobs"],
        timeline_data=embedded(drawn(data)),
        findings=shown_findings(diagnosis, data),
        verdict=answer(diagnosis),
        judged=_judged(evidence, verdict),
        trace_tables=contents.trace_tables(evidence, first=tuple(job["name"] for job in data["jobs"])),
        **_page_content(evidence, diagnosis, drop_epochs),
        **_chart_content(drawing or begin(records_of(evidence, drop_epochs=drop_epochs), ())),
    )


def _judged(evidence: Evidence, verdict: JobVerdict | None) -> dict[str, Any] | None:
    """Return what leads the page: the verdict on a profiled job, the screen of one dry run, or nothing."""
    if verdict is not None:
        return shown_verdict(verdict)
    return None if evidence.dry_job is None else shown_dry(evidence.dry_job)


def _chart_content(drawing: Drawing) -> dict[str, Any]:
    """Return the charts with their pictures, the most asked for first."""

    def place(pair: tuple[Chart, str]) -> int:
        return _FIRST.index(pair[0].view) if pair[0].view in _FIRST else len(_FIRST)

    drawn = sorted((pair for pair in drawing.for_page() if not pair[0].one_bar), key=place)
    return {
        "step_charts": [pair for pair in drawn if pair[0].view in _STEPS],
        "scaling_charts": [pair for pair in drawn if pair[0].view in _SCALING],
        "charts": [pair for pair in drawn if pair[0].view not in (*_STEPS, *_SCALING)],
        "charts_left_out": [chart.full_title for chart in drawing.left_out],
    }


def _page_content(evidence: Evidence, diagnosis: Diagnosis, drop_epochs: int) -> dict[str, Any]:
    """Return what the template of the page shows."""
    scaled = (
        scaling.scaling_table(evidence.scaling, evidence.runs, drop_epochs=drop_epochs) if evidence.scaling else None
    )
    return {
        "headline": headline(evidence, diagnosis),
        "skipped": worth_saying(diagnosis) if evidence.profiled else diagnosis.skipped,
        "quiet": diagnosis.quiet,
        "figures": key_figures(evidence, diagnosis),
        "scaling": contents.shown(scaled) if scaled is not None else None,
        "tables": contents.all_tables(evidence, drop_epochs=drop_epochs),
        "rows_left_out": contents.rows_left_out,
        "environment": () if evidence.environment is None else overview(evidence.environment),
        "configurations": configurations(evidence),
        "sources": sources(evidence),
        "notes": notes(evidence),
        "drop_epochs": drop_epochs,
    }


def _template_sources(*names: str) -> str:
    """Return the files of the templates' folder, one after the other."""
    folder = resources.files(_PACKAGE).joinpath(_FOLDER)
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _content_policy(styles: str, scripts: str) -> str:
    """Write the content security policy: nothing from anywhere, our style and script by hash, pictures made in the page."""
    return (
        f"default-src 'none'; style-src {_policy_hash(styles)}; script-src {_policy_hash(scripts)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _policy_hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
