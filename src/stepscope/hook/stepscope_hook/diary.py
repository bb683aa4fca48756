"""The step diary of one process: which part of a step the training thread is in, and since when.

One clock runs from part to part, so the parts of a step add up to the whole of it. records/profile.py of stepscope says what
the numbers are. ``looks.py`` calls the methods here from inside torch's; none of them raises into the job, and all but
those that say so are called on the training thread alone.
"""

import os
import sys
import threading
import time
from collections import deque
from threading import get_ident
from time import perf_counter_ns, thread_time_ns

from stepscope_hook.control import identity, say
from stepscope_hook.outside import SHORT_NS, Outside, guarded
from stepscope_hook.record import (
    BACKWARD,
    BEFORE,
    BEFORE_CPU,
    COLUMNS,
    COMM,
    CPU,
    DATA,
    DEVICE_CLOCK,
    FIRST,
    FORWARD,
    INFERENCE,
    NAMES,
    NAN,
    NO_DELAY,
    OPTIMIZER,
    OTHER,
    OUTSIDE,
    OWN_PROFILER,
    PARTS,
    PROFILED,
    RECORD,
    WHOLE,
    WINDOW,
    RunQueue,
    cores,
    process_age_ns,
)
from stepscope_hook.sources import Sources

KEPT = 64
"""Step times kept in memory, for the choice of a window."""


