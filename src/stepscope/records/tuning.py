"""What `tune` proposes, tries and finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.nouns import Estimate

Knob = Literal[
    "batch", "accumulation", "workers", "bucket", "strategy", "hook", "precision", "unit", "reshard", "prefetch",
    "static-graph", "bucket-view", "no-sync", "compile",
]  # fmt: skip

CHANGES_MATHEMATICS = frozenset({"batch", "hook", "precision"})
"""Knobs that make another sequence of parameters, beyond rounding: more samples a step, rounded gradients or products."""


@record
class Proposal:
    """A configuration to try. knobs: what it turns; changes: setting -> value, as the user would write them.

    gain: throughput / the baseline's as predicted, with its 80% interval; None: nothing predicts it. exact: the same
    mathematics up to the order of additions. risk: what may be lost. because: rules whose findings ask for it.
    """

    key: str
    knobs: tuple[Knob, ...]
    changes: Mapping[str, str | int | float | bool | None]
    gain: Estimate | None
    exact: bool
    risk: str
    because: tuple[str, ...] = ()

    @property
    def mathematics(self) -> frozenset[str]:
        """Its knobs that change the mathematics; ``batch`` stands for an option of the user's that is none of them."""
        return frozenset() if self.exact else CHANGES_MATHEMATICS.intersection(self.knobs) or frozenset({"batch"})


@record
class KnobTurn:
    """What became of a knob in a job. words: its value and the one before, or why it was not applied."""

    applied: bool
    words: str

    def __str__(self) -> str:
        return f"{'' if self.applied else 'not '}applied: {self.words}"


@record
class HookedKnobs:
    """knobs-HOST-PID.json: what the hook made of the knobs in one process; by name of the knob, or of the class that it
    could not change."""

    pid: int
    found: Mapping[str, KnobTurn]


@record
class Trial:
    """A configuration that was tried. proposal: None: the baseline. sample: ns of a sample in the last rung that it was in;
    gain: its throughput over the baseline's there. rungs: how many it was in. loss, loss_change: mean loss of a sample over
    the same samples, and that over the baseline's - 1; None: not known. lost: why it is out; None: it won, or is the
    baseline.
    applied: what the hook says of each knob that it turned, or could not.
    """

    key: str
    proposal: Proposal | None
    sample: Estimate | None = None
    step_ns: float | None = None
    gain: Estimate | None = None
    rungs: int = 0
    loss: float | None = None
    loss_change: float | None = None
    lost: str | None = None
    applied: Mapping[str, KnobTurn] = field(default_factory=dict)


@record
class Tuned:
    """tune.json: a search. best: key of the trial that won; ``baseline``: none is surely faster. left_out: proposals that
    were not tried -> why. diff: the better configuration against the user's own, line by line.
    """

    of: str
    best: str
    trials: tuple[Trial, ...]
    left_out: Mapping[str, str]
    proposals: tuple[Proposal, ...]
    diff: tuple[str, ...]
