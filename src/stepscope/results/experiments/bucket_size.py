"""Which bucket size is fastest? Steps as the buckets' timeline predicts them, beside the measured ones."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.predict.timeline import TIE
from stepscope.records.nouns import Measured
from stepscope.records.prediction import BucketChoice
from stepscope.results.comm_costs import CommCosts, comm_costs
from stepscope.results.evidence import CellEvidence, Evidence
from stepscope.results.experiments import Expectation, Experiment, finished, model_error
from stepscope.results.sweeps import BucketSweep, bucket_sweeps

HINT = (
    "the measured steps decide: the timeline knows neither the copies into buckets nor what ranks on shared cores cost"
)


def judge(evidence: Evidence) -> tuple[Expectation, ...]:
    cells = finished(evidence)
    costs = comm_costs(evidence)
    return tuple(
        check for sweep in bucket_sweeps(cells, least_sizes=1) for check in _sweep_expectations(sweep, costs, cells)
    )


def _sweep_expectations(
    sweep: BucketSweep, costs: CommCosts | None, cells: Sequence[CellEvidence]
) -> list[Expectation]:
    """Return the checks of a sweep of bucket sizes: the step of each, and the fastest."""
    sized = {size.cap_mb: size for size in sweep.sizes}
    first = sweep.sizes[0].cell
    prediction: BucketChoice | str = "no collective was measured beside the run"
    if costs is not None:
        prediction = costs.buckets(first.result, tuple(c.result for c in cells), also_mb=tuple(sized))
    choice = prediction if isinstance(prediction, BucketChoice) else None
    missing = prediction if isinstance(prediction, str) else ""
    error = model_error(costs, first.spec.world_size)
    subject = f"{first.spec.strategy} on {first.spec.world_size} ranks"
    steps = {} if choice is None else {cap: c.timeline.step_ns for c in choice.candidates for cap in c.bucket_caps_mb}
    checks = [
        Expectation(
            subject=subject, quantity=f"step, buckets of {cap:g} MiB", unit="time", measured=size.step, hint=HINT,
            expected=Measured(value=float(steps[cap])) if cap in steps else None, tolerance=error, missing=missing,
            model="the buckets' timeline",
        )
        for cap, size in sized.items()
    ]  # fmt: skip
    best = _predicted_fastest({cap: float(steps[cap]) for cap in sized}) if sized.keys() <= steps.keys() else None
    checks.append(
        Expectation(
            subject=subject, quantity="fastest bucket size, MiB", unit="whole", expected=best, measured=sweep.fastest_mb,
            model="the shortest step of the timeline", missing=missing, hint=HINT,
        )
    )  # fmt: skip
    return checks


def _predicted_fastest(predicted: dict[float, float]) -> Measured:
    """Return the size predicted to be fastest, of those that ran: the model may prefer one that did not. Its interval holds
    those that the model takes for equal."""
    best = min(predicted, key=lambda cap: predicted[cap])
    tied = [cap for cap, step in predicted.items() if step <= predicted[best] * (1 + TIE)]
    return Measured(value=best, low=min(tied), high=max(tied))


EXPERIMENT = Experiment(judge=judge)
