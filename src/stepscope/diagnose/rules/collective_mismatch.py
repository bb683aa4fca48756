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
from stepscope.diagnose.rule import Finding, Rule, Statement, finding
from stepscope.records.nccl import MISMATCHES, FlightFinding, Kind
from stepscope.results.evidence import Evidence

_ORDER = "look for an order that depends on the rank: hooks, sets, branches on data; groups used from threads"
_DIFFERENCE: dict[Kind, tuple[str, str]] = {
    "size_mismatch": (
        "with another size",
        "look for a size that depends on the rank: the last batch, sequences padded per rank, a parameter that only "
        "some ranks use (find_unused_parameters)",
    ),
    "dtype_mismatch": ("with another type", "look for autocast or .half() on some ranks only"),
    "op_mismatch": ("another operation", _ORDER),
    "order_mismatch": ("in another order", _ORDER),
}


def check(evidence: Evidence) -> Statement:
    return [_collective_mismatch_finding(f) for f in evidence.flight if f.kind in MISMATCHES and f.cause] or (
        "all calls recorded on at least two ranks match"
    )


def _collective_mismatch_finding(mismatch: FlightFinding) -> Finding:
    """Return the finding, with evidence, stake and advice: ranks called collectives that do not match."""
    who = f"{plural(len(mismatch.ranks), 'rank')} {in_words(mismatch.ranks)}"
    group = mismatch.group_description or (f"group {mismatch.group}" if mismatch.group else "a group")
    place = "a point-to-point call" if mismatch.is_p2p else f"collective {mismatch.sequence}"
    # Where the other side has no more ranks, this one is named by convention alone.
    even = len(set(mismatch.called) - set(mismatch.ranks)) <= len(mismatch.ranks)
    differs, look = _DIFFERENCE[mismatch.kind]
    return finding(
        f"{who} called {place} of {group} {differs}",
        mismatch.sentence,
        bool(mismatch.waiting)
        and f"{counted(len(mismatch.waiting), 'rank')} never left it: {in_words(mismatch.waiting)}",
        severity="problem",
        confidence="certain: both calls are recorded"
        + ("; as many ranks made either call, so that either may be the wrong one" if even else ""),
        advice=[
            look,
            (
                "let torch compare every call before it runs (slow) and name the line",
                "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
            ),
        ],
        of=who,
        priority="wrong",
    )


RULE = Rule(
    symptom="ranks called collectives that do not match",
    sees=("flight", "flight_recorded"),
    look=check,
    looks_at="flight recorders",
    decided_by="different: 0 calls that differ",
    protocol=3,
)
