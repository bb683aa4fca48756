"""A GPU of one MiB, where FAKE_GPU is set: as much of its allocator as the hook touches."""

import os
from types import SimpleNamespace

_begun = []
_history = []
_observers = []
CAPACITY = 1 << 20


class OutOfMemoryError(RuntimeError):
    pass


def is_available():
    return "FAKE_GPU" in os.environ


def _lazy_call(call):
    _begun.append(call)


def _lazy_init():
    while _begun:
        _begun.pop()()


def _record_memory_history(enabled, **settings):  # noqa: ARG001
    if enabled is not None and os.environ.get("FAKE_GPU") == "refuses":
        raise RuntimeError("no history here")
    _history[:] = [] if enabled is None else [[]]


def _snapshot():
    blocks = [
        {"size": each["size"], "requested_size": each["size"], "address": each["addr"], "state": "active_allocated"}
        for each in _history[0]
        if each["action"] == "alloc"
    ]
    size = sum(each["size"] for each in blocks)
    segments = [{"device": 0, "address": 0, "total_size": size, "allocated_size": size, "blocks": blocks}]
    return {"segments": segments if blocks else [], "device_traces": [list(_history[0])]}


memory = SimpleNamespace(_record_memory_history=_record_memory_history, _snapshot=_snapshot)


def allocate(size):
    """A tensor that is never freed."""
    _lazy_init()
    trace = _history[0] if _history else []
    held = sum(each["size"] for each in trace if each["action"] == "alloc")
    if held + size > CAPACITY:
        trace.append({"action": "oom", "size": size, "device_free": CAPACITY - held, "time_us": len(trace)})
        for observe in _observers:
            observe(0, size, CAPACITY, CAPACITY - held)
        raise OutOfMemoryError(f"tried to allocate {size} bytes")
    trace.append({"action": "alloc", "addr": 4096 + held, "size": size, "time_us": len(trace)})


def _mark(word):
    """One line of what CUDA's profiler is told, for the fake nsys around this process."""
    with open(os.environ["FAKE_NSYS"], "a") as file:  # noqa: PTH123
        file.write(word + "\n")


class _Range:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        _mark("push " + self.name)

    def __exit__(self, *exception):
        _mark("pop")


nvtx = SimpleNamespace(range=_Range)
profiler = SimpleNamespace(start=lambda: _mark("start"), stop=lambda: _mark("stop"))
