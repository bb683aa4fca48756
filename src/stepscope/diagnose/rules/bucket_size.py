"""Gradient buckets are too small or too large; the rule names a better size.

What
----
For every cell with buckets on several ranks, the bucket timeline prices 1, 2, 4, 8, 16 and 25 MiB and the size in use.
Inputs: when backward produces each gradient (measured without communication), what an all-reduce of each bucket costs
(calibration or measured collectives), how many run at once, and how much communication and computation slow each other.
Size and gain are those of `stepscope predict --buckets`: the fastest size that the run measured, unless the timeline
names one that was not run and gains more than it has erred on those that were.

Why
---
Small buckets pay the latency of a collective often; large buckets start late, and the last one is fully exposed. The
default of torch (25 MiB after a first bucket of 1 MiB) suits neither slow networks nor small models and costs 20 to 30%
on 1 to 4 Gbit/s.

Known problems
--------------
A parameter is never split: with 64 MiB weights all sizes give the same buckets, and the rule is quiet. The model leaves
out copies into and out of DDP's buckets. Sizes within 0.5% count as equal; the larger is named.

References
----------
torch/nn/parallel/distributed.py (bucket_cap_mb), torch/csrc/distributed/c10d/reducer.cpp (bucket assignment), torch
2.13. Li et al., PyTorch Distributed, VLDB 13(12), 2020, section 5.3. Measured on an emulated network, 2 ranks, 2
Gbit/s, 8 x 4 MiB: 257 ms with the default, 205 ms with 4 MiB; predicted 257 and 207 (2026-11).
"""

from __future__ import annotations

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent, format_size
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.predict.run_buckets import DEFAULT, advised, bucket_cap, bucket_kinds, measured_steps
from stepscope.records.nouns import Measured
from stepscope.records.prediction import BucketAdvice, BucketChoice, Timeline
from stepscope.results.cell_facts import TimedCell, timed_cells
from stepscope.results.comm_costs import comm_costs, command_for
from stepscope.results.evidence import Evidence

MIN_GAIN = Limit(
    0.03,
    unit="predicted step with the current size / with the named size - 1",
    source="timeline predictions are as near to measured steps (2 Gbit emulated network, 2026-11)",
)

TORCH_DEFAULT_MB = 25.0


@record
class _Judged:
    """A cell, what the timeline says of its size, and the size to take instead.

    measured: steps of its kind by size, ns.
    """

    cell: TimedCell
    choice: BucketChoice
    in_use: Timeline
    measured: dict[str, Measured]
    advice: BucketAdvice

    @property
    def cap_mb(self) -> float | None:
        return bucket_cap(self.cell.spec)

    @property
    def named_mb(self) -> float:
        return TORCH_DEFAULT_MB if self.advice.way == DEFAULT else float(self.advice.way)

    @property
    def gain(self) -> float:
        """Step in use / step of the size named - 1: both measured, or both predicted."""
        now = self.cell.step_ns if self.advice.measured else self.in_use.step_ns
        return now / self.advice.step.value - 1

    @property
    def too_large(self) -> bool:
        return (self.cap_mb or TORCH_DEFAULT_MB) > self.named_mb

    @property
    def fires(self) -> bool:
        """Whether there is a gain; of a measured one the intervals of both steps leave no doubt."""
        unclear = self.advice.measured and not self.advice.step.below(self.cell.step)
        return self.gain > MIN_GAIN and not unclear


def check(evidence: Evidence) -> Statement:
    """Look for: gradient buckets are too small or too large."""
    timed = {timed_cell.cell.cell_id: timed_cell for timed_cell in timed_cells(evidence, least_ranks=2)}
    kinds = bucket_kinds(tuple(timed_cell.cell.result for timed_cell in timed.values()))
    if not kinds:
        return skipped(
            "no finished cell on several ranks has buckets (ddp, bucketed)", "stepscope bench --preset bucket-size"
        )
    commands = [command_for(cells[0].spec, run=evidence.cells[0].run.source) for cells in kinds.values()]
    costs = comm_costs(evidence)
    if costs is None:
        return skipped("no collectives were measured", commands[0])
    judged: list[list[_Judged]] = []
    reasons: list[tuple[str, str]] = []
    everything = tuple(cell.result for cell in evidence.cells if cell.run.status == "ok")
    for cells, command in zip(kinds.values(), commands, strict=True):
        profiled = next((c for c in cells if any(s.backward for s in c.summaries)), cells[0])
        caps = {cap for c in cells if (cap := bucket_cap(c.spec)) is not None}
        choice = costs.buckets(profiled, everything, also_mb=tuple(sorted(caps)))
        if isinstance(choice, str):
            reasons.append((choice, command))
            continue
        measured = measured_steps(everything, cells[0])
        judged.append(
            [_judged_cell(timed[cell.spec.cell_id], choice, measured) for cell in cells if cell.spec.cell_id in timed]
        )
    if not judged:
        return skipped(*reasons[0])
    # Of each kind at most one finding for each direction: that on the cell with the most to gain.
    same = [[one for one in kind if one.fires and one.too_large is large] for kind in judged for large in (True, False)]
    return [
        _bucket_size_finding(evidence, max(cells, key=lambda one: one.gain)) for cells in same if cells
    ] or "; ".join(map(_quiet_text, judged[:3]))


