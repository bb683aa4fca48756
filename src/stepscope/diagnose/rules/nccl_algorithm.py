"""NCCL chose an algorithm or protocol that is not the fastest one measured here.

What
----
A sweep of `stepscope comm` over NCCL_ALGO, NCCL_PROTO or other NCCL variables has a setting that beats the default at
some size: the 95% intervals of the medians do not overlap, and the default takes at least 5% more time. NCCL's own
choice is named if its log of the same sizes is present.

Why
---
NCCL's tuner picks from a model of the machine. On fabrics it does not know (few NICs, oversubscribed switches, bridged
PCIe) the model is wrong by up to 2x near the sizes where algorithms change.

Known problems
--------------
A variable applies to every operation and size: a setting that wins at 1 MiB may lose at 1 GiB, so the sizes of the job
decide. A setting that wins alone may lose beside computation, because protocols use different numbers of SMs. Measure
again after an update of NCCL: a forced choice disables a better tuner.

References
----------
NCCL user guide, NCCL_ALGO and NCCL_PROTO ("not recommended for production" as a lasting setting); NCCL tuner plugin
interface (ext-tuner); Hu et al., Demystifying NCCL, 2025 (arXiv 2507.04786).
"""

from __future__ import annotations

from stepscope.core.units import format_percent, format_size
from stepscope.core.words import counted, grouped
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.comm import CommRow
from stepscope.results.comm_facts import Winner, size_of, winners
from stepscope.results.evidence import Evidence
from stepscope.results.labels import comm_ranks_label, env_label, op_label

MIN_GAIN = Limit(
    1.05,
    unit="default's time / winner's time",
    source="2.5 times the half-width that a measurement aims at (2%), so that no equal setting wins by chance",
)
_SHOWN = 4


def check(evidence: Evidence) -> Statement:
    """Look for: NCCL's choice of algorithm or protocol is not the fastest one measured."""
    swept = [
        w
        for w in winners(evidence.comm)
        if any(name.startswith(("NCCL_", "RCCL_")) for row in w.settings for name in row.env)
    ]
    with_default = [w for w in swept if w.default is not None]
    if not with_default:
        why = "the sweep has no run with default settings to compare with" if swept else "no sweep over NCCL settings"
        return skipped(why, RULE.unseen_command)
    beaten = [
        w for w in with_default if all(row is not w.default for row in w.settings[: w.tied]) and _gain(w) >= MIN_GAIN
    ]
    groups = grouped(beaten, lambda w: _setting_key(w.row))
    ranked = sorted(groups.items(), key=lambda item: -max(map(_gain, item[1])))
    return [_nccl_algorithm_finding(*key, some, evidence, _losing_sizes(key, swept)) for key, some in ranked] or (
        f"{counted(len(with_default), 'size')}: the default takes at most {max(map(_gain, with_default)):.2f}x the "
        f"time of the fastest, limit {MIN_GAIN:g}x beyond noise"
    )


def _gain(winner: Winner) -> float:
    return winner.over_default or 1.0


def _setting_key(row: CommRow) -> tuple[str, str, str]:
    return op_label(row), comm_ranks_label(row), env_label(row.env)


def _losing_sizes(key: tuple[str, str, str], swept: list[Winner]) -> list[tuple[int, float]]:
    """List (size, time / the default's) where the same setting is slower beyond noise, largest size first."""
    slower = [
        (size_of(row), row.time_ns_median / default.time_ns_median)
        for winner in swept
        if (default := winner.default) is not None and default.time_ns_median
        for row in winner.settings
        if _setting_key(row) == key and row.time_ns_median
        if (row.time_ns_low or 0) > (default.time_ns_high or row.time_ns_low or 0)
    ]
    return sorted((pair for pair in slower if pair[1] >= MIN_GAIN), reverse=True)


def _nccl_algorithm_finding(
    op: str, ranks: str, env: str, some: list[Winner], evidence: Evidence, losing: list[tuple[int, float]]
) -> Finding:
    """Return the finding, with evidence, stake and advice: NCCL's choice of algorithm or protocol is not the fastest one
    measured."""
    best = max(some, key=_gain)
    size, plain = size_of(best.row), best.row.op.replace("_", "")
    slower = ", ".join(f"{format_size(size)} {over:.2f}x" for size, over in losing[:_SHOWN])
    chosen = next(
        (
            choice
            for log in evidence.nccl
            for communicator in log.communicators
            for choice in communicator.choices
            if (choice.op or "").replace("_", "").lower() == plain and choice.low_bytes <= size <= choice.high_bytes
        ),
        None,
    )
    return finding(
        f"{op} on {ranks}: {env} is {format_percent(_gain(best) - 1)} faster than NCCL's choice at {format_size(size)}",
        [
            f"{format_size(size_of(w.row))}: default {_gain(w):.2f}x the time of {env}"
            for w in sorted(some, key=lambda w: size_of(w.row))[:_SHOWN]
        ],
        len(some) > _SHOWN and f"{len(some) - _SHOWN} more sizes",
        slower and f"the same setting is slower than the default at {slower}",
        chosen is not None and f"NCCL's own choice at {format_size(size)}: {chosen.algorithm}, {chosen.protocol}",
        confidence="measured without concurrent computation: 95% intervals of the medians do not overlap",
        advice=[
            not losing and ("try it in the training job; its sizes and overlap decide", f"export {env}"),
            (
                "the variable applies to every size: use a tuner plugin (NCCL_TUNER_PLUGIN) for the sizes that gain"
                if losing
                else "if only some sizes gain, use a tuner plugin (NCCL_TUNER_PLUGIN) instead of the variable"
            ),
            ("show NCCL's choice at each size", f"{RULE.unseen_command} --nccl-debug TUNING"),
        ],
        of=f"{op} on {ranks}",
    )


RULE = Rule(
    symptom="NCCL's choice of algorithm or protocol is not the fastest one measured",
    sees=("comm",),
    unseen="no collectives were measured",
    unseen_command="stepscope comm --ops all_reduce --sizes 64K:256M:4 --env NCCL_ALGO=Ring,Tree",
    look=check,
    looks_at="comm with --env, or nccl and comm",
    protocol=3,
    thresholds={"gain": MIN_GAIN},
)
