"""Which process group a rank waits for, and in which operation: the diary's communication, divided.

A collective is noted where it is issued, by the work or the tensor that it returns, and found again where the training
thread waits for that. Sums of the timed steps are kept, no calls: a small file, written again every ten seconds.
"""

import sys
import time

from stepscope_hook.looks import address, is_compiling, replace
from stepscope_hook.record import FIRST, PROFILED, WINDOW

CALLS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
"""Methods of torch's ProcessGroup that return work to be waited for, and what the operation is called."""

PREFIXES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute")
"""Beginnings of the names of functional collectives."""

MOST_PENDING = 4096
"""So many are kept that were issued and not waited for: what nobody waits for is forgotten."""
MOST_KEYS = 256
"""So many groups x operations are told apart; what comes later is put together."""
OTHERS = (None, "other")
UNKNOWN = {"name": "", "ranks": []}
EVERY_S = 10.0


class Groups:
    """The sums of one process. A failure in here ends them alone."""

    def __init__(self, diary):
        self.diary = diary
        self.on = True
        self.begin_again()

    def begin_again(self):
        """Forget what was waited for: at the start, and in a fork."""
        self.pending = {}
        """id of a work, or address of a tensor -> (name of the group, operation)."""
        self.resolved = None
        """(name of the group, operation) of the functional collective that is being issued."""
        self.step, self.total = {}, {}
        """(name of the group, operation) -> [ns, waits]"""
        self.steps = self.written = 0
        self.due = 0.0
        self.described = {}

    def begin(self):
        """Put the looks in place; called once torch.distributed is there."""
        distributed = sys.modules["torch.distributed"]
        group = getattr(distributed, "ProcessGroup", None)
        for method, name in CALLS.items():
            replace(group, method, lambda original, name=name: issues(self, name, original))

    def functional(self, place):
        """Put the looks at functional collectives in place. place: torch.distributed._functional_collectives."""
        replace(place, "_resolve_group" if hasattr(place, "_resolve_group") else "_resolve_group_name",
                lambda original: resolves(self, original))  # fmt: skip
        replace(place, "_maybe_wrap_tensor", lambda original: wraps(self, original))

    def issued(self, key, what):
        if len(self.pending) >= MOST_PENDING:
            self.pending.clear()
        self.pending[key] = what

    def waited(self, key, args, ns):
        """Count a wait of the training thread. key, args: as of ``looks.wait``."""
        if not self.on or self.diary.on_device:  # there a wait puts the stream in order, and the host goes on
            return
        try:
            what = key(*args[:1])
            self.add(what if isinstance(what, tuple) else self.pending.pop(what, OTHERS), ns)
        except Exception:  # the job goes on whatever happens here
            self.on = False

    def add(self, what, ns):
        kept = self.step.get(what)
        if kept is None:
            if len(self.total) >= MOST_KEYS and what not in self.total:
                what = OTHERS
            kept = self.step.setdefault(what, [0, 0])
        kept[0] += ns
        kept[1] += 1

    def step_ends(self, flags):
        """Add the step to the sums: only steps that the diary times count."""
        if not flags & (FIRST | WINDOW | PROFILED):
            self.steps += 1
            for what, (ns, calls) in self.step.items():
                kept = self.total.get(what)
                if kept is None:
                    self.describe(what[0])
                    kept = self.total[what] = [0, 0]
                kept[0] += ns
                kept[1] += calls
        self.step.clear()

    def look(self):
        """Write when it is time; called by the thread of ``pages.py``."""
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + EVERY_S
            self.write()

    def write(self):
        """Write groups-RRRRR-A.json (records/profile.py)."""
        name, total = self.diary.pages.name, dict(self.total)
        if name is None or not total or self.steps == self.written:
            return
        self.written = self.steps
        groups = {}
        for (group, operation), (ns, calls) in total.items():
            groups.setdefault(group, {})[operation] = [calls, ns]
        document = {
            "rank": self.diary.rank, "steps": self.written,
            "groups": [dict(self.described.get(group) or UNKNOWN, operations=operations)
                       for group, operations in groups.items()],
        }  # fmt: skip
        self.diary.control.write("rank_groups/1", "groups-" + name + ".json", document)

    def describe(self, name):
        """Note what the group is called, and its ranks: once, while it is there."""
        if name is None or name in self.described:
            return
        try:
            distributed = sys.modules["torch.distributed"]
            group = distributed.distributed_c10d._resolve_process_group(name)
            ranks = sorted(distributed.get_process_group_ranks(group))
            self.described[name] = {"name": str(getattr(group, "group_desc", "")), "ranks": ranks}
        except Exception:  # it is gone already, or another torch
            self.described[name] = UNKNOWN


def issues(groups, name, original):
    compiling = is_compiling()

    def issues_work(self, *args, **kwargs):
        work = original(self, *args, **kwargs)
        if not compiling() and groups.on:
            try:
                groups.issued(id(work), (self.group_name, name))
            except Exception:  # the job goes on whatever happens here
                groups.on = False
        return work

    return issues_work


def resolves(groups, original):
    compiling = is_compiling()

    def resolves_group(*args, **kwargs):
        group = original(*args, **kwargs)
        if not compiling() and groups.on:
            groups.resolved = (str(getattr(group, "group_name", group)), operation_of(sys._getframe(1)))
        return group

    return resolves_group


def operation_of(frame):
    """Return the operation of the functional collective among the nearest callers."""
    for _ in range(3):
        if frame is None:
            break
        name = frame.f_code.co_name
        for prefix in PREFIXES:
            if name.startswith(prefix):
                return "permute" if prefix == "permute" else prefix
        frame = frame.f_back
    return "other"


def wraps(groups, original):
    compiling = is_compiling()

    def wraps_tensor(tensor, *args, **kwargs):
        if not compiling() and groups.on and groups.resolved is not None:
            what, groups.resolved = groups.resolved, None
            try:
                groups.issued(address(tensor), what)
            except Exception:  # a tensor without memory
                pass
        return original(tensor, *args, **kwargs)

    return wraps_tensor