def _judged_cell(cell: TimedCell, choice: BucketChoice, measured: dict[str, Measured]) -> _Judged:
    """Judge the bucket size of a cell against the sizes measured and predicted."""
    cap = bucket_cap(cell.spec)
    # The candidate that this very size belongs to: sizes in use are always priced.
    in_use = choice.default if cap is None else next(c.timeline for c in choice.candidates if cap in c.bucket_caps_mb)
    advice = advised(choice, measured)
    if advice.ways < 2:  # of one size alone the error says nothing of the ratio between two
        advice = advised(choice, {})
    return _Judged(cell=cell, choice=choice, in_use=in_use, measured=measured, advice=advice)


def _bucket_size_finding(evidence: Evidence, worst: _Judged) -> Finding:
    """Return the finding, with evidence, stake and advice: gradient buckets are too small or too large."""
    cell, cap, named, advice = worst.cell, worst.cap_mb, worst.named_mb, worst.advice
    what = "torch's default bucket size (25 MiB)" if cap is None else f"a bucket size of {cap:g} MiB"
    now, candidates = worst.in_use, worst.choice.candidates
    best = next((c.timeline for c in candidates if named in c.bucket_caps_mb), worst.choice.default)
    ran = {key: step.value for key, step in worst.measured.items() if key not in ("naive", DEFAULT)}
    steps = sorted(ran.items(), key=lambda item: float(item[0]))
    off = f", which was at most {format_percent(advice.error or 0.0)} off at {counted(advice.ways, 'size')}"
    return finding(
        f"{what} is too {'large' if worst.too_large else 'small'}: {named:g} MiB is {format_percent(worst.gain)} faster "
        f"({'measured' if advice.measured else 'predicted'})",
        f"in use: {_buckets_text(now)}, {format_duration(now.exposed_ns)} exposed, {format_duration(now.step_ns)} a step"
        f" predicted, {format_duration(cell.step_ns)} measured",
        f"{named:g} MiB: {_buckets_text(best)}, {format_duration(best.exposed_ns)} exposed, "
        f"{format_duration(best.step_ns)} a step predicted"
        + (f", {format_duration(advice.step.value)} measured" if advice.measured else ""),
        "predicted steps: "
        + ", ".join(f"{max(c.bucket_caps_mb):g} MiB {format_duration(c.timeline.step_ns)}" for c in candidates),
        len(ran) > 1 and "measured steps: " + ", ".join(f"{key} MiB {format_duration(ns)}" for key, ns in steps),
        severity="problem" if worst.gain > 0.2 else "warning",
        stake=1 - 1 / (1 + worst.gain),
        confidence="measured"
        if advice.measured
        else f"likely: predicted by the bucket timeline{'' if advice.error is None else off}",
        advice=[
            (
                f"set the bucket size to {named:g} MiB: DistributedDataParallel(..., bucket_cap_mb={named:g})",
                again(evidence, cell.cell, ("strategy_options.bucket_cap_mb", [cap or TORCH_DEFAULT_MB, named])),
            ),
            (
                "compare the predicted step of each size",
                f"stepscope calibrate COMM && stepscope predict --buckets {cell.run.source} "
                f"--cell {cell.cell.cell_id} --calib COMM/calib.json",
            ),
        ],
        of=cell.run,
    )


def _buckets_text(timeline: Timeline) -> str:
    largest = max((b.size_bytes for b in timeline.buckets), default=0)
    return f"{counted(len(timeline.buckets), 'bucket')} of up to {format_size(largest)}"


def _quiet_text(kind: list[_Judged]) -> str:
    """Say why the sizes of these cells give no finding."""
    worst = max(kind, key=lambda judged: judged.gain)
    if len(worst.choice.candidates) == 1:
        return f"{worst.cell.name}: all sizes make the same {_buckets_text(worst.in_use)}"
    if worst.advice.refuted is not None:
        foreseen = worst.in_use.step_ns / worst.choice.chosen.timeline.step_ns - 1
        return (
            f"{worst.cell.name}: {worst.choice.bucket_cap_mb:g} MiB predicted {format_percent(foreseen)} faster, "
            "but measured no faster"
        )
    return (
        f"{worst.cell.name}: {format_percent(max(0.0, worst.gain))} gain with {worst.named_mb:g} MiB, "
        f"limit {format_percent(MIN_GAIN)}"
    )


RULE = Rule(
    symptom="gradient buckets are too small or too large",
    needs=("cells",),
    look=check,
    protocol=4,
    thresholds={"gain": MIN_GAIN},
)