class Diary(Outside):
    """The recorder. pages: where its records go; on: false for good once anything in it failed."""

    def __init__(self, control, pages):
        self.control = control
        self.pages = pages
        self.on = True
        self.why_off = None
        self.groups = None
        """Communication by process group (groups.py), where there is torch.distributed."""
        self.box = None
        """What outlives this process (black_box.py), where a command reads it."""
        self.begin_again()

    def begin_again(self):
        """Forget what was seen: at the start, and in a fork of a process that has made no step."""
        self.thread = threading.main_thread().ident
        self.queue = None
        self.rank = self.world = self.restart = 0
        self.number = 0
        """Number of finished steps."""
        self.phase = None
        """Part of the step that the training thread is in; None before any sign of a step."""
        self.since = 0
        self.acc = [0] * (OTHER + 1)
        self.not_ours = [0, 0]
        """CPU time and delay of this step inside data and outside."""
        self.data_used = [0, 0]
        """ns of all waits for training data, and the CPU time of this thread in them."""
        self.start = (0, 0, 0)
        self.start_unix_ns = self.start_ns = 0
        self.set_up_ns = None
        self.flags = FIRST
        self.fetched = None
        """The state before data that nobody has used yet: a forward pass tells whether it is training data."""
        self.inner_ns = 0
        self.resume = BEFORE
        self.short_data = False
        self.depth = 0
        self.backwards = 0
        """Depth of calls of backward."""
        self.evaluation = None
        self.sources = Sources()
        self.inferred = [0, -2]
        """Number of steps that were finished as a pass without gradients was last seen: of other modules, and of those that
        train."""
        self.inferring = BEFORE
        """Part that the step was in as such a pass began."""
        self.trains_in_eval_mode = False
        self.last_eval_had_grad = False
        self.saving = self.compiling = 0
        """Number of open calls that save a checkpoint; depth of compilations."""
        self.saved = None
        self.optimizers = []
        """id() of the optimizers whose step() runs."""
        self.forward_end = 0
        self.seen_forward = False
        """Whether a forward pass was seen since the last backward pass."""
        self.passes = False
        """Whether there was a pass in this step."""
        self.seen_before = False
        """Whether this step's forward pass was seen, and CPU time until then."""
        self.ever_data = self.ever_forward = self.ever_backward = False
        self.ever_waited = False
        self.since_optimizer = self.micro_steps = 0
        self.times = deque(maxlen=KEPT)
        """ns of finished steps by themselves, without what is outside."""
        self.first_ns = 0
        """ns of the first step, without data."""
        self.profiled = False
        self.pending = None
        self.own_ns = 0
        """ns of finished steps without waiting for other ranks, as far as the host sees it."""
        self.on_device = False
        """Whether the model is on a GPU, whose waiting the host does not see."""
        self.tail = None
        """The last gradient of DDP (gradients.py), where there is one."""
        self.raised = None
        if self.groups is not None:
            self.groups.begin_again()

    # -- looks --------------------------------------------------------------------------------------------------------

    def look(self):
        """Return (now, CPU time of the thread, its delay)."""
        queue = self.queue
        return perf_counter_ns(), thread_time_ns(), 0 if queue.file is None else queue.delay_ns()

    def leave(self, look):
        """Leave data or outside: what the thread used there does not count for the step."""
        now, cpu, delay = self.look()
        self.not_ours[0] += cpu - look[1]
        self.not_ours[1] += delay - look[2]
        return now

    def in_training_thread(self):
        """Whether this is the training thread."""
        return self.on and get_ident() == self.thread

    @guarded
    def begin(self):
        """Begin at the first sign of a step."""
        self.queue = RunQueue()
        self.start = self.look()
        self.start_ns = self.since = self.start[0]
        self.start_unix_ns = time.time_ns()
        self.set_up_ns = process_age_ns()
        self.phase = BEFORE
        self.pages.watch()

    def unix_s(self):
        """Return the wall clock at the first sign of a step, counted on by a clock that cannot be set, as the steps are."""
        return (self.start_unix_ns + perf_counter_ns() - self.start_ns) / 1e9

    def count(self, now):
        """Count the time up to now for the current part."""
        self.acc[self.phase] += now - self.since
        self.since = now

    def turn(self, phase):
        """Turn from the current part to another."""
        now = perf_counter_ns()
        self.acc[self.phase] += now - self.since
        self.since = now
        self.phase = phase

    def look_at_data(self):
        """Return a look; one of the clock alone where the last wait for data was so short that it counts as CPU time."""
        return (perf_counter_ns(), None, None) if self.short_data else self.look()

    # -- data ---------------------------------------------------------------------------------------------------------

    @guarded
    def data_begins(self):
        """Return the look at its begin, or None where it is inside something else."""
        if self.phase is None:
            self.begin()
        if self.phase in (DATA, COMM) or self.backwards or self.saving:
            return None
        look = self.look() if self.evaluation is not None else self.look_at_data()
        if self.evaluation is not None:
            if self.evaluation.fetched is None:
                self.evaluation.fetched = [look, 0, 0, 0]
            return look
        self.count(look[0])
        if self.fetched is None:
            self.fetched = (look, list(self.acc), tuple(self.not_ours), self.phase)
            self.inner_ns = 0
        self.resume, self.phase = self.phase, DATA
        return look

    @guarded
    def data_ends(self, look, exhausted, place=None):
        """Count a wait for data that ends. place: the loader, or its iterator."""
        if look is None:
            return
        self.ever_data = True
        self.sources.came(place, exhausted, look[0], perf_counter_ns() - look[0], outside=self.evaluation is not None)
        evaluation = self.evaluation
        if evaluation is not None:
            if exhausted:
                evaluation.fetched = None
            elif evaluation.fetched is not None:
                now, cpu, delay = self.look()
                for at, used in enumerate((now - look[0], cpu - look[1], delay - look[2])):
                    evaluation.fetched[at + 1] += used
            return
        if look[1] is None:
            now = perf_counter_ns()
            used = min(now - look[0], SHORT_NS)
            self.not_ours[0] += used
        else:
            used = -self.not_ours[0]
            now = self.leave(look)
            used += self.not_ours[0]
        self.data_used[0] += now - look[0]
        self.data_used[1] += used
        self.short_data = now - look[0] < SHORT_NS
        self.acc[DATA] += now - self.since
        self.since = now
        self.phase = self.resume
        if exhausted:
            self.fetched = None

    # -- passes -------------------------------------------------------------------------------------------------------

    @guarded
    def forward_begins(self, module, grad):
        """Note that an outermost forward pass begins. module: None where it does not train. grad: whether gradients are
        recorded."""
        if self.phase is None:
            self.begin()
        if self.backwards or self.phase in (DATA, COMM) or self.saving:
            return
        self.ever_forward = self.ever_forward or module is not None
        trains = module is not None and (module.training or self.trains_in_eval_mode)
        if not grad and (module is None or trains):
            self.last_eval_had_grad = False
            self.without_gradients(module and id(module))
            return
        if not trains:
            self.last_eval_had_grad = grad
            self.evaluate("evaluation", id(module))
            return
        if self.evaluation is not None:
            self.end_evaluation()
        self.trains()
        if self.phase != FORWARD:
            if not self.passes and self.start[1] is not None:
                self.acc[BEFORE_CPU] = max(thread_time_ns() - self.start[1] - self.not_ours[0], 0)
                self.seen_before = True
            if self.phase == OPTIMIZER and not self.passes:
                self.phase = BEFORE  # a closure: the step of the optimizer has not begun
            self.turn(FORWARD)
        self.seen_forward = self.passes = True

    @guarded
    def forward_ends(self):
        if self.phase == INFERENCE:
            self.turn(self.inferring)
        elif self.evaluation is not None:
            self.evaluation.end = self.look()
            self.evaluation.forwards += 1
        else:
            self.forward_end = perf_counter_ns()

    @guarded
    def backward_begins(self):
        """Return whether this call is the outermost."""
        if self.phase is None:
            self.begin()
        if self.backwards or self.phase == DATA or self.saving:
            self.backwards += self.backwards > 0
            return False
        evaluation = self.evaluation
        if evaluation is not None:
            if self.last_eval_had_grad:
                self.trains_in_eval_mode = True
            self.end_evaluation()
        self.trains()
        if not self.seen_forward and self.phase in (BEFORE, OTHER, OPTIMIZER):
            self.phase = FORWARD
            self.acc[FORWARD] += self.acc[INFERENCE]  # it may be of a pass that is computed again with gradients
            self.acc[INFERENCE] = 0
        self.turn(BACKWARD)
        self.passes = self.ever_backward = True
        self.backwards = 1
        if self.tail is not None:
            self.tail.backward_begins()
        return True

    @guarded
    def backward_ends(self, outermost):
        if not outermost:
            self.backwards -= self.backwards > 1
            return
        if self.tail is not None:
            self.tail.backward_ends()
        self.backwards = 0
        self.since_optimizer += 1
        self.turn(OPTIMIZER if self.optimizers else OTHER)
        self.seen_forward = False
        self.forward_end = 0

    @guarded
    def optimizer_begins(self, optimizer):
        if self.phase is None:
            self.begin()
        if self.phase in (DATA, COMM) or self.saving:
            return
        if id(optimizer) in self.optimizers:  # its last step raised
            del self.optimizers[self.optimizers.index(id(optimizer)) :]
        self.optimizers.append(id(optimizer))
        if len(self.optimizers) > 1:
            return
        if self.evaluation is not None:
            self.end_evaluation()
        if self.phase == FORWARD and self.forward_end > self.since:  # no backward pass was seen after it
            self.acc[FORWARD] += self.forward_end - self.since
            self.since, self.phase = self.forward_end, OTHER
        self.turn(OPTIMIZER)

    @guarded
    def optimizer_ends(self, optimizer):
        if id(optimizer) not in self.optimizers:
            return
        del self.optimizers[self.optimizers.index(id(optimizer)) :]
        self.micro_steps = max(self.micro_steps, self.since_optimizer)
        self.since_optimizer = 0
        if not self.optimizers:
            if self.evaluation is not None:  # of a closure
                self.end_evaluation()
            self.turn(OTHER if self.passes else BEFORE)

    # -- waiting and saving -------------------------------------------------------------------------------------------

    def waits(self):
        """Return the part that a blocking wait begins in, or None where it is counted already."""
        phase = self.phase
        if phase is None or phase == COMM or phase == DATA or phase == OUTSIDE:
            return None
        self.ever_waited = True
        self.turn(COMM)
        return phase

    def waited(self, phase):
        if phase is not None and self.phase == COMM:
            self.turn(phase)

    @guarded
    def own_profiler(self):
        """Note that the job's own profiler is on as a step ends."""
        self.flags |= OWN_PROFILER
        if not self.profiled:
            self.profiled = True
            self.event("own_profiler", self.start[0], 0, inside=True)

    # -- steps --------------------------------------------------------------------------------------------------------

    @guarded
    def boundary(self):
        """End the step, as the counted optimizer has ended its own; return the look at it."""
        ident = get_ident()
        if ident != self.thread:
            self.move(ident)
        if self.phase is None:
            self.begin()
        look = self.look()
        self.count(look[0])
        if self.pages.name is None:
            self.open()
        self.write(look)
        self.number += 1
        if self.box is not None:
            self.box.step(self.number)
        if self.tail is not None:
            self.tail.step_ends()
        if self.groups is not None:
            self.groups.step_ends(self.flags)
        self.acc[:] = (0,) * (OTHER + 1)
        self.sources.step_ends()
        self.not_ours[0] = self.not_ours[1] = 0
        self.start = look
        self.flags = 0
        self.micro_steps = 0
        self.fetched = None
        self.seen_forward = self.passes = self.seen_before = False
        self.forward_end = 0
        self.phase = OPTIMIZER if self.optimizers else BEFORE
        return look

    def write(self, look):
        """Write the record of the step that ends."""
        start, acc = self.start, self.acc
        whole = look[0] - start[0]
        cpu = look[1] - start[1] - self.not_ours[0] if start[1] is not None else NAN
        part = NO_DELAY
        if self.queue.file is not None and start[2] is not None and whole > 0:
            late = look[2] - start[2] - self.not_ours[1]
            part = 0 if late <= 0 else round(min(late / whole, 1.0) * (NO_DELAY - 1))
        if self.ever_waited and not self.on_device:
            self.own_ns += whole - acc[OUTSIDE] - acc[COMM]
        elif cpu == cpu:
            self.own_ns += max(cpu, 0) + acc[DATA]
        fields = [*acc[:OTHER], part, min(self.micro_steps, 255), self.flags]
        fields[WHOLE], fields[COMM], fields[CPU] = whole, self.comm(), max(cpu, 0)
        if not self.ever_data:
            fields[DATA] = NAN
        if not self.ever_backward:
            fields[BACKWARD] = NAN
        if not self.seen_before:
            fields[BEFORE_CPU] = NAN
        if not self.ever_forward:
            if not self.ever_backward:
                fields[FORWARD] = NAN
            if not acc[INFERENCE]:
                fields[INFERENCE] = NAN
        if not self.flags & (FIRST | WINDOW | PROFILED):
            self.times.append(whole - acc[OUTSIDE])
        elif not self.number:
            self.first_ns = whole - acc[DATA]
        if self.tail is not None and self.tail.on_device:
            self.release()
            self.pending = (fields, self.tail.take(), start[0] - self.start_ns)
        else:
            self.pages.step(RECORD.pack(*fields), self.number + 1, start[0] - self.start_ns)

    def release(self):
        """Write the record that waited for its events on the device."""
        if self.pending is None:
            return
        fields, pairs, at_ns = self.pending
        self.pending = None
        ns = self.tail.nanoseconds(pairs)
        if ns == ns:
            fields[COMM] = min(ns, fields[WHOLE])
            fields[-1] |= DEVICE_CLOCK
            seen = [part for part in (*PARTS.values(), OUTSIDE) if part != OTHER and fields[part] == fields[part]]
            over = sum(fields[part] for part in seen) - fields[WHOLE]
            for part in (BACKWARD, OPTIMIZER, FORWARD, INFERENCE, BEFORE):  # the host waited there for the device
                if part not in seen:
                    continue
                taken = min(max(over, 0), fields[part])
                fields[part] -= taken
                over -= taken
        self.pages.step(RECORD.pack(*fields), self.number, at_ns)

    def comm(self):
        """Return the communication of the step that ends; NaN where ranks communicate, or may, and nothing of it shows on
        the host."""
        if self.world == 1:
            return 0.0
        return self.acc[COMM] if self.ever_waited and not self.on_device else NAN

    def move(self, ident):
        """Move to another thread, on which the counted optimizer steps."""
        self.thread = ident
        if self.queue is not None:
            self.queue.close()
            self.queue = RunQueue()
            self.start = (self.start[0], None, None)
            self.count(perf_counter_ns())

    def open(self):
        """Open the files as the first step has ended: the process group is there, so the rank is known."""
        self.rank, self.world = identity()
        torch = sys.modules["torch"]
        header = {
            "rank": self.rank, "world_size": self.world, "host": self.control.host, "pid": os.getpid(),
            "restart": self.restart, "start_unix_ns": self.start_unix_ns, "set_up_ns": self.set_up_ns,
            "record": RECORD.format, "columns": COLUMNS,
            "threads": torch.get_num_threads() if hasattr(torch, "get_num_threads") else None, "cores": cores(),
        }  # fmt: skip
        self.pages.open(self.rank, header)

    @guarded
    def happened(self, kind, began_ns, ns, what):
        """Record something inside a step that torch's or Python's own callbacks saw."""
        self.event(kind, began_ns, ns, what, inside=True)

    def event(self, kind, began_ns, ns, what="", count=1, inside=False):
        document = {"kind": kind, "step": self.number + 1, "at_ns": max(began_ns - self.start_ns, 0), "ns": max(ns, 0)}
        if inside:
            document["inside"] = True
        if what:
            document["what"] = what
        if count != 1:
            document["count"] = count
        self.pages.event(document)

    def off(self, reason):
        """End the diary; the job goes on."""
        if not self.on:
            return
        self.on = False
        self.why_off = "no step diary: " + reason[:300]
        if self.pages.name is None:
            say("no step diary: " + reason)
        else:
            self.note(reason)

    def note(self, reason):
        """Note that a look is off, or all of them."""
        at_ns = perf_counter_ns() - self.start_ns if self.start_ns else 0
        self.pages.event({"kind": "off", "step": self.number + 1, "at_ns": at_ns, "ns": 0, "what": reason[:300]})

    def raises(self, error, phase):
        """Remember that an exception leaves the part ``phase``: the innermost counts, in case that nobody catches it."""
        if self.raised is None or self.raised[0] != id(error):
            self.raised = (id(error), phase)

    def phase_of(self, error):
        """Return where the step was as ``error`` was raised; without one, where it is."""
        if error is not None and self.raised is not None and self.raised[0] == id(error):
            return self.raised[1]
        if self.saving:
            return "checkpoint"
        if self.evaluation is not None:
            return self.evaluation.kind
        if self.compiling and error is None:
            return "compilation"
        return None if self.phase is None else NAMES[self.phase]

    def look_at_part(self):
        """Leave word of the part that the training thread is in; called by the thread of ``pages.py``."""
        if self.box is not None:
            self.box.look(self.phase_of(None) or "")

    @guarded
    def close(self):
        """End with the process: an evaluation after the last step is told, too."""
        self.release()
        if self.evaluation is not None and get_ident() == self.thread:
            evaluation, self.evaluation = self.evaluation, None
            self.phase = evaluation.resume
            self.tell(evaluation, evaluation.end[0])
