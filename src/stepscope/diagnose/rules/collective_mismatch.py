"""Ranks call different collectives, or the same one with different sizes or types: wrong results, or a hang.

What
----
Matches the flight recorders of all ranks by group and call number and reports the first call of a rank that differs
from the others': another size, type, operation or order.

Why
---
NCCL does not compare the calls of the ranks. Different sizes hang or overwrite memory, different types produce garbage,
a swapped order pairs the wrong tensors. The error appears much later, elsewhere.

Known problems
--------------
all_to_all and gathers with uneven splits may differ on their input side; the rule compares only what must agree. If
both sides have equally many ranks, it names by convention the side without the lowest rank.

References
----------
PyTorch documentation, TORCH_DISTRIBUTED_DEBUG=DETAIL; NCCL user guide, Troubleshooting; MUST (MPI correctness checking) for
the same errors in MPI.
"""

from __future__ import annotations

from stepscope.core.words import counted, in_words, plural
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.records.finding import Finding
from stepscope.records.nccl import MISMATCHES, FlightFinding, Kind
from stepscope.results.evidence import Evidence

MOST_DIFFERENT = Limit(value=0, unit="calls that differ", source="all ranks of a group must make the same calls")

_DIFFERENCE: dict[Kind, str] = {
    "size_mismatch": "with another size",
    "dtype_mismatch": "with another type",
    "op_mismatch": "another operation",
    "order_mismatch": "in another order",
}


def check(evidence: Evidence) -> Statement:
    mismatches = [f for f in evidence.flight if f.kind in MISMATCHES and f.cause]
    if mismatches:
        return tuple(map(_report, mismatches))
    return "all calls recorded on at least two ranks match"


def _report(finding: FlightFinding) -> Finding:
    who = f"{plural(len(finding.ranks), 'rank')} {in_words(finding.ranks)}"
    group = finding.group_description or (f"group {finding.group}" if finding.group else "a group")
    place = "a point-to-point call" if finding.is_p2p else f"collective {finding.sequence}"
    sentences = [finding.sentence]
    if finding.waiting:
        sentences.append(f"{counted(len(finding.waiting), 'rank')} never left it: {in_words(finding.waiting)}")
    return Finding(
        severity="problem",
        title=f"{who} called {place} of {group} {_DIFFERENCE[finding.kind]}",
        evidence=tuple(sentences),
        confidence="certain: both calls are recorded"
        + ("; as many ranks made either call, so that either may be the wrong one" if _even(finding) else ""),
        advice=(
            advise(_where(finding.kind)),
            advise(
                "let torch compare every call before it runs (slow) and name the line",
                "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
            ),
        ),
        subject=who,
        priority="wrong",
    )


def _even(finding: FlightFinding) -> bool:
    """Whether the other side has no more ranks: then it is named by convention alone."""
    return len(set(finding.called) - set(finding.ranks)) <= len(finding.ranks)


def _where(kind: Kind) -> str:
    if kind == "size_mismatch":
        return (
            "look for a size that depends on the rank: the last batch, sequences padded per rank, a parameter that only "
            "some ranks use (find_unused_parameters)"
        )
    if kind == "dtype_mismatch":
        return "look for autocast or .half() on some ranks only"
    return "look for an order that depends on the rank: hooks, sets, branches on data; groups used from threads"


RULE = Rule(
    symptom="ranks called collectives that do not match",
    sees=("flight", "flight_recorded"),
    look=check,
    looks_at="flight recorders",
    protocol=3,
    thresholds={"different": MOST_DIFFERENT},
)
