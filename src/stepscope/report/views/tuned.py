"""What `tune` tried: predicted and measured gain of each configuration, its loss, and why it is out."""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.records.nouns import Estimate
from stepscope.records.tuning import Trial, Tuned
from stepscope.report.table import Column, Table, Value, duration, lead_column, tabled, text, wording
from stepscope.report.views import View


def gain(estimate: Estimate | None) -> Value:
    """Write ``1.52x (1.40 to 1.66)``."""
    if estimate is None:
        return wording(None)
    ends = "" if estimate.low is None or estimate.high is None else f" ({estimate.low:.2f} to {estimate.high:.2f})"
    return wording(f"{estimate.value:.2f}x{ends}", raw=estimate.value)


def tuned_table(tuned: Tuned) -> Table:
    """Return the table: one row a configuration, the baseline first."""

    def loss(trial: Trial) -> Value:
        if trial.loss is None:
            return wording(None)
        change = "" if trial.loss_change is None else f" {format_percent(trial.loss_change, digits=1, signed=True)}"
        return wording(f"{trial.loss:.4g}{change}", raw=trial.loss)

    def verdict(trial: Trial) -> Value:
        if trial.proposal is None:
            return wording("baseline")
        return wording("best", tone="good") if trial.key == tuned.best else wording(trial.lost)

    def mathematics(trial: Trial) -> Value:
        return wording(None) if trial.proposal is None else wording("same" if trial.proposal.exact else "changed")

    return tabled(
        "tuned",
        "Tried configurations",
        tuned.trials,
        lead_column("trial", "trial", "key", text),
        Column("predicted", "predicted", lambda t: gain(t.proposal.gain if t.proposal else None)),
        Column("measured", "measured", lambda t: gain(t.gain)),
        Column("step_ns", "step", "step_ns", duration),
        Column("loss", "loss", loss, drop=1),
        Column("mathematics", "mathematics", mathematics, drop=2),
        Column("verdict", "verdict", verdict),
        footnotes=(
            "predicted, measured: throughput (samples per second) over the baseline's, with the 80% interval of the "
            "prediction and the 95% interval of the measurement",
        ),
    )


VIEWS = (View("tuned", table=tuned_table),)
