"""What a job does once, when it starts: modules and libraries are loaded, code is compiled and tuned, a first call is cold.

It is no part of the usual step, and nothing that makes launches cheaper shortens it.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import activity_of
from stepscope.traces.events import NONE, Category, Events, Ints, RankView, once
from stepscope.traces.launches import launches_of
from stepscope.traces.marks import marks_of
from stepscope.traces.passes import loading_marks

COLD_NS = 10_000_000
"""A call that only launches or allocates takes microseconds: one this long loaded something first."""

LEAST_NS = 500_000
"""The same in a window so short that the call takes ``COLD_SHARE`` of it; what is shorter, the system may have held."""

COLD_TIMES = 20
"""As many times as long as the median call of its name."""

BEYOND = 5
"""As many times as long as the longest later call of its name: what is long again does not come once."""

COLD_SHARE = 0.1
"""Of the calls of the capture, or of one name: where no steps are marked, these come first. Of the window: from this share
on a call counts that is shorter than ``COLD_NS``."""

MANY = 10
"""Calls of one name from which on the first ``COLD_SHARE`` of them are its first calls, wherever they stand."""

_LOADS = re.compile(
    r"(cu|cuda|hip|mu|musa)(Module|Library)Load|(cu|cuda|hip)(Library|Module)GetGlobal|(cuda|hip)GraphInstantiate|cuGraphInst"
    r"|zeModule(Create|DynamicLink)|urProgram(Build|Create|Compile|Link)|__hipRegisterFatBinary|aclrtBinaryLoad|aclInit|cuInit"
    r"|(cu|hip)(Device)?PrimaryCtxRetain|cuCtxCreate|cuLink"
)
"""Calls that load code onto the device, make its context, or ready a graph."""

_COMPILES = re.compile(
    r".*\(dynamo_timed\)$|_compile\.|compile_fx|fx_codegen|CachingAutotuner\.(bench|coordinate|precompile|_precompile)"
    r"|GraphLowering|async_compile|PyCodeCache|create_aot_dispatcher|aot_autograd|cudagraphify|select_algorithm"
    r"|.*autotun(e|ing)|.*Autotuner\.(bench|run)|InductorBenchmarker|triton_compile|triton\.compile|JITFunction\.compile"
    r"|cudnnFind|.*warm_?up_(compile|kernels)|deep_gemm.*(jit|compile)",
    re.IGNORECASE,
)
"""Ranges and operators of compilers and of tuning."""

_WAITS = re.compile(r"\w*(Synchronize|Wait|Query)|(cuda|cu|hip)Mem(cpy|set)|aclrtMemcpy|zeEvent|zeFence")
"""Calls that last as long as the device works."""

_ALLOCATES = re.compile(
    r"(cuda|hip|musa)(Ext)?(Malloc|Host(Alloc|Malloc|Register))|(cu|hip)Mem(Create|Map|SetAccess|AddressReserve|Alloc)"
    r"|aclrtMalloc"
)
"""Calls that ask the driver for memory."""


@record
class StartUp:
    """Events of the host that come once (indices, by start), and when any of them runs."""

    calls: Ints
    when: Spans


@once
def start_up(view: RankView) -> StartUp:
    """Find what the host did once: by name, unless most steps hold it; and by length, in the first step."""
    events = view.events
    runtime = events.of(Category.RUNTIME, Category.DRIVER)
    ranges = events.of(Category.CPU_OP, Category.USER_ANNOTATION)
    named = events.named(_LOADS.match, runtime) | events.named(_COMPILES.match, ranges)
    cold, filled = named | _cold_mask(view, runtime), _first_memory(view, runtime)
    chosen = events.by_start((cold if _comes_once(view, np.flatnonzero(cold)) else filled) | filled)
    return StartUp(calls=chosen, when=events.spans(chosen))


def _cold_mask(view: RankView, runtime: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which calls and operators are cold: among the first ones, and far longer than all later ones of their name. Of
    an operator some must come later, and it must not wait for the device, or for data."""
    events, window = view.events, activity_of(view).window
    cold = np.zeros(len(events), dtype=bool)
    operators = (events.category == Category.CPU_OP) & ~loading_marks(events)
    least = max(LEAST_NS, int(COLD_SHARE * (window[1] - window[0]))) if window else COLD_NS
    takes = (runtime & (events.dur_ns >= least)) | ((runtime | operators) & (events.dur_ns >= COLD_NS))
    long = np.flatnonzero(takes & ~events.named(_WAITS.match, takes))
    if not len(long):
        return cold
    first = _first_mask(view, runtime)
    waits = events.spans(events.named(_WAITS.match, runtime))
    for index in long[first[long]].tolist():
        alike = np.flatnonzero((events.name == events.name[index]) & (events.category == events.category[index]))
        later = events.dur_ns[alike[~first[alike]]]
        length = int(events.dur_ns[index])
        if operators[index] and (not len(later) or 2 * _wait_within_ns(waits, events, index) > length):
            continue
        others = events.dur_ns[alike[alike != index]]
        usual = max(float(spans.median(others)), 1.0) if len(others) else 1.0
        cold[index] = length >= COLD_TIMES * usual and length >= BEYOND * int(later.max(initial=0))
    return cold


