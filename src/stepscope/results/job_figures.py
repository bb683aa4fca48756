"""The figures of a job's diary, together and of each rank: what ``--fail-if``, exports and ``StepMonitor.summary`` give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepscope.core.errors import Unavailable
from stepscope.results.comparing import part_means, timed_steps_of
from stepscope.results.diary import JobSteps, parts_of
from stepscope.results.figures import Figure, figures_of
from stepscope.results.hardware import hardware_figures
from stepscope.results.memory_growth import LEAST_SAMPLES, Of, RankMemory, largest, rank_memory
from stepscope.stats.step_table import Numbers

DIARY = figures_of("steps", "shares", "memory", "hardware")
"""Figures of a diary, by key."""


def job_figures(steps: JobSteps) -> dict[str, float | None]:
    """Return every figure of ``DIARY``, times in ns; None: not known."""
    timed = timed_steps_of(steps)
    times = {} if isinstance(timed, Unavailable) else _step_times_ns(timed)
    return (
        dict.fromkeys(DIARY)
        | times
        | _part_shares(steps, slice(None))
        | _memory_bytes(rank_memory(steps))
        | hardware_figures(steps)
    )


def rank_figures(steps: JobSteps) -> dict[int, dict[str, float | None]]:
    """Return for each rank the median of its step, means of its parts and its shares, under the same keys."""
    whole = dict(zip((rank_diary.rank for rank_diary in steps.diaries), steps.whole_ns, strict=True))
    by_rank: dict[int, dict[str, float | None]] = {}
    for at, (rank, rank_ns) in enumerate(whole.items()):
        diary = steps.diaries[at]
        outside = diary.columns["outside_ns"][1:]
        by_rank[rank] = {
            "diary_step_ns": float(np.median(rank_ns)),
            "diary_outside_ns": float(np.nan_to_num(outside).mean()) if outside.size else None,
        }
        for key, figure in DIARY.items():
            if figure.of == "steps" and key not in by_rank[rank]:
                of_rank = steps.whole_ns[at : at + 1]
                by_rank[rank][key] = (
                    figure.read(of_rank) if callable(figure.value) else _known_mean(steps.parts_ns[figure.value][at])
                )
        by_rank[rank] |= _part_shares(steps, slice(at, at + 1))
        by_rank[rank] |= _memory_bytes([memory for memory in rank_memory(steps) if memory.rank == rank])
        by_rank[rank] |= hardware_figures(steps, (rank,))
    return by_rank


def flat_figures(job: Mapping[str, float | None], ranks: Mapping[int, Mapping[str, float | None]]) -> dict[str, float]:
    """Return what is known, by name; with several ranks, ``rank_N/KEY``, too."""
    flat = {key: value for key, value in job.items() if value is not None}
    if len(ranks) > 1:
        for rank, figures in ranks.items():
            flat |= {f"rank_{rank}/{key}": value for key, value in figures.items() if value is not None}
    return flat


def worst(jobs: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return each figure of the job where it is worst; None where no job has it."""
    figures: dict[str, float | None] = {}
    for key, figure in DIARY.items():
        values = [value for job in jobs if (value := job[key]) is not None]
        figures[key] = (max if figure.better == "low" else min)(values, default=None)
    return figures


def _step_times_ns(steps: JobSteps) -> dict[str, float | None]:
    """Return the step, its parts and what is outside of it, ns; None: not known."""
    parts = {key: float(means.mean()) for key, means in part_means(steps).items()}
    named = {"step": float(np.median(steps.step_ns)), "outside": steps.outside_ns, **parts}
    return {
        key: figure.read(steps.whole_ns) if callable(figure.value) else named.get(figure.value)
        for key, figure in figures_of("steps").items()
    }


def _known_mean(values: Numbers) -> float | None:
    """Return the mean; None where less than half was seen."""
    return float(np.nan_to_num(values).mean()) if np.isfinite(values).mean() > 0.5 else None


def _part_shares(steps: JobSteps, ranks: slice) -> dict[str, float | None]:
    """Return the shares of these ranks: sums over ranks and steps before the ratio."""
    parts = parts_of(steps)
    whole = float(steps.whole_ns[ranks].sum())
    seen = {name for name, values in steps.parts_ns.items() if np.isfinite(values[ranks]).any()}
    if np.isfinite(steps.comm_ns[ranks]).any():
        seen |= {"transfer", "waiting"}

    def share(figure: Figure) -> float | None:
        """Return the share of the parts that a figure names; None where no rank has one of them."""
        names = str(figure.value).split()
        if names == ["outside"]:
            return _outside_share(steps, ranks)
        if not whole or not seen.intersection(names):
            return None
        return min(1.0, sum(float(parts[name][ranks].sum()) for name in names) / whole)

    return {key: share(figure) for key, figure in figures_of("shares").items()}


def _memory_bytes(ranks: Sequence[RankMemory]) -> dict[str, float | None]:
    """Return the bytes, whole numbers, of the rank with most and of the one that grows fastest; None: too few samples."""
    figures: dict[str, float | None] = {}
    for key, figure in figures_of("memory").items():
        of: Of = "host" if str(figure.value).startswith("host") else "device"
        sampled = [rank for rank in ranks if rank.of == of and rank.samples >= LEAST_SAMPLES]
        a_step = max((0.0 if rank.growth is None else rank.growth.value for rank in sampled), default=None)
        value = a_step if str(figure.value).endswith("growth") else largest(ranks, of)
        figures[key] = None if value is None else float(round(value))
    return figures


def _outside_share(steps: JobSteps, ranks: slice) -> float | None:
    later = [(d.columns["outside_ns"][1:], d.whole_ns[1:]) for d in steps.diaries[ranks]]
    wall = _series_total_ns(whole for _, whole in later)
    return _series_total_ns(outside for outside, _ in later) / wall if wall else None


def _series_total_ns(series: Iterable[Numbers]) -> float:
    return sum(float(np.nan_to_num(values).sum()) for values in series)
