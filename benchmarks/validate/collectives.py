"""Collectives predicted against measured: errors by source, op and size class, and how often the 80% interval holds."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.validate.fitted import fitted_on_collectives
from benchmarks.validate.grade import Answer, Goal, Graded, Question
from benchmarks.validate.tables import Given, MeasuredRow, read_measured_tables
from stepscope.core.errors import UsageError
from stepscope.predict.collectives.choose import predict_collective
from stepscope.predict.collectives.costs import Predicted
from stepscope.predict.step.run_fit import Material

SIZE_CLASSES: tuple[tuple[str, int], ...] = (
    ("< 64 KiB", 64 * 2**10),
    ("64 KiB - 16 MiB", 16 * 2**20),
    (">= 16 MiB", 2**63),
)
"""Name and first size beyond."""

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    row: MeasuredRow
    predicted: Predicted

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.time_ns / self.row.time_ns - 1

    @property
    def covered(self) -> bool:
        return self.predicted.low_ns <= self.row.time_ns <= self.predicted.high_ns

    @property
    def size_class(self) -> str:
        return next(name for name, end in SIZE_CLASSES if self.row.size_bytes < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """Errors of the rows that share source, op and size class (``all``: any).

    median_error, p90_error: of \\|predicted - measured\\| / measured. bias: median of the signed error. coverage: share
    of rows inside their 80% interval.
    """

    source: str
    op: str
    size_class: str
    rows: int
    median_error: float
    p90_error: float
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """overall: by size class, all sources and ops. groups: by source, op and size class. by_op: by op and size class.

    sources_coverage: coverage with every source weighing the same. skipped: rows that could not be predicted, and why.
    """

    compared: tuple[Compared, ...]
    overall: tuple[ErrorGroup, ...]
    by_op: tuple[ErrorGroup, ...]
    groups: tuple[ErrorGroup, ...]
    sources_coverage: float | None
    skipped: tuple[str, ...]


def predict_row(row: MeasuredRow) -> Predicted:
    """The prediction for what ``row`` measured. Raises UsageError where it cannot be made."""
    return predict_collective(
        row.op,
        row.size_bytes,
        n_gpus=row.n_gpus,
        gpu=row.gpu,
        gpus_per_node=row.gpus_per_node,
        inter_node=row.fabric,
        dtype=row.dtype,
        algorithm=row.algorithm,
        caller=row.caller,
    )


def validate(rows: Iterable[MeasuredRow], *, skipped: Sequence[str] = ()) -> ValidationReport:
    """Predict every row and compare. Rows that no prediction exists for are counted in ``skipped``, by reason."""
    compared: list[Compared] = []
    reasons: dict[str, int] = {}
    for row in rows:
        try:
            compared.append(Compared(row=row, predicted=predict_row(row)))
        except UsageError as error:
            reasons[error.what] = reasons.get(error.what, 0) + 1
    return ValidationReport(
        compared=tuple(compared),
        overall=_grouped(compared, lambda c: (ALL, ALL, c.size_class)),
        by_op=_grouped(compared, lambda c: (ALL, c.row.op, c.size_class)),
        groups=_grouped(compared, lambda c: (c.row.source, c.row.op, c.size_class)),
        sources_coverage=_by_source(compared),
        skipped=(*skipped, *(f"{text} ({n})" for text, n in reasons.items())),
    )


def _grouped(compared: Iterable[Compared], key: Callable[[Compared], tuple[str, str, str]]) -> tuple[ErrorGroup, ...]:
    found: dict[tuple[str, str, str], list[Compared]] = {}
    for one in compared:
        found.setdefault(key(one), []).append(one)
    order = [name for name, _ in SIZE_CLASSES]
    names = sorted(found, key=lambda k: (k[0], k[1], order.index(k[2])))
    return tuple(_errors(name, found[name]) for name in names)


def _errors(name: tuple[str, str, str], compared: Sequence[Compared]) -> ErrorGroup:
    signed = [one.relative_error for one in compared]
    sizes = sorted(abs(error) for error in signed)
    return ErrorGroup(
        source=name[0],
        op=name[1],
        size_class=name[2],
        rows=len(compared),
        median_error=statistics.median(sizes),
        p90_error=sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)],
        bias=statistics.median(signed),
        coverage=sum(one.covered for one in compared) / len(compared),
    )


def _by_source(compared: Iterable[Compared]) -> float | None:
    found: dict[str, list[bool]] = {}
    for one in compared:
        found.setdefault(one.row.source, []).append(one.covered)
    return statistics.mean(sum(f) / len(f) for f in found.values()) if found else None


MIDDLE = SIZE_CLASSES[1][0]


def collectives_middle(material: Material) -> Answer:
    if not list(material.folder.glob("collectives_*.csv")):
        return Answer(rows=())
    rows, unread = read_measured_tables(material.folder, Given())
    compared = validate(rows).compared
    found = [one for one in compared if one.size_class == MIDDLE]
    skipped = Counter({"smaller or larger": len(compared) - len(found)})
    for text in unread:
        reason = re.fullmatch(r"\S+\.csv: (.*) \((\d+)\)", text)
        skipped[reason[1] if reason else text] += int(reason[2]) if reason else 1
    return Answer(
        skipped=+skipped,
        rows=tuple(
            Graded(
                source=one.row.source,
                row_id=f"{one.row.op} {one.row.size_bytes}",
                predicted=one.predicted.time_ns,
                measured=one.row.time_ns,
                error=abs(one.relative_error),
                covered=float(one.covered),
                fitted=fitted_on_collectives(one.row.source),
            )
            for one in found
        ),
    )


COLLECTIVES_MIDDLE = Question(
    key="collectives-middle", title="collectives of 64 KiB to 16 MiB", unit="ns", ask=collectives_middle,
    bars=(Goal(figure="median_error", most=0.15), Goal(figure="coverage", least=0.75, most=0.90)),
    baseline="15%; 87%",
)  # fmt: skip
