"""Published and measured training runs beside what the step model says of them, and each GPU's correction from that."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path

from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import grouped
from stepscope.predict.step import calibration
from stepscope.predict.step.measured import MOST_OFF, shipped
from stepscope.predict.step.run_layout import Asked, as_asked
from stepscope.predict.step.run_rows import TrainingRow, read_training_rows
from stepscope.predict.step.step import StepPrediction, predict_step
from stepscope.records.calibration import StepFit, StepPart

SWEEP = 10
"""From so many layouts of one model on as many GPUs of one source on, a table is a sweep: its slow half is there to be
avoided. Only rows within ``NEAR`` of the best speed are graded as predictions, all of them as diagnoses."""
NEAR = 0.5

FAILED, NO_SPEED, SLOW = "did not run", "no speed printed", "slow half of a sweep: pathological asks about it"
PADDED = "share of padding not stated"
"""Why a row of a data-parallel job only tells how it scales: how much of its tokens is computed, nobody says."""


class Material:
    """A folder of published rows. Nothing of it is kept beyond the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows, self.unread = read_training_rows(folder)
        self._steps: dict[int, StepPrediction] = {}

    @cached_property
    def questions(self) -> list[tuple[TrainingRow, Asked | str]]:
        return [(row, self._priced(as_asked(row))) for row in self.rows]

    def _priced(self, asked: Asked | str) -> Asked | str:
        """``asked``, or why the step model refuses it."""
        if isinstance(asked, Asked):
            try:
                self.step(asked)
            except UsageError as error:
                return error.what
        return asked

    @cached_property
    def asked(self) -> list[Asked]:
        """Rows that the step model can be asked about."""
        return [asked for _, asked in self.questions if isinstance(asked, Asked)]

    @cached_property
    def unasked(self) -> Counter[str]:
        """Why the other rows are not ``timed``; these and those are every row of the folder."""
        counts = Counter(self.unread)
        for row, asked in self.questions:
            if row.failed:
                counts[FAILED] += 1
            elif not row.tokens_per_s:
                counts[NO_SPEED] += 1
            elif isinstance(asked, str):
                counts[asked] += 1
        return counts

    @cached_property
    def timed(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.row.tokens_per_s and not asked.row.failed]

    @cached_property
    def sweeps(self) -> dict[Hashable, list[Asked]]:
        stated = [asked for asked in self.timed if not asked.padded]
        return {key: sweep for key, sweep in grouped(stated, sweep_of).items() if len(sweep) >= SWEEP}

    @cached_property
    def best(self) -> dict[Hashable, float]:
        """Tokens/s per GPU of each sweep's fastest."""
        return {key: max(speed(asked) for asked in sweep) for key, sweep in self.sweeps.items()}

    @cached_property
    def near(self) -> list[Asked]:
        """Timed rows without the slow ones of sweeps."""
        return [asked for asked in self.timed if not self.slow(asked)]

    @cached_property
    def not_near(self) -> Counter[str]:
        """Why rows are not ``near``."""
        return self.unasked + Counter({SLOW: len(self.timed) - len(self.near)})

    @cached_property
    def whole(self) -> list[Asked]:
        """Rows that are ``near`` whose tokens are all real, so that the speed alone can be predicted."""
        return [asked for asked in self.near if not asked.padded]

    @cached_property
    def not_whole(self) -> Counter[str]:
        """Why rows cannot be predicted, or not from their configuration alone."""
        return self.not_near + Counter({PADDED: len(self.near) - len(self.whole)})

    def slow(self, asked: Asked) -> bool:
        return speed(asked) < NEAR * self.best.get(sweep_of(asked), 0.0)

    def step(self, asked: Asked) -> StepPrediction:
        """Predict the row's step with the shipped constants."""
        key = id(asked.row)
        if key not in self._steps:
            self._steps[key] = predict_step(asked.model, asked.cluster, asked.layout, calibration.of_stack(asked.stack))
        return self._steps[key]

    def speed(self, asked: Asked) -> float:
        """Predicted tokens/s per GPU."""
        return self.step(asked).tokens_per_s_per_gpu


