"""A window of profiled steps on one rank: torch's profiler from one step boundary to another, then one trace file."""

import json
import os
import shutil
import sys
import time

from stepscope_hook.control import say, utc
from stepscope_hook.samples import give_back_memory
from stepscope_hook.trace_file import on_this_host, pack, whole

WINDOW_S = 20.0
TRACE_BYTES = 200e6
NODE_BYTES = 4000
"""Bytes of a trace's text for each node of autograd that the training thread makes: about nine events of 305 bytes without
shapes, 430 with them (2026-11-27, torch 2.13, CPU)."""

SAMPLED_STEPS = 2
"""Steps recorded after those that count, with what costs more: two, so that it shows whether steps are alike."""
SAMPLED_AT_MOST = 3.0
"""A step of the window may be so many times as long as a usual one: beyond it, nothing is recorded that costs more."""
TOLD_BY = 3
"""So many steps of the window tell whether it is."""

BOUND_MARGIN = 2
"""Steps from rank 0's word that the window ends to its end."""


class Window:
    """One window. plans: of the process; request: what was asked for, with the steps that rank 0 chose."""

    def __init__(self, plans, request, late=0):
        self.steps = steps = plans.steps
        self.control = steps.control
        self.request = request
        self.late = late
        self.number = plans.number
        self.profiled_ns = []
        self.profiler = None
        self.sessions = 0
        """Sessions begun so far: the steps that count, those with what costs more."""
        self.nodes = None
        """Nodes of autograd that were made before the window."""
        self.rested = self.sampling = None
        """Number of finished steps when the first session ended, and when the second began."""
        self.kept = None
        """The file of the steps that count, once they are over."""
        self.near = None
        """The folder in which files are made."""
        self.paused_s = 0.0
        self.nsys = False
        """Whether nsys around this process records, which our calls of CUDA's profiler start and stop."""
        self.span = None
        self.guard = None
        self.scopes = None
        self.recording = False
        self.first = self.last = 0
        self.boundary_ns = 0
        self.unfinished = b""
        """The name of the step inside which the job ended, as JSON has it: the trace calls it no step."""
        self.bounds = None
        """The bounds, where steps are chosen for the job."""
        self.memory = steps.memory
        """The allocator's history: of the whole job, or of this window."""

    def start(self, count):
        """Begin with warm-up steps. Returns False where this rank has to sit the window out; the reason is written."""
        import torch

        self.first = count + self.request["warmup"]
        if self.late > 0:
            return self.report("missed", "this rank was {} steps past the window's first step".format(self.late))
        if torch.autograd._profiler_enabled():
            return self.report("stepped_back", "the job's own profiler runs at step {}".format(count))
        if self.request.get("tool") == "nsys":
            return self.start_nsys(count)
        self.report("open", "the rank ended inside the window, or could not write here")
        collect = self.request["collect"]
        if "memory" in collect and self.steps.memory is None and self.has(torch, "CUDA"):
            from stepscope_hook.memory import Recording

            self.memory = Recording(self.steps)
            self.memory.begin()
        self.guard = Guard(self)
        if "modules" in collect:
            from stepscope_hook.modules import Scopes

            self.scopes = Scopes(memory=self.memory is not None and self.memory.on)
        self.prepare(collect)
        if self.request["warmup"] == 0:
            self.record(count)
        return True

    def prepare(self, collect):
        """Get a session of the profiler ready: torch changes what it collects between sessions alone."""
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        accelerated = [name for name in ("CUDA", "XPU", "HPU", "MTIA") if self.has(torch, name)]
        activities += [getattr(torch.profiler.ProfilerActivity, name) for name in accelerated]
        extra = {}
        if "all_threads" in collect:
            extra["experimental_config"] = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        self.profiler = torch.profiler._KinetoProfile(
            activities=activities,
            record_shapes="shapes" in collect,
            profile_memory="memory" in collect,
            with_stack="stacks" in collect,
            with_flops="flops" in collect,
            **extra,
        )
        self.guard.ours = True
        try:
            self.profiler.prepare_trace()
        finally:
            self.guard.ours = False

    def begin(self):
        """Begin the session that is ready; from here on events are kept."""
        self.guard.ours = True
        try:
            self.profiler.start_trace()
        finally:
            self.guard.ours = False
        self.sessions += 1
        self.recording = True
        self.add_metadata()

    def start_nsys(self, count):
        import torch

        if not torch.cuda.is_available():
            return self.report("failed", "nsys records GPU work, and this torch sees no GPU")
        self.nsys = True
        self.report("open", "the rank ended inside the window, or could not write here")
        if self.request["warmup"] == 0:
            self.record(count)
        return True

    @staticmethod
    def has(torch, name):
        module = getattr(torch, name.lower(), None)
        supported = hasattr(torch.profiler.ProfilerActivity, name)
        return supported and module is not None and module.is_available()

    def step(self, count):
        """Count a step that has ended. Returns True when the window is over."""
        now = time.perf_counter_ns()
        if self.profiler is None and not self.nsys:
            return True
        if self.rested is not None and self.sampling is None:
            return not self.sample(count)
        if not self.recording:
            if count >= self.first:
                self.record(count)
            return False
        self.end_span()
        if self.sampling is not None:
            over = count - self.sampling >= SAMPLED_STEPS
        else:
            self.profiled_ns.append(now - self.boundary_ns)
            self.last = count
            over = self.is_over(count, now - self.began_ns)
            if over and self.samples():
                return not self.rest(count)
        if over:
            self.finish()
            return True
        self.begin_span(count)
        return False

    def is_over(self, count, elapsed_ns):
        """Return whether the steps that count are done."""
        if self.request.get("duration_s"):
            return elapsed_ns >= self.request["duration_s"] * 1e9
        over = self.bounds is not None and self.bounds.over(count, elapsed_ns / 1e9)
        return over or count - self.first >= self.request["steps"]

    def samples(self):
        """Return whether a few steps with what costs more follow."""
        return bool(self.request.get("sampled")) and (self.bounds is None or self.bounds.sampled)

    def record(self, count):
        """Begin to record: here the window begins."""
        self.first = self.last = count
        if self.nsys:
            import torch

            torch.cuda.profiler.start()
            self.sessions += 1
            self.recording = True
        else:
            self.begin()
            if self.request.get("auto"):
                self.bounds = Bounds(self, margin=BOUND_MARGIN if self.steps.world > 1 else 0)
        self.nodes = nodes()
        self.began_ns = time.perf_counter_ns()
        self.begin_span(count)

    def size_bytes(self, steps):
        """Return the bytes of a trace of so many steps, by those so far; 0 where torch does not count nodes."""
        made = nodes()
        if made is None or not self.profiled_ns:
            return 0
        return (made - self.nodes) * NODE_BYTES * steps / len(self.profiled_ns)

    def rest(self, count):
        """End the steps that count; a few with what costs more follow. Returns False where they cannot be written.

        A step lies between: an annotation that is open here, as the optimizer's own is, ends before the next session
        begins. In it torch would write its end to where the first session kept its begin, which is gone.
        """
        started = time.perf_counter()
        self.profiler.stop_trace()
        self.recording = False
        self.rested = count
        try:
            self.kept = self.part("")
        except OSError as error:
            self.profiler = None
            self.stop()
            self.clear()
            self.end_memory(save=False)
            self.report("failed", "the trace cannot be written: {}".format(error), ended=utc())
            return False
        self.end_memory(save=True)
        self.prepare((*self.request["collect"], *self.request["sampled"]))
        self.paused_s += time.perf_counter() - started
        return True

    def sample(self, count):
        """Begin the few steps with what costs more. Returns False where the window ends without them."""
        if self.guard.opened:
            self.abandon(None)
            return False
        self.sampling = count
        self.begin()
        self.begin_span(count)
        return True

    def add_metadata(self):
        steps = self.steps
        profile = {"window": self.number, "first_step": self.first, "steps": self.request["steps"],
                   "collect": self.request["collect"]}  # fmt: skip
        if self.sampling is not None:
            profile.update(sampled=self.request["sampled"], sampled_from=self.sampling)
        for key, value in (
            ("rank", steps.rank),
            ("world_size", steps.world),
            ("host", self.control.host),
            ("profile", profile),
            ("model", steps.facts),
        ):
            self.profiler.add_metadata_json("stepscope." + key, json.dumps(value))

    def begin_span(self, count):
        import torch

        name = "ProfilerStep#{}".format(count)
        self.span = torch.cuda.nvtx.range(name) if self.nsys else torch.profiler.record_function(name)
        self.span.__enter__()
        self.boundary_ns = time.perf_counter_ns()

    def end_span(self):
        if self.span is not None:
            span, self.span = self.span, None
            span.__exit__(None, None, None)

    def finish(self):
        """Stop, write the trace, say how it went."""
        ended, started = utc(), time.perf_counter()
        self.stop()
        if self.nsys:  # nsys writes its report
            self.report("written", None, ended=ended, file=None, size_bytes=0, paused_s=time.perf_counter() - started)
            return
        try:
            path, size = self.export()
        except OSError as error:
            self.report("failed", "the trace cannot be written: {}".format(error), ended=ended)
            return
        finally:
            self.end_memory(save=True)
            self.profiler = None
            give_back_memory()
        paused_s = self.paused_s + time.perf_counter() - started
        self.report("written", None, ended=ended, file=path, size_bytes=size, paused_s=paused_s)

    def stop(self):
        if self.scopes is not None:
            self.scopes.close()
        if self.guard is not None:
            self.guard.close()
        if self.nsys:
            if self.recording:
                sys.modules["torch"].cuda.profiler.stop()
        elif self.recording:
            self.profiler.stop_trace()
        elif self.profiler is not None:  # only prepared: started and stopped, since torch cannot take it back
            self.profiler.start_trace()
            self.profiler.stop_trace()
        self.recording = False

    def end_memory(self, save):
        """Save a snapshot of the window's end; a history that began with the window ends."""
        memory, self.memory = self.memory, None
        if memory is None or not memory.on:
            return
        problem = memory.save("window-{}".format(self.number), {}) if save else None
        if problem is not None:
            say("rank {}: no memory snapshot: {}".format(self.steps.rank, problem))
        if memory is not self.steps.memory:
            memory.end()

    def part(self, suffix):
        """Return the file of the session that has ended, as torch writes it."""
        folder = self.folder()
        os.makedirs(folder, exist_ok=True)
        if self.near is None:
            self.near = on_this_host(folder) or folder
        plain = os.path.join(self.near, ".rank-{:05d}.json{}".format(self.steps.rank, suffix))
        self.profiler.export_chrome_trace(plain)
        whole(plain)
        return plain

    def folder(self):
        return os.path.join(self.control.output, "window-{}".format(self.number))

    def export(self, sampled=True):
        """Write the trace; return (path, bytes). sampled: whether the session with what costs more is whole."""
        name = "rank-{:05d}.json.gz".format(self.steps.rank)
        final, hidden = os.path.join(self.folder(), name), os.path.join(self.folder(), "." + name)
        try:
            if self.kept is None:
                parts = [self.part("")]
            else:
                parts = [self.kept, self.part(".sampled")] if sampled else [self.kept]
            packed = os.path.join(self.near, "." + name)
            pack(parts, packed, self.unfinished)
            if packed != hidden:
                shutil.copyfile(packed, hidden)
            os.replace(hidden, final)
        finally:
            self.clear()
        return final, os.path.getsize(final)

    def clear(self):
        """Remove what a file was made of."""
        near, self.near = self.near, None
        folder, name = self.folder(), ".rank-{:05d}.json".format(self.steps.rank)
        for suffix in ("", ".sampled", ".tmp", ".sampled.tmp", ".gz"):  # torch leaves its own .tmp on a full disk
            path = os.path.join(folder, name + suffix)
            if os.path.exists(path):
                os.remove(path)
        if near is not None and near != folder:
            shutil.rmtree(near, ignore_errors=True)

    def abandon(self, reason, status="failed"):
        """Give up; the steps that count are kept, where they are whole."""
        try:
            self.end_span()
            self.stop()
            if self.kept is not None:
                path, size = self.export(sampled=False)
                give_back_memory()
                self.report("written", None, ended=utc(), file=path, size_bytes=size, paused_s=self.paused_s)
                return
            self.end_memory(save=False)
        except Exception as error:  # what is given up may be in any state
            reason = "{}; {}: {}".format(reason, type(error).__name__, error)
        self.report(status, reason)

    def at_exit(self):
        """End with the process inside the window: keep whole steps of a job that ends well."""
        taken, wanted = len(self.profiled_ns), self.request["steps"]
        reason = "the job ended after {} of {} profiled steps".format(taken, wanted)
        whole_steps = self.rested is None and taken and not hasattr(sys, "last_type")
        if not whole_steps or (self.profiler is None and not self.nsys):
            self.abandon(reason, status="ended")
            return
        self.end_span()
        self.unfinished = '"ProfilerStep#{}"'.format(self.last).encode()
        self.finish()

    def report(self, status, reason, **more):
        """Write the report; always returns False, for start()."""
        steps = self.steps
        document = {
            "window": self.number, "rank": steps.rank, "world_size": steps.world, "host": self.control.host,
            "status": status, "reason": reason, "restart": steps.restart,
            "first_step": self.first, "last_step": self.last,
            "bounded": self.request.get("bounded") if self.bounds is None or self.bounds.reason is None
            else "{}: {} of {} steps".format(self.bounds.reason, len(self.profiled_ns), self.request["steps"]),
            "profiled_ns": self.profiled_ns,
        }  # fmt: skip
        document.update(more)
        name = "window-{}-rank-{:05d}.json".format(self.number, steps.rank)
        problem = self.control.write("profile_window_rank/1", name, document)
        if problem is not None:
            say("rank {}: {}; cannot write {}".format(steps.rank, reason or status, problem))
        return False


