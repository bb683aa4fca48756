"""A window of profiled steps on one rank: torch's profiler from one step boundary to another, then one trace file."""

import gzip
import json
import os
import shutil
import sys
import tempfile
import time

from stepscope_hook.control import say, utc
from stepscope_hook.samples import give_back_memory, resident

GZIP_LEVEL = 1
"""gzip's fastest: the job waits while its trace is written."""

ROOM_BYTES = 4 << 30
"""A temporary folder with less room may be too small: torch can write a trace only once."""

WINDOW_S = 20.0
TRACE_BYTES = 200e6
TRACE_PER_MEMORY = 0.9
"""Bytes of a trace for each byte by which the process grew while it was recorded: 0.87 measured with shapes (2026-11-23,
torch 2.13, CPU)."""

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
        """Where steps are chosen for the job."""
        self.memory = steps.memory
        """The allocator's history: of the whole job, or of this window."""

    def start(self, count):
        """Begin with warm-up steps. False where this rank has to sit the window out; the reason is written."""
        import torch

        self.first = count + self.request["warmup"]
        if self.late > 0:
            return self.report("missed", "this rank was {} steps past the window's first step".format(self.late))
        if torch.autograd._profiler_enabled():
            return self.report("stepped_back", "the job's own profiler runs at step {}".format(count))
        if self.request.get("tool") == "nsys":
            return self.start_nsys(count)
        activities = [torch.profiler.ProfilerActivity.CPU]
        self.report("open", "the rank ended inside the window, or could not write here")
        accelerated = [name for name in ("CUDA", "XPU", "HPU", "MTIA") if self.has(torch, name)]
        activities += [getattr(torch.profiler.ProfilerActivity, name) for name in accelerated]
        collect = self.request["collect"]
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
        if "memory" in collect and self.steps.memory is None and "CUDA" in accelerated:
            from stepscope_hook.memory import Recording

            self.memory = Recording(self.steps)
            self.memory.begin()
        self.guard = Guard(self)
        self.guard.ours = True
        try:
            self.profiler.prepare_trace()
        finally:
            self.guard.ours = False
        if "modules" in collect:
            from stepscope_hook.modules import Scopes

            self.scopes = Scopes(memory=self.memory is not None and self.memory.on)
        if self.request["warmup"] == 0:
            self.record(count)
        return True

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
        known = hasattr(torch.profiler.ProfilerActivity, name)
        return known and module is not None and module.is_available()

    def step(self, count):
        """A step has ended. True when the window is over."""
        now = time.perf_counter_ns()
        if self.profiler is None and not self.nsys:
            return True
        if not self.recording:
            if count >= self.first:
                self.record(count)
            return False
        self.profiled_ns.append(now - self.boundary_ns)
        self.last = count
        self.end_span()
        if self.request.get("duration_s"):
            over = now - self.began_ns >= self.request["duration_s"] * 1e9
        else:
            over = count - self.first >= self.request["steps"]
            if not over and self.bounds is not None:
                over = self.bounds.over(count, (now - self.began_ns) / 1e9)
        if over:
            self.finish()
            return True
        self.begin_span(count)
        return False

    def record(self, count):
        """From here on events are kept."""
        if self.nsys:
            import torch

            torch.cuda.profiler.start()
            self.recording = True
            self.first = self.last = count
            self.began_ns = time.perf_counter_ns()
            self.begin_span(count)
            return
        self.guard.ours = True
        try:
            self.profiler.start_trace()
        finally:
            self.guard.ours = False
        self.recording = True
        self.first = self.last = count
        if self.request.get("auto"):
            self.bounds = Bounds(self, margin=BOUND_MARGIN if self.steps.world > 1 else 0)
        for key, value in self.metadata().items():
            self.profiler.add_metadata_json("stepscope." + key, json.dumps(value))
        self.began_ns = time.perf_counter_ns()
        self.begin_span(count)

    def metadata(self):
        steps = self.steps
        return {
            "rank": steps.rank, "world_size": steps.world, "host": self.control.host,
            "profile": {"window": self.number, "first_step": self.first, "steps": self.request["steps"],
                        "collect": self.request["collect"]},
            "model": steps.facts,
        }  # fmt: skip

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
        self.report("written", None, ended=ended, file=path, size_bytes=size, paused_s=time.perf_counter() - started)

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
        elif (
            self.profiler is not None
        ):  # only prepared: started and stopped, since torch cannot take a preparation back
            self.profiler.start_trace()
            self.profiler.stop_trace()
        self.recording = False

    def end_memory(self, save):
        """A snapshot of the window's end; a history that began with the window ends."""
        memory, self.memory = self.memory, None
        if memory is None or not memory.on:
            return
        problem = memory.save("window-{}".format(self.number), {}) if save else None
        if problem is not None:
            say("rank {}: no memory snapshot: {}".format(self.steps.rank, problem))
        if memory is not self.steps.memory:
            memory.end()

    def export(self):
        """(path, bytes)"""
        folder = os.path.join(self.control.output, "window-{}".format(self.number))
        os.makedirs(folder, exist_ok=True)
        name = "rank-{:05d}.json".format(self.steps.rank)
        final, hidden = os.path.join(folder, name + ".gz"), os.path.join(folder, "." + name + ".gz")
        near = on_this_host(folder)
        plain = os.path.join(near or folder, "." + name)
        packed = plain + ".gz"
        try:
            self.profiler.export_chrome_trace(plain)
            whole(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=GZIP_LEVEL) as target:
                if self.unfinished:
                    for line in source:
                        target.write(line.replace(self.unfinished, b'"unfinished step"'))
                else:
                    shutil.copyfileobj(source, target, 1 << 20)
            if near is not None:
                shutil.copyfile(packed, hidden)
            os.replace(hidden, final)
        finally:
            for path in (plain, plain + ".tmp", packed, hidden):  # torch leaves its own .tmp on a full disk
                if os.path.exists(path):
                    os.remove(path)
            if near is not None:
                shutil.rmtree(near, ignore_errors=True)
        return final, os.path.getsize(final)

    def abandon(self, reason, status="failed"):
        """Give up without a trace."""
        try:
            self.end_span()
            self.stop()
            self.end_memory(save=False)
        except Exception as error:  # what is given up may be in any state
            reason = "{}; {}: {}".format(reason, type(error).__name__, error)
        self.report(status, reason)

    def at_exit(self):
        """The process ends inside the window: keep whole steps of a job that ends well."""
        taken, wanted = len(self.profiled_ns), self.request["steps"]
        reason = "the job ended after {} of {} profiled steps".format(taken, wanted)
        if (self.profiler is None and not self.nsys) or not taken or hasattr(sys, "last_type"):
            self.abandon(reason, status="ended")
            return
        self.end_span()
        self.unfinished = '"ProfilerStep#{}"'.format(self.last).encode()
        self.finish()

    def report(self, status, reason, **more):
        """Always False, for start()."""
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


