"""``python -m benchmarks.validate DIR|FILE [--json]``: every prediction against measured tables, by question and source."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.validate import show
from benchmarks.validate.collectives import ValidationReport, validate
from benchmarks.validate.grade import Answer, Question, document
from benchmarks.validate.questions import QUESTIONS
from benchmarks.validate.tables import Given, MeasuredRow, read_measured_tables
from stepscope.cli.findings import show_table
from stepscope.core.errors import DataError, StepscopeError
from stepscope.core.words import counted
from stepscope.predict.step.run_fit import Material
from stepscope.predict.step.run_rows import lines_of_csv, of_runs


def main(arguments: list[str]) -> int:
    """Grade and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validate", description=__doc__)
    parser.add_argument("path", type=Path, metavar="DIR|FILE", help="csv in the published layout, logs of nccl-tests")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--gpu", help="what a log does not say: the GPU")
    parser.add_argument("--gpus", type=int, metavar="N", help="the number of ranks")
    parser.add_argument("--gpus-per-node", type=int, metavar="N")
    parser.add_argument("--network", help="between nodes")
    asked = parser.parse_args(arguments)
    given = Given(gpu=asked.gpu, n_gpus=asked.gpus, gpus_per_node=asked.gpus_per_node, inter_node=asked.network)
    try:
        report, answers = graded(asked.path, given)
    except StepscopeError as error:
        print(f"error: {error.line}", file=sys.stderr)
        return 2
    if asked.json:
        print(json.dumps({"kind": "validation", **_fields(report, answers)}, allow_nan=False))
    else:
        _show(report, answers)
    return 0


def graded(path: Path, given: Given) -> tuple[ValidationReport | None, list[tuple[Question, Answer]]]:
    """Collectives, where there are tables of them, and every question's answer, where the folder has a table of runs.

    Raises DataError where there is nothing to compare.
    """
    answers = _answers(path)
    skipped: list[str] = []
    rows: list[MeasuredRow] = []
    if not answers or any(path.glob("collectives_*.csv")):
        rows, skipped = read_measured_tables(path, given)
    if not rows and not answers:
        raise DataError(
            f"nothing to compare in {path}", why="; ".join(skipped) or "no CSV of runs or collectives there"
        )
    return validate(rows, skipped=skipped) if rows else None, answers


def _answers(path: Path) -> list[tuple[Question, Answer]]:
    if not path.is_dir():
        return []
    material = Material(path)
    tables = [file for file in path.glob("*.csv") if of_runs(lines_of_csv(file).fieldnames or ())]
    tables += path.glob("collectives_*.csv")
    return [(question, question.ask(material)) for question in QUESTIONS] if tables else []


def _fields(report: ValidationReport | None, answers: list[tuple[Question, Answer]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if report is not None:
        fields = {
            "overall": [asdict(group) for group in report.overall],
            "by_op": [asdict(group) for group in report.by_op],
            "groups": [asdict(group) for group in report.groups],
            "sources_coverage": report.sources_coverage,
            "skipped": list(report.skipped),
        }
    return {**fields, "questions": [document(question, answer) for question, answer in answers]}


def _show(report: ValidationReport | None, answers: list[tuple[Question, Answer]]) -> None:
    if answers:
        print(show.verdict(answers))
        for table in show.build(answers):
            show_table(table)
    if report is not None:
        title = f"Predicted against {counted(len(report.compared), 'measured row')}"
        show_table(show.build_validation(report, title=title))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