class Guard:
    """Makes room, while our profiler runs, for the job's own profiler, which may start at any time.

    torch allows one profiler a process and raises where a second one starts; the job would see that error.
    """

    NAMES = ("_prepare_trace", "_start_trace")

    def __init__(self, window):
        import torch.autograd.profiler

        self.window = window
        self.ours = False
        self.target = torch.autograd.profiler.profile
        self.originals = {name: self.target.__dict__[name] for name in self.NAMES if name in self.target.__dict__}
        for name, original in self.originals.items():
            setattr(self.target, name, self.wrapped(original))
        self.opened = set()
        """id() of the annotations that were begun while our profiler ran, and have not ended."""
        self.annotation = torch.profiler.record_function
        self.passages = {name: self.annotation.__dict__[name] for name in ("__enter__", "__exit__")}
        self.annotation.__enter__ = self.entered(self.passages["__enter__"])
        self.annotation.__exit__ = self.left(self.passages["__exit__"])

    def wrapped(self, original):
        guard = self

        def makes_room(profiler, *args, **kwargs):
            if not guard.ours and guard.window is not None:
                window, guard.window = guard.window, None
                window.abandon("the job started its own profiler", status="stepped_back")
                window.profiler = None
            return original(profiler, *args, **kwargs)

        return makes_room

    def entered(self, original):
        guard = self

        def enter(annotation):
            if guard.window is not None and guard.window.recording:
                guard.opened.add(id(annotation))
            return original(annotation)

        return enter

    def left(self, original):
        guard = self

        def leave(annotation, *args):
            guard.opened.discard(id(annotation))
            return original(annotation, *args)

        return leave

    def close(self):
        self.window = None
        for name, original in self.originals.items():
            setattr(self.target, name, original)
        for name, original in self.passages.items():
            setattr(self.annotation, name, original)