def on_this_host(folder):
    """A new folder for a trace while it is made, where ``folder`` may be on another host; None: make it there.

    torch writes it in pieces of kilobytes, ten times the bytes that are kept, and the job waits for each.
    """
    try:
        own = tempfile.gettempdir()
        if os.stat(own).st_dev != os.stat(folder).st_dev and shutil.disk_usage(own).free >= ROOM_BYTES:
            return tempfile.mkdtemp(prefix="stepscope-")
    except OSError:
        pass  # no folder for temporary files
    return None


def whole(path):
    """Raise OSError where torch has left no trace, or half of one: it does not say when a disk is full."""
    if not os.path.exists(path):
        raise OSError("torch wrote no file: the disk is full, or the folder cannot be written")
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - 64, 0))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError("torch wrote half a file: the disk is full")


class Guard:
    """While our profiler runs: the job's own profiler may start at any time, and then ours makes room.

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

    def wrapped(self, original):
        guard = self

        def makes_room(profiler, *args, **kwargs):
            if not guard.ours and guard.window is not None:
                window, guard.window = guard.window, None
                window.abandon("the job started its own profiler", status="stepped_back")
                window.profiler = None
            return original(profiler, *args, **kwargs)

        return makes_room

    def close(self):
        self.window = None
        for name, original in self.originals.items():
            setattr(self.target, name, original)


class Bounds:
    """Where a window with ``steps: auto`` ends before its steps are done: rank 0 says so, and every rank ends at that step.

    margin: steps from rank 0's word to the end, so that every rank has read it.
    """

    def __init__(self, window, margin):
        self.window = window
        self.margin = margin
        self.name = "window-{}-stop.json".format(window.number)
        self.memory = resident()[0]
        self.last = None
        """Finished steps at which the window ends; None: as planned."""
        self.reason = None

    def over(self, count, elapsed_s):
        """Whether the window ends with this step."""
        if self.last is None:
            if self.window.steps.rank == 0:
                self.decide(count, elapsed_s)
            elif os.access(self.window.control.path(self.name), os.F_OK):
                found = self.window.control.read(self.name) or {}
                if found.get("restart") == self.window.steps.restart:
                    self.last, self.reason = found["last"], found["reason"]
        return self.last is not None and count >= self.last

    def decide(self, count, elapsed_s):
        grown = resident()[0] - self.memory
        if elapsed_s > WINDOW_S:
            self.reason = "{:.0f} s had passed".format(elapsed_s)
        elif grown * TRACE_PER_MEMORY > TRACE_BYTES:
            self.reason = "the trace had about {:.0f} MB".format(grown * TRACE_PER_MEMORY / 1e6)
        else:
            return
        self.last = count + self.margin
        if self.margin:
            document = {"last": self.last, "reason": self.reason, "restart": self.window.steps.restart}
            self.window.control.write("profile_window_stop/1", self.name, document)
