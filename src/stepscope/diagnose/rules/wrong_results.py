"""A collective returned wrong values: times of that run and models trained there are invalid.

What
----
`stepscope comm` checks every size once: integers exactly, floats within n rounding errors of their type. nccl-tests
counts wrong elements (``#wrong``) or states the largest deviation and the number of values out of bounds. One wrong
element fires.

Why
---
A broken link, a library bug or a wrong protocol corrupts gradients silently: the loss still falls, a little less.

Known problems
--------------
Old logs of nccl-tests give the number of values out of bounds without the size; every size with a deviation is then
named. A log without validation (``-c 0``) proves nothing.

References
----------
nccl-tests, doc/PERFORMANCE.md and src/common.cu; docs/reference/metrics.md, Collectives.
"""

from __future__ import annotations

from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.diagnose.commands import is_amd
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.records.comm import CommRow
from stepscope.results.evidence import NEEDS, Evidence
from stepscope.results.labels import op_label, sweep_names, sweeps

_SHOWN = 4


def check(evidence: Evidence) -> Statement:
    """Look for: a collective's result is wrong."""
    checked = [row for row in evidence.comm if row.correct is not None]
    if not checked:
        return skipped("no result of a collective was checked", f"{NEEDS['comm'][1]} --check")
    called = sweep_names(evidence.comm)
    return [
        _wrong_results_finding(f"{op_label(rows[0])} on {called(rows[0])}", rows, evidence)
        for rows in sweeps(row for row in checked if row.correct is False).values()
    ] or f"{counted(len(checked), 'size')} checked, all correct"


def _wrong_results_finding(name: str, wrong: list[CommRow], evidence: Evidence) -> Finding:
    """Return the finding, with evidence, stake and advice: a collective's result is wrong."""
    nccl = wrong[0].backend == "nccl"
    errors = ": nvidia-smi nvlink -e, dmesg (Xid)" if nccl and not is_amd(evidence) else ""
    return finding(
        f"{name} gives wrong results at {counted(len(wrong), 'size')}",
        [
            f"{format_size(row.size_bytes or row.asked_bytes or 0)}: {row.error or 'wrong result'}"
            for row in wrong[:_SHOWN]
        ],
        len(wrong) > _SHOWN and f"{counted(len(wrong) - _SHOWN, 'more size')}",
        severity="problem",
        confidence="measured: the result was compared with the expected one",
        advice=[
            "do not use results of this machine until this is fixed; models trained on it may be damaged",
            (
                f"measure pairs of ranks to find the link or host, then check it for errors{errors}",
                "stepscope comm --ops none --pairs",
            ),
            nccl
            and (
                "check whether only one protocol is wrong (LL128 needs ordered 128-byte writes), and update NCCL",
                "stepscope comm --ops all_reduce --sizes 1K:256M:4 --env NCCL_PROTO=Simple,LL,LL128",
            ),
        ],
        of=name,
        priority="wrong",
    )


RULE = Rule(
    symptom="a collective's result is wrong",
    needs=("comm",),
    look=check,
    decided_by="wrong: 0 wrong elements",
    protocol=1,
)
