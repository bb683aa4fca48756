"""``stepscope predict --validate``: every prediction against measured tables, by question and source."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.console import print_document, say
from stepscope.cli.findings import show_table
from stepscope.cli.predict_step import write_chart
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import counted
from stepscope.predict.collectives.measured import read_measured_tables
from stepscope.predict.collectives.measured_rows import Given, MeasuredRow
from stepscope.predict.collectives.validate import ValidationReport, validate
from stepscope.predict.published.grade import Answer, Question, document
from stepscope.predict.published.material import Material
from stepscope.predict.published.questions import QUESTIONS
from stepscope.records.codec import headed
from stepscope.report.views import published
from stepscope.report.views.predicted import build_validation

if TYPE_CHECKING:
    from stepscope.cli.commands.predict import Predict


def run(options: Predict, path: Path) -> int:
    """Grade and print; the exit code. Raises StepscopeError."""
    given = Given(
        gpu=options.gpu, n_gpus=_ranks(options), gpus_per_node=options.gpus_per_node, inter_node=options.network
    )
    asked = _published(path)
    skipped: list[str] = []
    rows: list[MeasuredRow] = []
    if not asked or any(path.glob("collectives_*.csv")):
        rows, skipped = read_measured_tables(path, given)
    if not rows and not asked:
        raise DataError(
            f"nothing to compare in {path}", why="; ".join(skipped) or "no CSV of runs or collectives there"
        )
    report = validate(rows, skipped=skipped) if rows else None
    if options.chart is not None:
        _draw(asked, options.chart)
    if options.json:
        print_document({**headed("predict/1"), "kind": "validation", **_fields(report, asked)})
    else:
        _show(report, asked)
    return 0


def _ranks(options: Predict) -> int | None:
    from stepscope.predict.what_if import parse_gpus

    if options.gpus is None:
        return None
    counts = parse_gpus(options.gpus)
    if len(counts) > 1:
        raise UsageError("--validate takes one number of ranks", fix="give --gpus N")
    return counts[0]


def _published(path: Path) -> list[tuple[Question, Answer]]:
    """Every question's answer; nothing where the folder has no table in the published layout."""
    if not path.is_dir():
        return []
    material = Material(path)
    return [(question, question.ask(material)) for question in QUESTIONS] if material.tables else []


def _fields(report: ValidationReport | None, asked: list[tuple[Question, Answer]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if report is not None:
        fields = {
            "overall": [asdict(group) for group in report.overall],
            "by_op": [asdict(group) for group in report.by_op],
            "groups": [asdict(group) for group in report.groups],
            "sources_coverage": report.sources_coverage,
            "skipped": list(report.skipped),
        }
    return {**fields, "questions": [document(question, answer) for question, answer in asked]}


def _show(report: ValidationReport | None, asked: list[tuple[Question, Answer]]) -> None:
    if asked:
        say(published.verdict(asked), "bold")
        for table in published.build(asked):
            show_table(table)
    if report is not None:
        table = build_validation(report, title=f"Predicted against {counted(len(report.compared), 'measured row')}")
        show_table(table)


def _draw(asked: list[tuple[Question, Answer]], file: Path) -> None:
    """Predicted over measured speed as a picture. Raises UsageError for another kind of file, WriteError."""
    charts = published.prepare(asked)
    if not charts:
        raise DataError("nothing to draw", why="the folder has no training run that can be predicted")
    write_chart(file, charts[0], published.draw, published.caption)
