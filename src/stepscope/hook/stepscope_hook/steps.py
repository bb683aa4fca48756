"""Steps of the job, counted at the end of each step() of one optimizer: there the diary's records end, and windows begin."""

import atexit
import os
import sys
import time
import weakref
from functools import partial

from stepscope_hook.black_box import BlackBox
from stepscope_hook.control import identity, say
from stepscope_hook.diary import Diary
from stepscope_hook.ends import Stacks, restart, tell_uncaught, write_end
from stepscope_hook.facts import Objects, model_facts, parameters_of
from stepscope_hook.gradients import LastGradient, LastGradientOnDevice
from stepscope_hook.groups import Groups
from stepscope_hook.hardware import Hardware
from stepscope_hook.knobs import turn
from stepscope_hook.looks import Looks
from stepscope_hook.modules import Forwards, Roots
from stepscope_hook.own_loop import Mark
from stepscope_hook.pages import Pages
from stepscope_hook.plans import Plans
from stepscope_hook.record import PROFILED, WINDOW
from stepscope_hook.samples import Samples, give_back_memory

PAUSE_NS = 1000000
"""A window's work between two steps is an event of its own from so many ns on."""


current = None
"""The Steps of this process, once they are watched."""


def watch(control):
    """Register with torch. control: files and options of this process."""
    global current
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    box = (
        BlackBox() if control.options.get("diary", True) and "first" in control.options else None
    )  # a command reads it
    control.write(
        "profile_process/1",
        "process-{}-{}.json".format(control.host, control.pid),
        {"pid": control.pid, "host": control.host, "argv": list(getattr(sys, "orig_argv", sys.argv)),
         "rank": rank, "world_size": world, "python": sys.version.split()[0], "box": box and box.number},
    )  # fmt: skip
    turn(control)
    current = steps = Steps(control)
    steps.diary.box = box
    if control.options.get("memory"):
        from stepscope_hook.memory import Recording

        steps.memory = Recording(steps)
        steps.memory.when_cuda_begins()
    if (control.options.get("first") or {}).get("duration_s"):
        Forwards(steps).begin()
    else:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(steps)
    if control.options.get("diary", True):
        steps.keep_diary()
    else:
        steps.diary.on = False
    tell_uncaught()
    atexit.register(steps.at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=steps.forked)


