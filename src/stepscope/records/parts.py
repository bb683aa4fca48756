"""What a training step is made of: one declaration, which tree, tables, colours, words and recorders take their parts from.

To add a part is to add a line here, its place in ``stepscope_hook/record.py``, the code of the hook that sees it, and a test
of that.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.dataclass import record
from stepscope.records.nouns import EXPOSED_COMM


@record
class Part:
    """One part of a step. Parts of one parent sum to it, those without a parent to the step.

    key: in trees and JSON. title: in tables and trees; short: over a narrow column; colour: of ``report/vega.py``.
    column: of a diary, that the hook fills; None: computed. what: it is, for the documents. figure: whether its mean is a
    headline number.
    sample: phase of a cell's step, likewise; None: cells have it not.
    inside: where a rank is that stands still in it, and, where cells have it, spends its excess. late: the latter, where it
    is said otherwise or cells have it not.
    """

    key: str
    parent: str | None = None
    title: str
    short: str | None = None
    colour: str | None = None
    column: str | None = None
    what: str | None = None
    sample: str | None = None
    figure: bool = False
    inside: str | None = None
    late: str | None = None


STEP = (
    Part(
        key="data", title="waiting for data", colour="k-wait", column="data_ns", figure=True, sample="data_wait",
        inside="in data loading", late="waiting for data",
        what="In `next()` of the loader, for batches that are trained on. `input-bound` counts what every rank waits: that "
        "of the rank that waits least.",
    ),
    Part(key="computation", title="computation"),
    Part(
        key="before", parent="computation", title="before the forward pass", colour="c4", column="before_ns",
        inside="before the forward pass",
        what="From the end of a step to the first forward pass, less data, events and passes without gradients. "
        "`input-bound` where the training thread neither computes nor lacks a processor in 70% of it; else "
        "`before-forward`.",
    ),
    Part(
        key="inference", parent="computation", title="passes without gradients", short="no grad", colour="k-hidden",
        column="inference_ns",
        what="Outermost forward passes without gradients, of the model in train mode or of a module that the optimizer does "
        "not train, in steps after one that had such passes, too; no evaluation.",
    ),
    Part(
        key="forward", parent="computation", title="forward", short="forw.", colour="k-forward", column="forward_ns",
        figure=True, sample="forward", inside="in the forward pass",
        what="Host time less waits for communication in it; with the loss, all micro-steps.",
    ),
    Part(
        key="backward", parent="computation", title="backward", short="backw.", colour="k-compute", column="backward_ns",
        figure=True, sample="backward_compute", inside="in the backward pass",
        what="Host time less waits for communication in it; all micro-steps.",
    ),
    Part(
        key="optimizer", parent="computation", title="optimizer", short="optim.", colour="k-copies",
        column="optimizer_ns", figure=True, sample="optimizer", inside="in the optimizer",
        what="Host time less waits for communication in it.",
    ),
    Part(
        key="communication", title=EXPOSED_COMM, colour="k-exposed", column="comm_ns", figure=True, sample="exposed_comm",
        what="Blocking waits that the host saw, and in DDP from the last ready gradient to the end of backward. Where the "
        "host sees none (functional collectives), what is left of the step besides CPU time, data and delay. transfer: of "
        "the rank that waits least, step by step; waiting: the rest.",
    ),
    Part(key="transfer", parent="communication", title="exposed transfer", short="transf.", colour="k-exposed"),
    Part(key="waiting", parent="communication", title="waiting for other ranks", colour="k-late"),
    Part(
        key="other", title="other", colour="k-other", sample="other", late="outside forward, backward and optimizer",
    ),
)  # fmt: skip
"""The parts of a step in the order in which they are shown."""

OF_TRACES = (
    Part(key="unknown", title="of unknown kind"), Part(key="copies", title="exposed copies"), Part(key="idle", title="idle"),
)  # fmt: skip
"""Parts of a window on a device, beside computation and communication."""

OUTSIDE: Mapping[str, str] = {
    "evaluation": "in an evaluation",
    "checkpoint": "in a checkpoint",
    "compilation": "in a compilation",
    "window": "in the profiler",
}
"""What is no part of a step -> where a rank is that stands still in it."""


def below(key: str) -> tuple[str, ...]:
    """Keys of the parts that sum to this one."""
    return tuple(part.key for part in STEP if part.parent == key)


COMPUTATION, COMMUNICATION = below("computation"), below("communication")

LEAVES = tuple(part.key for part in STEP if not below(part.key))
"""Parts that have none below them: they sum to the step."""

TITLES: Mapping[str, str] = {part.key: part.title for part in (*STEP, *OF_TRACES)}

RECORDED: Mapping[str, str] = {part.column.removesuffix("_ns"): part.key for part in STEP if part.column is not None}
"""Column of a diary, without its unit -> the part."""

COLOURS: Mapping[str, str] = {part.key: part.colour for part in STEP if part.colour is not None}

SAMPLED: Mapping[str, str] = {part.sample: part.key for part in STEP if part.sample is not None}
"""Phase of a cell's step -> the part."""

LATE: Mapping[str, str] = {
    part.key: words for part in STEP if (words := part.late or (part.inside if part.sample else None)) is not None
}
"""Part, of those that a late rank can spend its excess in -> where that is."""

INSIDE: Mapping[str, str] = {**{part.key: part.inside for part in STEP if part.inside}, **OUTSIDE}
"""Part or event -> where a rank is that stands still in it."""
