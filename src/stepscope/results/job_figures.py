"""The figures of a job's diary, together and of each rank: what ``--fail-if``, exports and ``StepMonitor.summary`` give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepscope.results.comparing import TimedSteps, timed_steps_of
from stepscope.results.diary import JobSteps, Numbers, parts_of
from stepscope.results.figures import Figure, figures_of
from stepscope.results.hardware import hardware_figures
from stepscope.results.memory_growth import LEAST_SAMPLES, Of, RankMemory, largest, rank_memory

DIARY = figures_of("steps", "shares", "memory", "hardware")
"""By key."""


def job_figures(steps: JobSteps) -> dict[str, float | None]:
    """Every figure of ``DIARY``, times in ns; None: not known."""
    timed = timed_steps_of(steps)
    found = {
        key: _time(timed, str(figure.value)) if figure.of == "steps" and isinstance(timed, TimedSteps) else None
        for key, figure in DIARY.items()
    }
    return found | _shares(steps, slice(None)) | _memory(rank_memory(steps)) | hardware_figures(steps)


def rank_figures(steps: JobSteps) -> dict[int, dict[str, float | None]]:
    """By rank: median of its step, means of its parts, its shares; the same keys."""
    whole = dict(zip((each.rank for each in steps.diaries), steps.whole_ns, strict=True))
    found: dict[int, dict[str, float | None]] = {}
    for at, (rank, mine) in enumerate(whole.items()):
        diary = steps.diaries[at]
        outside = diary.columns["outside_ns"][1:]
        found[rank] = {
            "diary_step_ns": float(np.median(mine)),
            "diary_outside_ns": float(np.nan_to_num(outside).mean()) if outside.size else None,
        }
        for key, figure in DIARY.items():
            if figure.of == "steps" and key not in found[rank]:
                found[rank][key] = _mean(steps.parts_ns[str(figure.value)][at])
        found[rank] |= _shares(steps, slice(at, at + 1))
        found[rank] |= _memory([each for each in rank_memory(steps) if each.rank == rank])
        found[rank] |= hardware_figures(steps, (rank,))
    return found


def flat_figures(job: Mapping[str, float | None], ranks: Mapping[int, Mapping[str, float | None]]) -> dict[str, float]:
    """What is known, by name; of several ranks ``rank_N/KEY``, too."""
    found = {key: value for key, value in job.items() if value is not None}
    if len(ranks) > 1:
        for rank, figures in ranks.items():
            found |= {f"rank_{rank}/{key}": value for key, value in figures.items() if value is not None}
    return found


def worst(jobs: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Of each figure that of the job where it is worst; None where no job has it."""
    found: dict[str, float | None] = {}
    for key, figure in DIARY.items():
        known = [value for job in jobs if (value := job[key]) is not None]
        found[key] = (max if figure.better == "low" else min)(known, default=None)
    return found


def _time(timed: TimedSteps, part: str) -> float | None:
    if part == "step":
        return float(np.median(timed.step))
    if part == "outside":
        return timed.outside
    return _mean(timed.parts[part]) if part in timed.parts else None


def _mean(values: Numbers) -> float | None:
    """None where less than half was seen."""
    return float(np.nan_to_num(values).mean()) if np.isfinite(values).mean() > 0.5 else None


def _shares(steps: JobSteps, ranks: slice) -> dict[str, float | None]:
    """Of these ranks: sums over ranks and steps before the ratio."""
    parts = parts_of(steps)
    whole = float(steps.whole_ns[ranks].sum())
    seen = {name for name, values in steps.parts_ns.items() if np.isfinite(values[ranks]).any()}
    if np.isfinite(steps.comm_ns[ranks]).any():
        seen |= {"transfer", "waiting"}

    def share(figure: Figure) -> float | None:
        names = str(figure.value).split()
        if names == ["outside"]:
            return _outside(steps, ranks)
        if not whole or not seen.intersection(names):
            return None
        return min(1.0, sum(float(parts[name][ranks].sum()) for name in names) / whole)

    return {key: share(figure) for key, figure in figures_of("shares").items()}


def _memory(ranks: Sequence[RankMemory]) -> dict[str, float | None]:
    """Whole bytes of the rank with most, and of the one that grows fastest; None: too few samples."""
    found: dict[str, float | None] = {}
    for key, figure in figures_of("memory").items():
        of: Of = "host" if str(figure.value).startswith("host") else "device"
        known = [rank for rank in ranks if rank.of == of and rank.samples >= LEAST_SAMPLES]
        a_step = max((0.0 if each.growth is None else each.growth.value for each in known), default=None)
        value = a_step if str(figure.value).endswith("growth") else largest(ranks, of)
        found[key] = None if value is None else float(round(value))
    return found


def _outside(steps: JobSteps, ranks: slice) -> float | None:
    later = [(d.columns["outside_ns"][1:], d.whole_ns[1:]) for d in steps.diaries[ranks]]
    wall = _total(whole for _, whole in later)
    return _total(outside for outside, _ in later) / wall if wall else None


def _total(each: Iterable[Numbers]) -> float:
    return sum(float(np.nan_to_num(values).sum()) for values in each)