def speed(asked: Asked) -> float:
    """Measured tokens/s per GPU."""
    return asked.row.tokens_per_s or 0.0


def sweep_of(asked: Asked) -> Hashable:
    row = asked.row
    return row.source, row.model, row.hardware, row.n_gpus, row.seq_len


def layout_of(asked: Asked) -> Hashable:
    """What makes two layouts the same, the number of GPUs left out."""
    a = asked.layout
    return a.tp, a.pp, a.cp, a.ep, a.vpp, a.zero, a.micro_batch, a.recompute, asked.row.sharding, asked.row.compiled


OWN_ROWS, OWN_LAYOUTS = 10, 5
"""Rows, and layouts among them, from which on their own spread is the interval: fewer know less than published runs do."""


def fit_rows(path: Path) -> tuple[tuple[StepFit, ...], tuple[str, ...]]:
    """Fit each GPU of a table, or folder, of runs in the published layout, and say why rows were left out, with their
    number. Raises DataError where no row can be used."""
    material = Material(path)
    left = Counter({reason: n for reason, n in material.not_whole.items() if n})
    groups: dict[str, list[tuple[Asked, float]]] = {}
    for asked in material.whole:
        off = speed(asked) / _predicted_tokens_per_s(asked)
        if 1 / MOST_OFF <= off <= MOST_OFF:
            groups.setdefault(asked.gpu, []).append((asked, math.log(off)))
        else:
            left[f"more than {MOST_OFF:g} times off: another job than described, or another unit"] += 1
    skipped = tuple(f"{reason} ({n})" for reason, n in left.most_common())
    if not groups:
        reasons = [text for text in skipped if not text.startswith((FAILED, NO_SPEED))] or skipped
        raise DataError(
            f"no run in {path} can be predicted", why="; ".join(reasons) or "no table of training runs there",
            fix="columns: accelerator, n_gpus, model_key or dimensions, seq_len, micro_batch, global_batch, precision, "
            "tp, pp, sharding, tokens_per_s_per_gpu or step_time_s",
        )  # fmt: skip
    return tuple(
        _step_fit(gpu, [a for a, _ in rows], [log for _, log in rows]) for gpu, rows in groups.items()
    ), skipped


def _predicted_tokens_per_s(asked: Asked) -> float:
    """Return tokens/s per GPU as ``predict --model`` predicts it."""
    constants = shipped(asked.cluster.gpu, asked.model)
    return predict_step(asked.model, asked.cluster, asked.layout, constants).tokens_per_s_per_gpu


def _step_fit(gpu: str, rows: Sequence[Asked], logs: Sequence[float]) -> StepFit:
    """The median row corrects; each row is tried with the median of the others."""
    middle = statistics.median(logs)
    others = [statistics.median([*logs[:i], *logs[i + 1 :]]) for i in range(len(logs))] if len(logs) > 1 else []
    off = [log - other for log, other in zip(logs, others, strict=False)]
    experts = any(asked.model.experts for asked in rows)
    low, high = calibration.REACH["one-row moe" if experts else "new-layout"]
    if len(off) >= OWN_ROWS and len({layout_of(asked) for asked in rows}) >= OWN_LAYOUTS:
        tenths = statistics.quantiles(off, n=10)
        least = calibration.REACH["scale-out"]
        low, high = min(math.exp(tenths[0]), least[0]), max(math.exp(tenths[-1]), least[1])
    part = StepPart(
        name="factor", value=math.exp(-middle), samples=len(rows), error_before=_mean_error(logs),
        error=_mean_error([log - middle for log in logs]), left_out_error=_mean_error(off) if off else None,
    )  # fmt: skip
    return StepFit(
        accelerator=gpu, gpus=tuple(sorted({asked.layout.gpus for asked in rows})), parts=(part,), low=low, high=high
    )


def _mean_error(logs: Sequence[float]) -> float:
    """Mean |predicted / measured - 1|."""
    return statistics.fmean(abs(math.exp(-log) - 1) for log in logs)
