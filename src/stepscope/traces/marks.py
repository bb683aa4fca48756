"""What marks the steps of a rank: the profiler itself, a range of the job's own that repeats, or its optimizer."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.stats import spans
from stepscope.traces.events import NONE, Category, Events, Ints, RankView, once


@record
class Marks:
    """The steps of one rank in order of time, on the host.

    by: profiler | range | optimizer, what marks them. kinds: step, or prefill and decode of a model that is served; one for
    each, empty where all are steps.
    """

    numbers: Ints
    starts: Ints
    ends: Ints
    by: str = "profiler"
    kinds: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def first(self, count: int) -> Marks:
        """The first ``count`` of them."""
        return replace(
            self,
            numbers=self.numbers[:count],
            starts=self.starts[:count],
            ends=self.ends[:count],
            kinds=self.kinds[:count],
        )


_NO_MARKS = np.empty(0, dtype=np.int64)

PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)$")
"""Torch's own mark; a user annotation, and up to torch 1.9 an operator."""

_OPTIMIZER = "Optimizer.step#"

_RANGE = re.compile(
    r"(?:\[pl\]\[profile\])?(?:(?:(?:run[ _])?train(?:ing|er)?|global|model)[ _.:-]?(?:step|iteration|iter|batch)"
    r"|step|iteration|iter)[ _#:=(-]*(\d+)?\)?$",
    re.IGNORECASE,
)
"""What jobs call the range of a step: ``train_step``, ``iteration 12``, ``Step #3``."""

_SERVED = re.compile(r"execute_(?:context|new|generation|model|\d)|step\[|forward_(?:extend|decode)", re.IGNORECASE)
"""How vLLM and SGLang begin the range of one pass of the model."""

_TOKENS = re.compile(r"(?:context|new)_(\d+)")
_PREFILL, _DECODE = re.compile(r"prefill|extend|mixed", re.IGNORECASE), re.compile(r"decode|generation", re.IGNORECASE)


def _served_as(name: str) -> str:
    """What a pass of a served model does: prefill where it takes in any prompt."""
    if tokens := _TOKENS.search(name):
        return "prefill" if int(tokens[1]) else "decode"
    return "prefill" if _PREFILL.search(name) else "decode" if _DECODE.search(name) else "step"


def step_marks(events: Events) -> Marks:
    """The marks of the best kind that there is: the profiler's; ranges that repeat, where there are no more of them than
    updates of the parameters; the spans from one end of an optimizer's step to the next."""
    if len(marked := _profiler_marks(events)):
        return marked
    updates = _update_spans(events)
    ranges = _by_range(events, updates)
    if ranges is not None and (len(updates) < 2 or len(ranges) <= len(updates) + 1):
        return ranges
    return _marks_between(updates.ends, "optimizer")


@once
def marks_of(view: RankView) -> Marks:
    """Every step that is marked, one of which only a part was recorded among them."""
    return step_marks(view.events)


def _profiler_marks(events: Events) -> Marks:
    """Return the steps that torch.profiler marks, by their own numbers."""
    numbers = np.full(len(events.names), NONE, dtype=np.int64)
    for code, name in enumerate(events.names):
        if name.startswith("ProfilerStep") and (match := PROFILER_STEP.match(name)):
            numbers[code] = int(match[1])
    named = numbers[events.name] != NONE
    marks = events.by_start(named & (events.category == Category.USER_ANNOTATION))
    return Marks(numbers=numbers[events.name[marks]], starts=events.ts_ns[marks], ends=events.end_ns[marks])


def _update_spans(events: Events) -> spans.Spans:
    """When the parameters are updated: steps of several optimizers without a backward pass between them are one."""
    called = events.spans(events.of(Category.USER_ANNOTATION, Category.CPU_OP) & events.begins(_OPTIMIZER))
    if len(called) < 2:
        return called
    backward = np.sort(events.ts_ns[(events.forward_thread > 0) | events.begins("autograd::engine")])
    if not len(backward):
        return called
    between = np.searchsorted(backward, called.starts[1:]) > np.searchsorted(backward, called.ends[:-1])
    return spans.Spans(
        called.starts[np.append(True, between)],
        called.ends[np.append(between, True)],
    )


