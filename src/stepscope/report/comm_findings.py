"""Plain sentences under the tables of a comm run: only what the rows show, and only where their intervals allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.core.units import format_size
from stepscope.core.words import counted, plural
from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import decimal, interval_share
from stepscope.results.comm_labels import env_label, op_label, sweep_names, sweeps
from stepscope.results.comm_winners import Winner, winners
from stepscope.results.labels import STATUS_LABELS
from stepscope.results.slow_pairs import PairsVerdict, SlowEnd, SlowPair, slow_pairs

AIM = 0.02
"""Half-width of the interval of a median that measuring aims at (``CommMeasure.ci_fraction``'s default)."""

NOISY = 5 * AIM
"""A median known to no better than this is called noisy, and a fall of busbw below this is not spoken of."""

MEAN_OVER_MEDIAN = 2.0
"""From this ratio on some calls take many times as long as most: on gloo 1 KiB had 4.0 under the default scheduler policy
and 1.0 to 1.4 under SCHED_BATCH (2 ranks on 2 cores, 2026-11)."""

MAX_EACH = 3


def comm_findings(rows: Sequence[CommRow]) -> tuple[str, ...]:
    """What is wrong first, then what is slow, then what makes the figures doubtful, then which settings win."""
    return (
        *_wrong(rows),
        *_failures(rows),
        *_slow(rows),
        *_retreats(rows),
        *_noise(rows),
        *_policy(rows),
        *winner_sentences(rows),
    )


def _wrong(rows: Sequence[CommRow]) -> list[str]:
    bad = [row for row in rows if row.correct is False]
    if not bad:
        return []
    called = sweep_names(rows)
    named = [f"{_measured(row)} on {called(row)}{f' ({row.error})' if row.error else ''}" for row in bad]
    more = f"; {len(named) - MAX_EACH} more" if len(named) > MAX_EACH else ""
    return [f"WRONG RESULTS, trust no time of this run: {'; '.join(named[:MAX_EACH])}{more}."]


def _failures(rows: Sequence[CommRow]) -> list[str]:
    failed = [r for r in rows if r.status not in ("ok", "skipped", "unsupported") and r.correct is not False]
    if not failed:
        return []
    counts: dict[str, int] = {}
    for row in failed:
        label = STATUS_LABELS.get(row.status, row.status)
        counts[label] = counts.get(label, 0) + 1
    cells = len({row.cell_id for row in rows})
    ended = len({row.cell_id for row in failed})
    kinds = ", ".join(f"{label} {count}" for label, count in counts.items())
    return [f"{ended} of {counted(cells, 'sweep')} did not finish: {kinds}; the table has the reasons."]


def _slow(rows: Sequence[CommRow]) -> list[str]:
    said = []
    for verdict in slow_pairs(rows):
        said += [_end_sentence(end, verdict) for end in verdict.ends[:MAX_EACH]]
        if len(verdict.ends) > MAX_EACH:
            said.append(f"{len(verdict.ends) - MAX_EACH} more of {verdict.world_size} ranks are slow like that.")
        said += _pair_sentences(verdict)
    return said


def _end_sentence(end: SlowEnd, verdict: PairsVerdict) -> str:
    ranks = f"{plural(len(end.ranks), 'rank')} {', '.join(map(str, end.ranks))}"
    who = f"Host {end.host} ({ranks})" if end.host is not None else ranks.capitalize()
    what = {"egress": "sends", "ingress": "receives", "both": "sends and receives"}[end.direction]
    where = {
        "egress": "its way out, not the links to single peers",
        "ingress": "its way in, not the links to single peers",
        "both": "the host or its one link, not the links to single peers",
    }[end.direction]
    return (
        f"{who} {what} slowly: {end.slow} of its {counted(end.of, 'pair')} that way take {end.ratio:.1f}x as long as"
        f" other pairs ({counted(verdict.world_size, 'rank')}): look at {where}."
    )


def _pair_sentences(verdict: PairsVerdict) -> list[str]:
    single: dict[frozenset[int], SlowPair] = {}
    for pair in verdict.pairs:
        if not pair.explained:
            single.setdefault(frozenset(pair.peer), pair)  # worst first
    said = []
    for pair in list(single.values())[:MAX_EACH]:
        sender, receiver = pair.peer
        path = f" ({pair.path})" if pair.path else ""
        sure = (
            "seen in more than one measurement."
            if pair.confirmed
            else "seen in one measurement only: measure again to tell a slow link from a disturbance."
        )
        said.append(
            f"Ranks {sender} and {receiver}{path} take {pair.ratio:.1f}x as long as other pairs at"
            f" {format_size(pair.size_bytes)}; {sure}"
        )
    if len(single) > MAX_EACH:
        said.append(f"{counted(len(single) - MAX_EACH, 'more pair')} of ranks slow; the table lists them.")
    return said


def _retreats(rows: Sequence[CommRow]) -> list[str]:
    """Sweeps whose busbw falls again at the largest size, beyond what the two intervals allow."""
    shown = _timed(rows)
    called = sweep_names(shown)
    found = []
    for sweep in sweeps(shown).values():
        rated = [r for r in sweep if r.busbw_bytes_per_s and r.size_bytes]
        if len(rated) < 3:
            continue
        last = max(rated, key=lambda r: r.size_bytes or 0)
        best = max(rated, key=lambda r: r.busbw_bytes_per_s or 0.0)
        drop = 1 - (last.busbw_bytes_per_s or 0.0) / (best.busbw_bytes_per_s or 1.0)
        if drop > NOISY and _faster_for_sure(best, last):
            found.append((drop, best, last))
    found.sort(key=lambda item: -item[0])
    said = [
        f"{op_label(best)} on {called(best)}: busbw is best at {format_size(best.size_bytes or 0)}"
        f" ({decimal((best.busbw_bytes_per_s or 0.0) / 1e9)} GB/s) and {drop:.0%} lower at"
        f" {format_size(last.size_bytes or 0)}{_why(last)}.".replace("%", " %")
        for drop, best, last in found[:MAX_EACH]
    ]
    if len(found) > MAX_EACH:
        said.append(f"{counted(len(found) - MAX_EACH, 'more sweep')}: busbw falls again at large sizes.")
    return said


def _why(row: CommRow) -> str:
    return " (on the CPU often where messages no longer fit its caches)" if row.device == "cpu" else ""


def _faster_for_sure(best: CommRow, last: CommRow) -> bool:
    """Whether the rate's interval at ``best`` lies above that at ``last``."""
    if not (best.time_ns_high and last.time_ns_low and best.time_ns_median and last.time_ns_median):
        return False
    low = (best.busbw_bytes_per_s or 0.0) * best.time_ns_median / best.time_ns_high
    high = (last.busbw_bytes_per_s or 0.0) * last.time_ns_median / last.time_ns_low
    return low > high


def _noise(rows: Sequence[CommRow]) -> list[str]:
    shown = _timed(rows)
    wide = [(w, row) for row in shown if (w := interval_share(row)) is not None and w > NOISY]
    said = []
    if wide:
        width, worst = max(wide, key=lambda item: item[0])
        called = sweep_names(shown)
        said.append(
            f"Noisy: the median is known to no better than ±{NOISY:.0%} at {len(wide)} of {counted(len(shown), 'size')}"
            f" (worst ±{width:.0%}, {_measured(worst)} on {called(worst)}); smaller differences mean nothing"
            " there.".replace("%", " %")
        )
    said += _tails(shown)
    return said


def _tails(shown: Sequence[CommRow]) -> list[str]:
    ratios = [(row.time_ns_mean / row.time_ns_median, row) for row in shown if row.time_ns_mean and row.time_ns_median]
    long = [(ratio, row) for ratio, row in ratios if ratio >= MEAN_OVER_MEDIAN]
    if not long:
        return []
    ratio, worst = max(long, key=lambda item: item[0])
    called = sweep_names(shown)
    return [
        f"Long tails at {len(long)} of {counted(len(shown), 'size')}: the mean is up to {ratio:.1f}x the median"
        f" ({_measured(worst)} on {called(worst)}). A step that waits for every call pays the mean."
    ]


def _policy(rows: Sequence[CommRow]) -> list[str]:
    default = [r for r in _timed(rows) if r.backend == "gloo" and r.scheduler_policy == "SCHED_OTHER"]
    if not default:
        return []
    return [
        "gloo's ranks ran under the default scheduler policy (SCHED_OTHER): where they share cores, waking threads"
        " preempt each other, and small messages take several times as long on average as under SCHED_BATCH;"
        " `stepscope doctor` says whether that is allowed here."
    ]


def winner_sentences(rows: Sequence[CommRow]) -> tuple[str, ...]:
    """``NCCL_ALGO=Ring NCCL_PROTO=LL is fastest at 64 KiB, 1.3x the default``; neighbouring sizes in one sentence."""
    found = winners(rows)
    if not found:
        return ()
    alike: dict[tuple[str, str], list[Winner]] = {}
    called = sweep_names([_without_env(w) for w in found])
    for winner in found:
        alike.setdefault((op_label(winner.row), called(_without_env(winner))), []).append(winner)
    return tuple(
        f"{op} on {ranks}: {_run_sentence(run)}." for (op, ranks), some in alike.items() for run in _runs(some)
    )


def _without_env(winner: Winner) -> CommRow:
    return replace(winner.row, env={})


def _runs(some: Sequence[Winner]) -> list[list[Winner]]:
    """Consecutive sizes with the same outcome."""
    runs: list[list[Winner]] = []
    for winner in sorted(some, key=lambda w: w.row.size_bytes or 0):
        if runs and _outcome(runs[-1][-1]) == _outcome(winner):
            runs[-1].append(winner)
        else:
            runs.append([winner])
    return runs


def _outcome(winner: Winner) -> str | None:
    return env_label(winner.row.env) if winner.clear else None


def _run_sentence(run: Sequence[Winner]) -> str:
    sizes = [w.row.size_bytes or 0 for w in run]
    where = (
        f"at {format_size(sizes[0])}" if len(run) == 1 else f"from {format_size(sizes[0])} to {format_size(sizes[-1])}"
    )
    if not run[0].clear:
        return f"no settings are clearly fastest {where}"
    text = f"{env_label(run[0].row.env)} is fastest {where}"
    if run[0].default is run[0].row:
        return f"{text}, {_span([w.over_next for w in run])} the next best"
    over = [w.over_default for w in run if w.over_default is not None]
    return (
        f"{text}, {_span(over)} the default" if over else f"{text}, {_span([w.over_next for w in run])} the next best"
    )


def _span(ratios: Sequence[float]) -> str:
    low, high = _times(min(ratios)), _times(max(ratios))
    return low if low == high else f"{low} to {high}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 1.1 else f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def _timed(rows: Sequence[CommRow]) -> list[CommRow]:
    return [r for r in rows if r.kind == "collective" and r.status == "ok" and r.time_ns_median is not None]


def _measured(row: CommRow) -> str:
    size = row.size_bytes
    return f"{op_label(row)} of {format_size(size)}" if size else op_label(row)