class Bounds:
    """Says where a window with ``steps: auto`` ends before its steps are done, and whether steps with what costs more
    follow: rank 0 decides, and every rank does the same. Nothing of the job's own, such as its memory, bounds a window.

    margin: steps from rank 0's word to the end, so that every rank has read it.
    """

    def __init__(self, window, margin):
        self.window = window
        self.margin = margin
        self.name = "window-{}-stop.json".format(window.number)
        self.last = None
        """Number of finished steps at which the window ends; None: as planned."""
        self.reason = None
        self.sampled = True

    def over(self, count, elapsed_s):
        """Whether the window ends with this step."""
        if self.last is None:
            if self.window.steps.rank == 0:
                self.decide(count, elapsed_s)
            elif os.access(self.window.control.path(self.name), os.F_OK):
                decision = self.window.control.read(self.name) or {}
                if decision.get("restart") == self.window.steps.restart:
                    self.last, self.reason, self.sampled = decision["last"], decision["reason"], decision["sampled"]
        return self.last is not None and count >= self.last

    def decide(self, count, elapsed_s):
        """Decide on rank 0 when the window ends."""
        window = self.window
        before = self.last, self.sampled
        size = window.size_bytes(len(window.profiled_ns) + self.margin + 1)
        if elapsed_s > WINDOW_S:
            self.reason = "{:.0f} s had passed".format(elapsed_s)
            self.last = count + self.margin
        elif size > TRACE_BYTES:
            self.reason = "the trace has about {:.0f} MB".format(size / 1e6)
            self.last = count + self.margin
        if len(window.profiled_ns) == TOLD_BY:
            usual = window.steps.diary.times
            self.sampled = not usual or median(window.profiled_ns) <= SAMPLED_AT_MOST * median(usual)
        if self.margin and before != (self.last, self.sampled):
            document = {
                "last": self.last,
                "reason": self.reason,
                "sampled": self.sampled,
                "restart": window.steps.restart,
            }
            window.control.write("profile_window_stop/1", self.name, document)


def nodes():
    """Count the nodes of autograd that this thread has made; None: torch does not count them here."""
    count = getattr(getattr(sys.modules["torch"]._C, "_autograd", None), "_get_sequence_nr", None)
    return None if count is None else count()


def median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