def _by_range(events: Events, updates: spans.Spans) -> Marks | None:
    """Return the ranges of one name, numbers aside, that repeat and last longest together; None where there are none.

    Ranges that hold no part of a backward pass, in a trace that has one, are around the update alone (``step``): each ends a
    step, as the update does.
    """
    groups: dict[str, list[int]] = {}
    for code, name in enumerate(events.names):
        if _SERVED.match(name):
            groups.setdefault(_SERVED.pattern, []).append(code)
        elif match := _RANGE.match(name):
            groups.setdefault(name[: match.start(1)].rstrip(" _#:=(-") if match[1] else name, []).append(code)
    annotated = events.category == Category.USER_ANNOTATION
    best, longest = None, 0
    for label, codes in groups.items():
        chosen = events.by_start(annotated & np.isin(events.name, codes))
        outer = _outermost_events(events, chosen)
        length = int(events.dur_ns[outer].sum())
        if len(outer) > 1 and length > longest:
            best, longest = (label, outer), length
    if best is None:
        return None
    label, outer = best
    starts, ends = events.ts_ns[outer], events.end_ns[outer]
    served = label == _SERVED.pattern
    backward = np.sort(events.ts_ns[events.forward_thread > 0])
    if not served and len(backward) and (np.searchsorted(backward, ends) == np.searchsorted(backward, starts)).all():
        return None if len(updates) > 1 else _marks_between(ends, "range")
    names = [events.name_of(int(i)) for i in outer]
    matches = [_RANGE.match(name) for name in names]
    own = [int(match[1]) if match and match[1] else NONE for match in matches]
    numbers = np.array(own, dtype=np.int64)
    if (np.diff(numbers) <= 0).any() or numbers[0] == NONE:
        numbers = np.arange(len(names), dtype=np.int64)
    kinds = tuple(map(_served_as, names)) if served else ()
    return Marks(numbers=numbers, starts=starts, ends=ends, by="range", kinds=kinds)


def _outermost_events(events: Events, chosen: Ints) -> Ints:
    """Those that do not begin inside an earlier one; by start."""
    if len(chosen) < 2:
        return chosen
    reach = np.maximum.accumulate(events.end_ns[chosen])
    outer: Ints = chosen[np.append(True, events.ts_ns[chosen][1:] >= reach[:-1])]
    return outer


def _marks_between(ends: Ints, by: str) -> Marks:
    """Steps from each of these times to the next; what lies before the first one is a part of a step."""
    count = max(len(ends) - 1, 0)
    return Marks(
        numbers=np.arange(count, dtype=np.int64), starts=ends[:count], ends=ends[1:] if count else _NO_MARKS, by=by
    )


def with_steps_marked(events: Events) -> Events:
    """Make the profiler's marks annotations, which torch 1.8 and 1.9 write among the operators."""
    operators: NDArray[np.bool_] = (events.category == Category.CPU_OP) & events.begins("ProfilerStep#")
    if not operators.any():
        return events
    category = events.category.copy()
    category[operators] = Category.USER_ANNOTATION
    return replace(events, category=category)


def whole_window(view: RankView, low: int, high: int) -> tuple[int, int]:
    """Extend [low, high), in which the device was busy, to the marks of the first and the last step with work in it.

    A last mark that launches nothing is no step (the profiler opens one behind the last call of its ``step``), and of a file
    that stops early nothing tells where its work ended.
    """
    events, marks = view.events, marks_of(view)
    if any(note.kind == "truncated" for note in view.trace.notes):
        return low, high
    working = np.flatnonzero((marks.starts < high) & (marks.ends > low))
    if not len(working):
        return low, high
    first, last = int(working[0]), int(working[-1])
    while (
        last > first and marks.ends[last] > high and not _launches_within(events, marks.starts[last], marks.ends[last])
    ):
        last -= 1
    return min(low, int(marks.starts[first])), max(high, int(marks.ends[first : last + 1].max()))


def _launches_within(events: Events, start: int, end: int) -> bool:
    """Whether the host launched any of the device's work in [start, end); True where launches were not recorded."""
    host = events.of(Category.RUNTIME, Category.DRIVER) & (events.correlation != NONE)
    if not host.any():
        return True
    called = np.sort(events.correlation[host & (events.ts_ns >= start) & (events.ts_ns < end)])
    device = events.correlation[events.is_device]
    at = np.minimum(np.searchsorted(called, device), len(called) - 1)
    return len(called) > 0 and bool((called[at] == device).any())
