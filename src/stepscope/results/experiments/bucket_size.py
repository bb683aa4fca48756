"""Which bucket size is fastest? Steps as the buckets' timeline predicts them, beside the measured ones."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.predict.run_buckets import bucket_kinds
from stepscope.predict.timeline import TIE
from stepscope.records.timeline import BucketChoice
from stepscope.records.training import Measured
from stepscope.results.comm_costs import CommCosts, comm_costs
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.experiments._common import Expectation, Experiment, finished, model_error

CAP = "bucket_cap_mb"
HINT = (
    "the measured steps decide: the timeline knows neither the copies into buckets nor what ranks on shared cores cost"
)


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    cells = {cell.cell_id: cell for cell in finished(evidence)}
    kinds = bucket_kinds(cell.result for cell in cells.values()).values()
    costs = comm_costs(evidence)
    return tuple(
        check for kind in kinds for check in _kind([cells[r.spec.cell_id] for r in kind], costs, list(cells.values()))
    )


def _kind(kind: Sequence[CellEvidence], costs: CommCosts | None, cells: Sequence[CellEvidence]) -> list[Expectation]:
    sized = {float(c.spec.strategy_options[CAP]): c for c in kind if c.spec.strategy_options.get(CAP)}  # type: ignore[arg-type]
    if not sized:
        return []
    first = next(iter(sized.values()))
    found: BucketChoice | str = "no collective was measured beside the run"
    if costs is not None:
        found = costs.buckets(first.result, tuple(c.result for c in cells), also_mb=tuple(sized))
    choice = found if isinstance(found, BucketChoice) else None
    missing = found if isinstance(found, str) else ""
    error = model_error(costs, first.spec.world_size)
    subject = f"{first.spec.strategy} on {first.spec.world_size} ranks"
    steps = {} if choice is None else {cap: c.timeline.step_ns for c in choice.candidates for cap in c.bucket_caps_mb}
    checks = [
        Expectation(
            subject=subject, quantity=f"step, buckets of {cap:g} MiB", unit="time", measured=cell.run.step_ns, hint=HINT,
            expected=Measured(value=float(steps[cap])) if cap in steps else None, tolerance=error, missing=missing,
            model="the buckets' timeline",
        )
        for cap, cell in sorted(sized.items())
    ]  # fmt: skip
    best = _shortest({cap: float(steps[cap]) for cap in sized}) if sized.keys() <= steps.keys() else None
    checks.append(
        Expectation(
            subject=subject, quantity="fastest bucket size, MiB", unit="whole", expected=best, measured=_fastest(sized),
            model="the shortest step of the timeline", missing=missing, hint=HINT,
        )
    )  # fmt: skip
    return checks


def _shortest(predicted: dict[float, float]) -> Measured:
    """Of the sizes that ran, as the model may like one better that did not; with those it takes for equal."""
    best = min(predicted, key=lambda cap: predicted[cap])
    tied = [cap for cap, step in predicted.items() if step <= predicted[best] * (1 + TIE)]
    return Measured(value=best, low=min(tied), high=max(tied))


def _fastest(sized: dict[float, CellEvidence]) -> Measured:
    """The size of the shortest step, from the smallest to the largest of those whose intervals meet its own; without an
    interval where a step has none."""
    steps = {cap: cell.run.step_ns for cap, cell in sized.items() if cell.run.step_ns is not None}
    best = min(steps, key=lambda cap: steps[cap].value)
    high = steps[best].high
    if high is None or any(step.low is None for step in steps.values()):
        return Measured(value=best)
    tied = [cap for cap, step in steps.items() if (step.low or 0.0) <= high]
    return Measured(value=best, low=min(tied), high=max(tied))


EXPERIMENT = Experiment(judge=judge)
