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

from stepscope.core.words import counted, grouped, listed
from stepscope.diagnose.commands import again, swept_again
from stepscope.diagnose.rule import Advices, Finding, Rule, Statement, finding, together
from stepscope.records.comm import CommRow
from stepscope.records.nouns import Status
from stepscope.results.evidence import CellEvidence, Evidence, in_line
from stepscope.results.labels import op_label, status_label, sweep_names

FAILED = ("error", "timeout", "killed")
INTERRUPTED = "interrupted"
LEFT_OUT = ("unsupported", "skipped")
NO_REASON = "no reason recorded"
_SHOWN = 5


def check(evidence: Evidence) -> Statement:
    asked = ((evidence.cells, _cells_statement), (evidence.comm, _sweeps_statement))
    return together(look(evidence) for there, look in asked if there)


def _sweeps_statement(evidence: Evidence) -> Statement:
    """Judge sweeps of `comm`, by the cell that measured them; sizes left out within one are not failures."""
    ends = {
        row.cell_id: row for row in evidence.comm if row.status not in ("ok", *LEFT_OUT) and row.correct is not False
    }
    total = len({row.cell_id for row in evidence.comm})
    by_end = grouped(ends.values(), lambda row: row.status == INTERRUPTED)
    return [_of_sweeps(evidence, by_end[stopped], total) for stopped in (False, True) if stopped in by_end] or (
        f"{counted(total, 'sweep')}: all finished"
    )


def _of_sweeps(evidence: Evidence, rows: Sequence[CommRow], total: int) -> Finding:
    """Report sweeps that failed, or those that were interrupted."""
    called = sweep_names(evidence.comm)
    reasons = [
        f"{status_label(row.status)}: {op_label(row)} on {called(row)}: {row.error or NO_REASON}" for row in rows
    ]
    more = len(reasons) - _SHOWN
    return _ended_finding(
        Counter(row.status for row in rows),
        counted(total, "sweep"),
        [*reasons[:_SHOWN], f"and {counted(more, 'other sweep')}" if more > 0 else ""],
        [
            (
                "rerun with the same folder to resume; finished sweeps are kept",
                swept_again(evidence, *(("-o", str(evidence.sources[0].path)) if evidence.sources else ())),
            )
        ],
    )


def _ended_finding(kinds: Counter[Status], whole: str, reasons: Sequence[str], advice: Sequence[Advices]) -> Finding:
    """Report what failed, or what was interrupted, of all that ran."""
    part, stopped = kinds.total(), set(kinds) == {INTERRUPTED}
    end = f"{'was' if part == 1 else 'were'} interrupted" if stopped else f"failed: {_listed_ends(kinds)}"
    return finding(
        f"{part} of {whole} {end}",
        reasons,
        severity="info" if stopped else "problem",
        confidence="certain: recorded",
        advice=advice,
        priority="performance" if stopped else "failure",
    )


def _cells_statement(evidence: Evidence) -> Statement:
    """Look for cells without a result: failed, interrupted, or finished without a timed step."""
    cells = evidence.cells
    empty = [cell for cell in cells if cell.run.status == "ok" and cell.run.step_ns is None]
    left_out = [cell for cell in cells if cell.run.status in LEFT_OUT]
    ends = ([cell for cell in cells if cell.run.status in ended] for ended in (FAILED, (INTERRUPTED,)))
    findings = [_failed_finding(evidence, ended) for ended in ends if ended]
    if empty:
        findings.append(
            finding(
                f"{counted(len(empty), 'cell')} finished without a step time",
                [
                    f"{in_line(cell.run)}: {next((n for n in cell.run.notes if 'step time' in n), 'no timed step')}"
                    for cell in empty[:_SHOWN]
                ],
                confidence="certain: recorded",
                advice=[("time at least 6 whole steps after warm-up", f"{again(evidence, empty[0])} --steps 40")],
                priority="failure",
            )
        )
    if left_out:
        kinds = Counter(cell.run.status for cell in left_out)
        findings.append(
            finding(
                f"{len(left_out)} of {counted(len(cells), 'cell')} did not run: {_listed_ends(kinds)}",
                _reason_lines(left_out),
                severity="info",
                confidence="certain: recorded",
            )
        )
    return findings or f"{counted(len(cells), 'cell')}: none failed, except for lack of memory"


def _failed_finding(evidence: Evidence, cells: list[CellEvidence]) -> Finding:
    """Report cells that failed, or those that were interrupted."""
    kinds = Counter(cell.run.status for cell in cells)
    folder = shlex.quote(evidence.cells[0].run.source)
    return _ended_finding(
        kinds,
        counted(len(evidence.cells), "cell"),
        _reason_lines(cells),
        [
            (
                "rerun with the same folder: finished cells are kept, the others run"
                if set(kinds) == {INTERRUPTED}
                else "fix the cause above, then rerun with the same folder: finished cells are kept, failed cells run "
                "again",
                f"{again(evidence, cells[0])} -o {folder}",
            ),
            kinds["timeout"] > 0 and ("see which rank missed which collective", f"stepscope diagnose {folder} DUMPS"),
        ],
    )


def _reason_lines(cells: Sequence[CellEvidence]) -> list[str]:
    """Return one line for each different end, with the cells it befell."""
    same = grouped(cells, lambda cell: (cell.run.status, cell.run.error or NO_REASON))
    lines = [
        f"{status_label(status)}: {listed((in_line(cell.run) for cell in group), at_most=1)}: {reason}"
        for (status, reason), group in same.items()
    ]
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"and {counted(more, 'other reason')}" if more > 0 else ""]


def _listed_ends(kinds: Counter[Status]) -> str:
    return ", ".join(f"{count} {status_label(status)}" for status, count in kinds.items())


RULE = Rule(
    symptom="cells or sweeps without a result",
    any_of=("cells", "comm"),
    look=check,
    decided_by="any status but ok; an interrupted cell did not fail",
    protocol=1,
)
