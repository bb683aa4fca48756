"""What measured runs say of the step model: a correction for each GPU, with how well it fits."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.material import FAILED, NO_SPEED, Material, layout_of, speed
from stepscope.predict.step import fitted
from stepscope.predict.step.shipped import MOST_OFF, shipped
from stepscope.predict.step.step import predict_step
from stepscope.records.calibration import StepFit, StepPart

OWN_ROWS, OWN_LAYOUTS = 10, 5
"""Rows, and layouts among them, from which on their own spread is the interval: fewer know less than published runs do."""


def fit_rows(path: Path) -> tuple[tuple[StepFit, ...], tuple[str, ...]]:
    """A fit for each GPU of a table, or folder, of runs in the published layout; and why rows were left out, with their
    number. Raises DataError where no row can be used."""
    material = Material(path)
    left = Counter({reason: n for reason, n in material.not_whole.items() if n})
    groups: dict[str, list[tuple[Asked, float]]] = {}
    for asked in material.whole:
        off = speed(asked) / _predicted(asked)
        if 1 / MOST_OFF <= off <= MOST_OFF:
            groups.setdefault(asked.gpu, []).append((asked, math.log(off)))
        else:
            left[f"more than {MOST_OFF:g} times off: another job than described, or another unit"] += 1
    skipped = tuple(f"{reason} ({n})" for reason, n in left.most_common())
    if not groups:
        said = [text for text in skipped if not text.startswith((FAILED, NO_SPEED))] or skipped
        raise DataError(
            f"no run in {path} can be predicted", why="; ".join(said) or "no table of training runs there",
            fix="columns: accelerator, n_gpus, model_key or dimensions, seq_len, micro_batch, global_batch, precision, "
            "tp, pp, sharding, tokens_per_s_per_gpu or step_time_s",
        )  # fmt: skip
    return tuple(_fit(gpu, [a for a, _ in rows], [log for _, log in rows]) for gpu, rows in groups.items()), skipped


def _predicted(asked: Asked) -> float:
    """As ``predict --model`` has it."""
    constants = shipped(asked.cluster.gpu, asked.model)
    return predict_step(asked.model, asked.cluster, asked.layout, constants).tokens_per_s_per_gpu


def _fit(gpu: str, rows: Sequence[Asked], logs: Sequence[float]) -> StepFit:
    """The median row corrects; each row is tried with the median of the others."""
    middle = statistics.median(logs)
    others = [statistics.median([*logs[:i], *logs[i + 1 :]]) for i in range(len(logs))] if len(logs) > 1 else []
    off = [log - other for log, other in zip(logs, others, strict=False)]
    experts = any(asked.model.experts for asked in rows)
    low, high = fitted.REACH["one-row moe" if experts else "new-layout"]
    if len(off) >= OWN_ROWS and len({layout_of(asked) for asked in rows}) >= OWN_LAYOUTS:
        tenths = statistics.quantiles(off, n=10)
        least = fitted.REACH["scale-out"]
        low, high = min(math.exp(tenths[0]), least[0]), max(math.exp(tenths[-1]), least[1])
    part = StepPart(
        name="factor", value=math.exp(-middle), samples=len(rows), error_before=_error(logs),
        error=_error([log - middle for log in logs]), left_out_error=_error(off) if off else None,
    )  # fmt: skip
    return StepFit(
        accelerator=gpu, gpus=tuple(sorted({asked.layout.gpus for asked in rows})), parts=(part,), low=low, high=high
    )


def _error(logs: Sequence[float]) -> float:
    """Mean |predicted / measured - 1|."""
    return statistics.fmean(abs(math.exp(-log) - 1) for log in logs)
