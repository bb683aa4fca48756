"""Fits the step model's constants on half of the published training runs: ``python -m benchmarks.fit_step FOLDER``.

Coordinate descent on the mean |log(predicted / measured)| of the rows that :mod:`benchmarks.validate.fitted` names;
each kind of source weighs as the root of its rows. Prints what stands in ``predict/step/calibration.py``: takes minutes.
``--rows`` prints which rows to fit on instead (for another folder).
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path

from benchmarks.validate import speeds
from benchmarks.validate.fitted import fitted_on, half
from stepscope.predict.step import calibration
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.run_fit import Material, speed
from stepscope.predict.step.run_layout import Asked
from stepscope.predict.step.step import predict_step

FACTORS: dict[str, tuple[float, float]] = {
    "gemm_share": (0.6, 1.05), "gemm_fp8_share": (0.5, 1.05), "gemm_traffic": (0.3, 3), "attention_share": (0.15, 0.6),
    "attention_backward_share": (0.15, 0.6), "kernel_us": (1, 6), "launch_forward_us": (50, 2000),
    "launch_backward_us": (50, 3000), "launch_moe_us": (500, 8000), "elementwise_factor": (1, 3), "comm_rate": (0.5, 1),
    "overlap_slowdown": (1, 1.3), "optimizer_share": (0.3, 0.9), "step_us": (1000, 20000),
    "spread_per_doubling": (0.003, 0.02),
}  # fmt: skip
"""What is fitted, by factors, and what is plausible of it."""
SHARES = {"tp_overlap": (0.0, 0.8), "pp_overlap": (0.0, 0.95), "ep_overlap": (0.0, 0.8)}
"""The same by steps."""
OF_STACKS = (
    ("nanotron", "factor"), ("nanotron", "step_us"), ("nanotron", "comm_rate"),
    ("nanotron", "tp_overlap"), ("composer", "factor"), ("composer", "attention_share"),
    ("composer", "attention_backward_share"), ("megatron-2021", "factor"), ("fsdp2", "factor"),
)  # fmt: skip
STACK_LIMITS = {"step_us": (1000.0, 100000.0), "factor": (0.7, 1.6), "comm_rate": (0.2, 1.0)}
OUTLIER = 0.8
Stacks = dict[str, dict[str, float]]


class Fit:
    """simulated: pipelines pass by pass. codes: those whose own constants are fitted; None: all."""

    def __init__(
        self, rows: Sequence[Asked], *, simulated: bool = True, codes: Collection[str | None] | None = None
    ) -> None:
        self.rows, self.simulated = rows, simulated
        self.of_stacks = [(code, name) for code, name in OF_STACKS if codes is None or code in codes]
        counts = Counter(self._kind(asked) for asked in rows)
        self.weights = [counts[self._kind(asked)] ** -0.5 for asked in rows]

    @staticmethod
    def _kind(asked: Asked) -> str:
        return f"{asked.stack or asked.row.source}{' moe' if asked.model.experts else ''}"

    def loss(self, c: StepCalibration, stacks: Stacks) -> float:
        off = (abs(math.log(ratio(asked, c, stacks, simulated=self.simulated))) for asked in self.rows)
        return sum(w * min(x, OUTLIER) for w, x in zip(self.weights, off, strict=True)) / sum(self.weights)

    def descend(self, c: StepCalibration, stacks: Stacks, *, rounds: int = 4) -> tuple[StepCalibration, Stacks]:
        best, step = self.loss(c, stacks), 1.25
        for _ in range(rounds):
            for stack, name in ((None, n) for n in (*FACTORS, *SHARES)):
                best, c, stacks = self._along(best, c, stacks, stack, name, step)
            for stack, name in self.of_stacks:
                best, c, stacks = self._along(best, c, stacks, stack, name, 1 + (step - 1) / 2)
            step = 1 + (step - 1) * 0.6
            print(f"# {best:.4f}", file=sys.stderr)
        return c, stacks

    def _along(
        self, best: float, c: StepCalibration, stacks: Stacks, stack: str | None, name: str, step: float
    ) -> tuple[float, StepCalibration, Stacks]:
        for up in (True, False):
            while True:
                now = stacks.get(stack, {}).get(name, getattr(c, name)) if stack else getattr(c, name)
                value = moved(name, now, step, up=up, stack=stack is not None)
                tried, tried_stacks = c, stacks
                if stack:
                    tried_stacks = {**stacks, stack: {**stacks.get(stack, {}), name: value}}
                else:
                    tried = replace(c, **{name: value})
                loss = self.loss(tried, tried_stacks)
                if value == now or loss >= best - 2e-5:
                    break
                best, c, stacks = loss, tried, tried_stacks
        return best, c, stacks


def moved(name: str, value: float, step: float, *, up: bool, stack: bool) -> float:
    if name in SHARES:
        low, high = SHARES[name]
        return min(max(value + (step - 1) / 2.5 * (1 if up else -1), low), high)
    low, high = (
        STACK_LIMITS.get(name, FACTORS.get(name, (0.0, math.inf))) if stack else FACTORS.get(name, (0.0, math.inf))
    )
    return min(max(value * (step if up else 1 / step), low), high)


def ratio(asked: Asked, c: StepCalibration, stacks: Stacks, *, simulated: bool = True) -> float:
    own = replace(c, **dict(stacks.get(asked.stack or "", {})))  # type: ignore[arg-type]
    found = predict_step(asked.model, asked.cluster, asked.layout, own, simulated=simulated)
    return found.tokens_per_s_per_gpu / speed(asked)


def family_factors(rows: Sequence[Asked], material: Material) -> dict[str, float]:
    """Median of predicted over measured speed."""
    found: dict[str, list[float]] = defaultdict(list)
    for asked in rows:
        found[calibration.gpu_family(asked.gpu)].append(material.speed(asked) / speed(asked))
    return {family: round(statistics.median(values), 3) for family, values in sorted(found.items())}


def reaches(material: Material) -> dict[str, tuple[float, float]]:
    """10% and 90% quantiles of measured over predicted speed, by kind, over rows that nothing was fitted on."""
    found: dict[str, list[float]] = defaultdict(list)
    plain = speeds.judge

    def recording(of: Material, asked: Asked, factor: float, kind: str, *, doublings: float = 0.0, **more: bool):  # type: ignore[no-untyped-def]
        if not fitted_on(asked.row):
            off = math.log(speed(asked) / (of.speed(asked) * factor))
            found[kind].append(off / math.sqrt(1 + calibration.WIDER_PER_DOUBLING * abs(doublings)))
        return plain(of, asked, factor, kind, doublings=doublings, **more)

    speeds.judge = recording
    for ask in (speeds.scale_out, speeds.new_layout, speeds.zero_shot, speeds.family_factor, speeds.moe_one_row):
        ask(material)
    made = {}
    for kind, values in sorted(found.items()):
        tenths = statistics.quantiles(values, n=10)
        made[kind] = round(math.exp(tenths[0]), 3), round(math.exp(tenths[-1]), 3)
    return made


def main(folder: Path, *, rows: bool) -> None:
    material = Material(folder)
    if rows:
        print(half(asked.row for asked in material.timed))
        return
    seen = [asked for asked in material.near if fitted_on(asked.row)]
    start = {name: dict(values) for name, values in calibration.STACKS.items()}
    c, stacks = Fit(seen).descend(calibration.PUBLISHED, start)
    plain = StepCalibration()
    print("PUBLISHED = StepCalibration(")
    for field in fields(c):
        value = getattr(c, field.name)
        if value != getattr(plain, field.name):
            print(f"    {field.name}={value if isinstance(value, str) else float(f'{value:.3g}')!r},")
    print(")\nSTACKS =", {s: {n: float(f"{v:.3g}") for n, v in values.items()} for s, values in stacks.items()})
    calibration.PUBLISHED, calibration.STACKS = c, stacks
    print("FAMILY_FACTOR =", factors := family_factors(seen, fresh := Material(folder)))
    calibration.FAMILY_FACTOR.update(factors)
    print("REACH =", reaches(fresh))


if __name__ == "__main__":
    main(Path(sys.argv[1]), rows="--rows" in sys.argv)