class Steps:
    """The post hook of every optimizer of this process."""

    def __init__(self, control):
        self.control = control
        self.wanted = control.options.get("step_optimizer", 1)
        self.seen = []
        self.optimizer = None
        """id() of the optimizer whose steps count, 0 where none does any more."""
        self.count = 0
        self.rank = self.world = self.restart = 0
        self.memory = None
        """The allocator's history, where it was asked for."""
        self.facts = {}
        self.own = False
        """Whether steps end where the job's own code says so (stepscope/monitor), not with the optimizer's."""
        self.monitored = False
        """Whether stepscope/monitor began this, not a command around the job."""
        self.is_fork = self.ended = False
        self.pages = Pages(control)
        self.diary = Diary(control, self.pages)
        self.looks, self.roots = Looks(self.diary), Roots(self.diary)
        self.plans = Plans(self)
        self.profiling = bool
        """Whether a profiler of torch runs, ours or the job's own."""
        self.samples = Samples(self.diary)
        self.hardware = Hardware(self.diary, self.samples)
        looks = [self.plans.look, self.samples.look, self.hardware.look]
        self.pages.each_second += [Stacks(control, self.diary).answer, self.diary.look_at_part, *looks]

    def keep_diary(self):
        """Look at torch for the diary; without it, windows are still recorded."""
        try:
            import torch

            if "torch.distributed" in sys.modules and torch.distributed.is_available():
                self.diary.groups = Groups(self.diary)
                self.diary.groups.begin()
                self.pages.each_second.append(self.diary.groups.look)
            self.looks.begin()
            self.profiling = getattr(torch.autograd, "_profiler_enabled", bool)
            from torch.optim import optimizer

            if hasattr(optimizer, "register_optimizer_step_pre_hook"):
                optimizer.register_optimizer_step_pre_hook(self.before)
        except Exception as error:  # another torch than those known
            self.diary.off("{}: {}".format(type(error).__name__, error))

    def before(self, optimizer, args=None, kwargs=None):  # torch's signature
        if self.diary.in_training_thread():
            self.diary.optimizer_begins(optimizer)

    def __call__(self, optimizer, args=None, kwargs=None):  # torch's signature
        try:
            diary = self.diary
            if diary.in_training_thread():
                diary.optimizer_ends(optimizer)
            if self.own:
                if not self.seen:
                    self.seen.append(weakref.ref(optimizer))
                return
            if id(optimizer) != self.optimizer:
                if self.optimizer == 0 or not self.adopt(optimizer):
                    return
            self.boundary(optimizer)
        except Exception as error:  # the job goes on whatever happens here
            self.off(error)

    def own_step(self):
        """End a step, as the job's own code says; of no meaning where an optimizer's steps are counted."""
        if self.ended or not (self.own or self.optimizer is None):
            return
        try:
            if self.optimizer is None:
                self.own = True
                optimizer = self.seen[0]() if self.seen else None
                self.optimizer = id(optimizer) if optimizer is not None else -1
                self.register(optimizer)
            if self.optimizer != 0:
                self.boundary(None)
        except Exception as error:  # as above
            self.off(error)

    def off(self, error):
        """Count no more steps: something was not as known of torch, or of the job."""
        reason = "{}: {}".format(type(error).__name__, error)
        self.optimizer = 0
        if self.plans.window is not None:
            self.plans.off(reason)
        self.diary.off(reason)

    def mark(self, name):
        """Return a part of a step, or an event, to be entered and left."""
        return Mark(self.diary, name)

    def stop(self):
        """End the record, as the job's own code says."""
        self.at_exit()
        self.optimizer = 0
        self.plans.on = self.diary.on = False

    def boundary(self, optimizer):
        """End a step."""
        diary, plans = self.diary, self.plans
        self.count += 1
        look = None
        window = plans.window
        if diary.on:
            if window is not None:
                diary.flags |= PROFILED if window.recording and window.sampling is None else WINDOW
            elif self.profiling():
                diary.own_profiler()
            look = diary.boundary()
            self.looks.later()
            if self.count == 2 or (self.count == 4 and self.roots.deepened):
                self.roots.look_deeper()
        if plans.on:
            number = plans.step(self.count)
            if number is not None and look is not None and time.perf_counter_ns() - look[0] > PAUSE_NS:
                diary.pause(look, "window {}".format(number))

    def adopt(self, optimizer):
        """Return whether this optimizer's steps count: the N-th one seen; another where that one is gone."""
        optimizers = [reference() for reference in self.seen]
        if optimizer not in optimizers:
            self.seen.append(weakref.ref(optimizer))
            optimizers.append(optimizer)
        if self.optimizer is None:
            if optimizers.index(optimizer) != self.wanted - 1:
                return False
            self.optimizer = id(optimizer)
            self.register(optimizer)
            return self.optimizer != 0
        if any(other is not None and id(other) == self.optimizer for other in optimizers):
            return False
        self.optimizer = id(optimizer)
        return True

    def register(self, optimizer=None):
        """Note at the end of the first step, in whose time this is, who this rank is, and what the job is made of."""
        import torch

        self.rank, self.world = identity()
        self.restart = self.diary.restart = restart()
        if self.is_fork and "multiprocessing.util" in sys.modules:  # such a fork ends without atexit
            sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=0)
        name = "rank-{:05d}.json".format(self.rank)
        other = self.control.read(name)
        same = other is not None and (other.get("restart"), other.get("host")) == (self.restart, self.control.host)
        if not self.diary.on:
            self.pages.watch()  # its thread looks for requests
        self.plans.on = not (same and other.get("pid") != os.getpid() and _alive(other.get("pid")))
        self.find_model(optimizer)
        if not self.plans.on:
            return  # a second process that says it is this rank: it has its diary, and the first one the windows
        document = {
            "rank": self.rank, "world_size": self.world, "host": self.control.host, "pid": self.control.pid,
            "restart": self.restart, "python": sys.version.split()[0], "torch": torch.__version__,
            "local_rank": os.environ.get("LOCAL_RANK"), "facts": self.facts,
        }  # fmt: skip
        problem = self.control.write("profile_rank/1", name, document)
        if problem:
            say("rank {} is not profiled: cannot write {}".format(self.rank, problem))
            self.optimizer = 0
            self.diary.on = False
            return
        self.plans.await_next(self.control.options.get("first"))

    def find_model(self, optimizer):
        """Read the facts, and set where the diary looks: at the model, and at the last gradient of DDP."""
        try:
            objects = Objects()
            give_back_memory()
            self.facts = model_facts(objects, optimizer)
            if optimizer is None or not self.diary.on:
                return
            self.roots.find(objects.of["module"], optimizer)
            places = {parameter.device for parameter in parameters_of(optimizer)}
            devices = {place.type for place in places}
            self.samples.devices = sorted(place.index for place in places if place.type == "cuda")
            self.diary.on_device = bool(devices - {"cpu", "meta"})
            if objects.of["ddp"] and devices in ({"cpu"}, {"cuda"}):
                last = LastGradientOnDevice if self.diary.on_device else LastGradient
                self.diary.tail = last(self.diary, objects.of["ddp"])
        except Exception as error:  # its passes are not told from each other then
            self.diary.note("the model is not found: {}: {}".format(type(error).__name__, error))

    def forked(self):
        """Go on in a fork. Of a rank that has stepped: whatever steps here, the rank's own process is the one that counts.
        Of a process that has not, a launcher that imported torch: the fork may be a rank."""
        if self.diary.box is not None:
            self.diary.box.forget()
        if self.optimizer is not None:
            self.optimizer = 0
            self.plans.window, self.plans.on = None, False
            self.diary.on = False
            self.pages.forget()
            return
        self.control.pid = os.getpid()
        self.is_fork = True
        self.pages.begin_again()
        self.diary.begin_again()

    def at_exit(self):
        if os.getpid() != self.control.pid or self.ended:
            return
        self.ended = True
        self.diary.close()
        for task in (
            self.hardware.close,
            self.plans.at_exit,
            self.diary.groups.write if self.diary.groups is not None else bool,
            lambda: self.pages.close(partial(write_end, self.control, self.pages, self.diary)),
        ):
            try:
                task()
            except Exception as error:  # the process ends as it would have
                say("rank {}: {}: {}".format(self.rank, type(error).__name__, error))


def _alive(pid):
    try:
        os.kill(int(pid), 0)
    except (OSError, ValueError, TypeError):
        return False
    return True