def _first_memory(view: RankView, runtime: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the calls that ask the driver for memory, where the first of three or more marked steps holds nearly all of
    their time: the allocator's cache fills."""
    events, marks = view.events, marks_of(view)
    calls = events.named(_ALLOCATES.match, runtime)
    if len(marks) < 3 or not calls.any():
        return np.zeros(len(events), dtype=bool)
    first = calls & (events.ts_ns < marks.starts[1])
    spent, later = (int(events.dur_ns[chosen].sum()) for chosen in (first, calls & ~first))
    return first if COLD_TIMES * later <= spent else np.zeros(len(events), dtype=bool)


def _wait_within_ns(waits: Spans, events: Events, index: int) -> int:
    at = np.array([index])
    return int(spans.measure_within(waits, events.ts_ns[at], events.end_ns[at])[0])


def _first_mask(view: RankView, runtime: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return what comes first: all before the second marked step. Without two of them the first ``COLD_SHARE`` of all calls
    and what begins until then, the launch that is a kernel's first, and of ``MANY`` calls of a name the first of them."""
    events, marks = view.events, marks_of(view)
    calls = events.by_start(runtime)
    if len(marks) > 1 or not len(calls):
        before: NDArray[np.bool_] = events.ts_ns < marks.starts[1] if len(marks) > 1 else runtime
        return before
    first: NDArray[np.bool_] = (
        events.ts_ns <= events.ts_ns[calls[min(int(COLD_SHARE * len(calls)) + 1, len(calls) - 1)]]
    )
    launches = launches_of(view)
    work, launch = launches.of[launches.linked], launches.launch[launches.linked]
    order = np.lexsort((events.ts_ns[launch], events.name[work]))
    begins = np.diff(events.name[work[order]], prepend=NONE) != 0
    first[launch[order[begins]]] = True
    of_name = np.bincount(events.name[calls])
    order = np.argsort(events.name[calls], kind="stable")
    place = np.arange(len(calls)) - (np.cumsum(of_name) - of_name)[events.name[calls[order]]]
    count = of_name[events.name[calls[order]]]
    first[calls[order[(count >= MANY) & (place < COLD_SHARE * count)]]] = True
    return first


def _comes_once(view: RankView, chosen: Ints) -> bool:
    """Whether most of the marked steps, of two one, hold little of it: what comes back is no start-up."""
    marks = marks_of(view)
    if len(marks) < 2 or not len(chosen):
        return True
    step = np.searchsorted(marks.starts, view.events.ts_ns[chosen], side="right") - 1
    inside = step >= 0
    spent = np.bincount(step[inside], weights=view.events.dur_ns[chosen][inside], minlength=len(marks))
    usual = np.sort(spent)[(len(marks) - 1) // 2]
    return bool(usual <= spent.max() / COLD_TIMES)


def longest_in(events: Events, calls: Ints, holes: Spans, none: int) -> Ints:
    """The name of the longest of these calls in the middle of each hole; ``none`` where there is none. A call of the runtime
    stands before the operator that it takes half of."""
    names = np.full(len(holes), none, dtype=np.int64)
    host = np.isin(events.category[calls], (int(Category.CPU_OP), int(Category.USER_ANNOTATION)))
    ordered = calls[np.argsort(events.dur_ns[calls] * np.where(host, 1, 2), kind="stable")]
    at = spans.place(holes.starts, holes.ends, events.ts_ns[ordered] + events.dur_ns[ordered] // 2)
    inside = at >= 0
    names[at[inside]] = events.name[ordered[inside]]
    return names
