"""Cells or sweeps without a result, and why.

What
----
Groups cells that failed by how they ended, each with the first failing rank and its reason; lists separately the cells
that somebody interrupted, which did not fail, and those that cannot run here or need not. `near-oom` reports those that
ran out of memory. For `comm`: sweeps of a collective that did not finish.

Why
---
Readers assume that gaps in a table do not matter. A failure is a result and belongs beside the figures.

Known problems
--------------
The first failing rank is taken from the ranks' own clocks and error files; a lost host leaves neither.

References
----------
docs/reference/formats.md (status). docs/howto/find-a-hang.md.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from stepscope.core.words import counted, listed
from stepscope.diagnose.commands import again, swept_again
from stepscope.diagnose.rule import Rule, Statement, advise, together
from stepscope.records.comm import CommRow
from stepscope.records.finding import Finding
from stepscope.records.nouns import Status
from stepscope.results.evidence import CellEvidence, Evidence, in_line
from stepscope.results.labels import op_label, status_label, sweep_names

FAILED = ("error", "timeout", "killed")
INTERRUPTED = "interrupted"
LEFT_OUT = ("unsupported", "skipped")
NO_REASON = "no reason recorded"
_SHOWN = 5


def check(evidence: Evidence) -> Statement:
    asked = ((evidence.cells, _cells), (evidence.comm, _sweeps))
    return together(look(evidence) for there, look in asked if there)


def _sweeps(evidence: Evidence) -> Statement:
    """Judge sweeps of `comm`, by the cell that measured them; sizes left out within one are not failures."""
    ends = {
        row.cell_id: row for row in evidence.comm if row.status not in ("ok", *LEFT_OUT) and row.correct is not False
    }
    total = len({row.cell_id for row in evidence.comm})
    failed = [row for row in ends.values() if row.status != INTERRUPTED]
    stopped = [row for row in ends.values() if row.status == INTERRUPTED]
    findings = [_of_sweeps(evidence, rows, total) for rows in (failed, stopped) if rows]
    return tuple(findings) or f"{counted(total, 'sweep')}: all finished"


def _of_sweeps(evidence: Evidence, rows: Sequence[CommRow], total: int) -> Finding:
    """Report sweeps that failed, or those that were interrupted."""
    called = sweep_names(evidence.comm)
    stopped = rows[0].status == INTERRUPTED
    reasons = [
        f"{status_label(row.status)}: {op_label(row)} on {called(row)}: {row.error or NO_REASON}" for row in rows
    ]
    more = (f"and {counted(len(reasons) - _SHOWN, 'other sweep')}",) if len(reasons) > _SHOWN else ()
    return Finding(
        severity="info" if stopped else "problem",
        title=_title(len(rows), counted(total, "sweep"), Counter(row.status for row in rows)),
        evidence=(*reasons[:_SHOWN], *more),
        confidence="certain: recorded",
        advice=(
            advise(
                "rerun with the same folder to resume; finished sweeps are kept",
                swept_again(evidence, *(("-o", str(evidence.sources[0].path)) if evidence.sources else ())),
            ),
        ),
        priority="performance" if stopped else "failure",
    )


def _cells(evidence: Evidence) -> Statement:
    failed = [cell for cell in evidence.cells if cell.run.status in FAILED]
    stopped = [cell for cell in evidence.cells if cell.run.status == INTERRUPTED]
    empty = [cell for cell in evidence.cells if cell.run.status == "ok" and cell.run.step_ns is None]
    left_out = [cell for cell in evidence.cells if cell.run.status in LEFT_OUT]
    findings = []
    if failed:
        findings.append(_failed(evidence, failed))
    if stopped:
        findings.append(_failed(evidence, stopped))
    if empty:
        findings.append(_empty(evidence, empty))
    if left_out:
        findings.append(_left_out(left_out, len(evidence.cells)))
    if findings:
        return tuple(findings)
    return f"{counted(len(evidence.cells), 'cell')}: none failed, except for lack of memory"


def _title(part: int, whole: str, kinds: Counter[Status]) -> str:
    if set(kinds) == {INTERRUPTED}:
        return f"{part} of {whole} {'was' if part == 1 else 'were'} interrupted"
    return f"{part} of {whole} failed: {_listed(kinds)}"


def _failed(evidence: Evidence, cells: list[CellEvidence]) -> Finding:
    """Report cells that failed, or those that were interrupted."""
    kinds = Counter(cell.run.status for cell in cells)
    stopped = set(kinds) == {INTERRUPTED}
    folder = evidence.cells[0].run.source
    advice = [
        advise(
            "rerun with the same folder: finished cells are kept, the others run"
            if stopped
            else "fix the cause above, then rerun with the same folder: finished cells are kept, failed cells run again",
            f"{again(evidence, cells[0])} -o {shlex.quote(folder)}",
        )
    ]
    if kinds["timeout"]:
        advice.append(
            advise("see which rank missed which collective", f"stepscope diagnose {shlex.quote(folder)} DUMPS")
        )
    return Finding(
        severity="info" if stopped else "problem",
        title=_title(len(cells), counted(len(evidence.cells), "cell"), kinds),
        evidence=_reasons(cells),
        confidence="certain: recorded",
        advice=tuple(advice),
        priority="performance" if stopped else "failure",
    )


def _empty(evidence: Evidence, cells: list[CellEvidence]) -> Finding:
    return Finding(
        severity="warning",
        title=f"{counted(len(cells), 'cell')} finished without a step time"
        if len(cells) == 1
        else f"{len(cells)} cells finished without a step time",
        evidence=tuple(
            f"{in_line(cell.run)}: {next((n for n in cell.run.notes if 'step time' in n), 'no timed step')}"
            for cell in cells[:_SHOWN]
        ),
        confidence="certain: recorded",
        advice=(advise("time at least 6 whole steps after warm-up", f"{again(evidence, cells[0])} --steps 40"),),
        priority="failure",
    )


def _left_out(cells: list[CellEvidence], total: int) -> Finding:
    kinds = Counter(cell.run.status for cell in cells)
    return Finding(
        severity="info",
        title=f"{len(cells)} of {counted(total, 'cell')} did not run: {_listed(kinds)}",
        evidence=_reasons(cells),
        confidence="certain: recorded",
    )


def _reasons(cells: Sequence[CellEvidence]) -> tuple[str, ...]:
    """Return one line for each different end, with the cells it befell."""
    same: dict[tuple[str, str], list[CellEvidence]] = {}
    for cell in cells:
        same.setdefault((cell.run.status, cell.run.error or NO_REASON), []).append(cell)
    lines = []
    for (status, reason), group in same.items():
        name = listed((in_line(cell.run) for cell in group), at_most=1)
        lines.append(f"{status_label(status)}: {name}: {reason}")
    more = len(lines) - _SHOWN
    return (*lines[:_SHOWN], *((f"and {counted(more, 'other reason')}",) if more > 0 else ()))


def _listed(kinds: Counter[Status]) -> str:
    return ", ".join(f"{count} {status_label(status)}" for status, count in kinds.items())


RULE = Rule(
    symptom="cells or sweeps without a result",
    any_of=("cells", "comm"),
    look=check,
    decided_by="any status but ok; an interrupted cell did not fail",
    protocol=1,
)
