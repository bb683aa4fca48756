"""When each planned collective is ready and needed in a step whose computation was measured."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import DataError, UsageError
from stepscope.core.suggest import unknown
from stepscope.records.backward import BackwardProfile
from stepscope.records.plan import CommOp

PHASES = ("forward", "backward", "after_backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Progress since the start of the step, ns: time of computation alone. blocking: computation waits from ready on."""

    ready_ns: float
    needed_ns: float
    blocking: bool


def timings(profile: BackwardProfile, plan: Sequence[CommOp]) -> tuple[Timing, ...]:
    """One for each of ``plan``, in launch order.

    Gradients: ready as measured, needed at the end of the backward pass. Gathers of the forward pass: needed at even steps
    of it, as units are alike, and ready one unit ahead; of the backward pass: needed where the gradients reduced before
    are ready. ``after_backward`` follows the backward pass, ``optimizer`` the optimizer. Where the plan says that a
    collective blocks, it is called where it is needed. Raises DataError for a gradient that the profile does not know,
    UsageError for an unknown phase.
    """
    begin = float(profile.before_ns)
    end, stepped = begin + profile.backward_ns, begin + profile.backward_ns + profile.optimizer_ns
    ready = {r.name: begin + min(r.ready_ns, profile.backward_ns) for r in profile.ready}
    ready |= dict.fromkeys(profile.unused, end)
    computed = _computed(plan, ready, end)
    in_forward = sum(op.phase == "forward" for op in plan)
    found: list[Timing] = []
    gathered, reduced, before = begin - profile.forward_ns, begin, 0
    for op, done in zip(plan, computed, strict=True):
        if op.phase == "forward":
            needed = begin - profile.forward_ns * (1 - before / in_forward)
            at, before = gathered, before + 1
            gathered = needed
        elif op.phase == "backward" and op.op == "all_gather":
            at, needed = gathered, reduced
            gathered = needed
        elif op.phase == "backward":
            at, needed = done, end
            reduced = max(reduced, done)
        else:
            at = needed = stepped if op.phase == "optimizer" else end
        blocking = op.blocking or op.phase == "after_backward"
        if blocking:
            at = needed = needed if op.op == "all_gather" or op.phase != "backward" else at
        found.append(Timing(ready_ns=at, needed_ns=needed, blocking=blocking))
    return tuple(found)


def _computed(plan: Sequence[CommOp], ready: dict[str, float], end: float) -> list[float]:
    """When all that each carries is computed. One without gradients of its own (an empty part of a bucket) goes with the
    one that follows."""
    found = [end] * len(plan)
    following = end
    for place in reversed(range(len(plan))):
        op = plan[place]
        if op.phase not in PHASES:
            raise UsageError(unknown("phase of a collective", op.phase, PHASES))
        missing = [name for name in op.members if name not in ready]
        if missing and op.phase in ("backward", "after_backward") and op.op != "all_gather":
            raise DataError(
                f"the backward profile does not know the gradient of {missing[0]!r}",
                why="it was recorded with another model than the planned one",
            )
        following = found[place] = max((ready[name] for name in op.members if name in ready), default=following)
    return found
