"""Steps of the job, counted at the end of each step() of one optimizer; windows begin and end there."""

import atexit
import gc
import os
import sys
import time
import weakref
from collections import deque

from stepscope_hook.control import identity, say
from stepscope_hook.diary import PROFILED, WINDOW, Diary
from stepscope_hook.ends import restart, write_end
from stepscope_hook.gradients import LastGradient
from stepscope_hook.pages import Pages
from stepscope_hook.roots import find_roots

KEPT = 64
"""Step times kept for the comparison with profiled steps."""
SETTLED = 4
SETTLED_SPREAD = 0.2
"""Step times have settled when the last four differ from their median by a fifth at most."""
SETTLE_AT_MOST = 20
MARGIN_STEPS = 3
MARGIN_S = 1.0
"""How far ahead rank 0 puts a window: so that every rank has seen it; a second where ranks are on several hosts."""


def watch(control):
    """Register with torch. control: files and options of this process."""
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    control.write(
        "profile_process/1",
        "process-{}-{}.json".format(control.host, control.pid),
        {"pid": control.pid, "host": control.host, "argv": list(getattr(sys, "orig_argv", sys.argv)),
         "rank": rank, "world_size": world, "python": sys.version.split()[0]},
    )  # fmt: skip
    steps = Steps(control)
    steps.diary.restart = restart()
    if control.options.get("memory"):
        from stepscope_hook.memory import Recording

        steps.memory = Recording(steps)
        steps.memory.when_cuda_begins()
    if (control.options.get("first") or {}).get("duration_s"):
        from stepscope_hook.forwards import watch_forwards

        watch_forwards(steps)
    else:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(steps)
    steps.keep_diary()
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
        """id() of the optimizer whose steps count, 0 after a failure of the hook."""
        self.count = 0
        self.began = time.monotonic()
        self.ends_ns = deque(maxlen=KEPT + 1)
        self.number = 1
        """Of the next window."""
        self.window = None
        self.planned = None
        self.awaited = ""
        self.fallback_at = 0
        """The step at which a rank stops waiting for a rank 0 whose files it does not see."""
        self.rank = self.world = 0
        self.memory = None
        """The allocator's history, where it was asked for."""
        self.is_fork = self.ended = False
        self.windows = True
        """Whether windows are this process's: not those of a second process of the same rank."""
        self.pages = Pages(control)
        self.diary = Diary(control, self.pages)
        self.looks = self.roots = None

    def keep_diary(self):
        """Look at torch for the diary; without it, the windows are still recorded."""
        from stepscope_hook.looks import Looks, Roots

        try:
            self.looks, self.roots = Looks(self.diary), Roots(self.diary)
            self.looks.begin()
            from torch.optim import optimizer

            if hasattr(optimizer, "register_optimizer_step_pre_hook"):
                optimizer.register_optimizer_step_pre_hook(self.before)
        except Exception as error:  # another torch than those known
            self.diary.off("{}: {}".format(type(error).__name__, error))

    def before(self, optimizer, args=None, kwargs=None):  # torch's signature
        if self.diary.mine():
            self.diary.optimizer_begins(optimizer)

    def __call__(self, optimizer, args=None, kwargs=None):  # torch's signature
        diary = self.diary
        if diary.mine():
            diary.optimizer_ends(optimizer)
        if id(optimizer) != self.optimizer:
            if self.optimizer == 0 or not self.adopt(optimizer):
                return
        self.boundary(optimizer)

    def boundary(self, optimizer):
        """The end of a step."""
        diary, window = self.diary, self.window
        if not diary.on:
            self.turn(optimizer)
            return
        if diary.number == 0:
            self.set_up(optimizer)
        elif window is not None:
            diary.flags |= PROFILED if window.recording else WINDOW
        look = diary.boundary()
        self.looks.later()
        self.turn(optimizer)
        if look is not None and (window is not None or self.window is not None) and self.window is not window:
            diary.pause(look, "window")

    def set_up(self, optimizer):
        """At the end of the first step, whose time this is in: find the model."""
        try:
            if optimizer is not None:
                self.find(optimizer)
        except Exception as error:  # its passes are not told from each other then
            self.diary.note("the model is not found: {}: {}".format(type(error).__name__, error))

    def find(self, optimizer):
        import torch

        modules = objects_of(torch.nn.Module)
        for root in find_roots(modules, optimizer):
            self.roots.add(root)
        ddp = [each for each in modules if isinstance(each, torch.nn.parallel.DistributedDataParallel)]
        if any(each.device.type == "cpu" for module in ddp for each in module.parameters()):
            self.diary.tail = LastGradient(self.diary, ddp)

    def turn(self, optimizer):
        """Whatever a window does between two steps."""
        if not self.windows:
            return
        self.count += 1
        if self.window is None:
            self.ends_ns.append(time.perf_counter_ns())
            if self.planned is None and not os.access(self.awaited, os.F_OK) and self.count != self.fallback_at:
                return
        try:
            self.advance(optimizer)
        except Exception as error:  # the job goes on whatever happens here
            self.off("{}: {}".format(type(error).__name__, error))

    def adopt(self, optimizer):
        """Whether this optimizer's steps count: the N-th one seen; another where that one is gone."""
        known = [reference() for reference in self.seen]
        if optimizer not in known:
            self.seen.append(weakref.ref(optimizer))
            known.append(optimizer)
        if self.optimizer is None:
            if known.index(optimizer) != self.wanted - 1:
                return False
            self.optimizer = id(optimizer)
            self.register()
            return self.optimizer != 0
        if any(each is not None and id(each) == self.optimizer for each in known):
            return False
        self.optimizer = id(optimizer)
        return True

    def register(self):
        """At the first step: who this rank is, and which file it waits for."""
        self.rank, self.world = identity()
        import torch

        options = self.control.options
        name = "rank-{:05d}.json".format(self.rank)
        self.restart = restart()
        other = self.control.read(name)
        if self.is_fork and "multiprocessing.util" in sys.modules:  # such a fork ends without atexit
            sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=0)
        if (
            other is not None
            and other.get("restart") == self.restart
            and other.get("host") == self.control.host
            and _alive(other.get("pid"))
        ):
            self.windows = False  # a second process that says it is this rank: the first one's steps are profiled
            return
        facts = {
            "rank": self.rank, "world_size": self.world, "host": self.control.host, "pid": self.control.pid,
            "restart": self.restart, "python": sys.version.split()[0], "torch": torch.__version__,
            "local_rank": os.environ.get("LOCAL_RANK"),
        }  # fmt: skip
        problem = self.control.write("profile_rank/1", name, facts)
        if problem:
            say("rank {} is not profiled: cannot write {}".format(self.rank, problem))
            self.optimizer = 0
            return
        self.await_next(options.get("first"))

    def await_next(self, request=None):
        """request: the first window, where the command line asked for one as it started the job."""
        self.planned = None
        self.fallback_at = 0
        if not self.control.shared:
            self.awaited = os.devnull + "/never"
            self.planned = None if request is None else Plan(request, begin=request["fixed_step"])
        elif self.rank == 0:
            self.awaited = self.control.path("request-{}.json".format(self.number))
            self.planned = None if request is None else Plan(request)
        else:
            self.awaited = self.control.path("window-{}.json".format(self.number))
            self.fallback_at = 0 if request is None else request["fixed_step"] - 1

    def advance(self, optimizer):
        if self.window is not None:
            if self.window.step(self.count):
                self.window = None
                self.ends_ns.clear()
                self.number += 1
                self.await_next()
            return
        if self.planned is None:
            document = self.control.read(os.path.basename(self.awaited))
            if document is not None and (self.rank == 0 or document.get("restart") == self.restart):
                self.planned = Plan(document, begin=document.get("begin"))
            elif self.count == self.fallback_at and self.control.read("rank-00000.json") is None:
                first = self.control.options["first"]
                self.planned = Plan(first, begin=first["fixed_step"])
            else:
                return
        plan = self.planned
        if plan.begin is None:
            self.choose(plan)
        if plan.begin is None or self.count < plan.begin:
            return
        self.begin(plan, optimizer)

    def choose(self, plan):
        """Rank 0: the step at which every rank begins, once step times have settled."""
        times = self.times_ns()
        wait = plan.request["wait"]
        if plan.request.get("duration_s"):
            ready = time.monotonic() - self.began >= plan.request["after_s"]
        elif wait != "auto":
            ready = self.count >= wait - MARGIN_STEPS or plan.request["fixed_step"] is None
        else:
            ready = settled(times) or self.count >= SETTLE_AT_MOST
        if not ready:
            return
        ranks = [self.control.read("rank-{:05d}.json".format(rank)) for rank in range(self.world)]
        hosts = {each["host"] for each in ranks if each is not None}
        if None in ranks and plan.request["fixed_step"] is not None:
            if self.count < plan.request["fixed_step"] - MARGIN_STEPS:
                return  # a rank that does not see these files begins at the step that all were given
            plan.begin = plan.request["fixed_step"]
        else:
            step_s = max(sorted(times)[len(times) // 2] / 1e9, 1e-6) if times else MARGIN_S
            ahead = MARGIN_STEPS + (int(MARGIN_S / step_s) if len(hosts) > 1 else 0)
            plan.begin = max(self.count + ahead, wait if isinstance(wait, int) else 0)
        document = dict(plan.request, begin=plan.begin, restart=self.restart)
        self.control.write("profile_window/1", "window-{}.json".format(self.number), document)

    def begin(self, plan, optimizer):
        from stepscope_hook.window import Window

        late = self.count - plan.begin
        wanted = plan.request.get("ranks")
        if wanted is not None and self.rank not in wanted:
            self.number += 1
            self.await_next()
            return
        self.window = Window(self, plan.request, optimizer, late=late)
        if not self.window.start(self.count):
            self.window = None
            self.number += 1
            self.await_next()

    def times_ns(self):
        ends = list(self.ends_ns)
        return [after - before for before, after in zip(ends, ends[1:])]  # Python 3.8

    def off(self, reason):
        """The hook ends; the job goes on."""
        if self.window is not None:
            self.window.abandon("the hook failed: " + reason)
            self.window = None
        else:
            say("rank {}: the hook is off: {}".format(self.rank, reason))
        self.optimizer = 0

    def forked(self):
        """In a fork. Of a rank that has stepped: whatever steps here, the rank's own process is the one that counts. Of a
        process that has not, a launcher that imported torch: the fork may be a rank."""
        if self.optimizer is not None:
            self.optimizer, self.window = 0, None
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
        if self.window is not None:
            window, self.window = self.window, None
            try:
                window.at_exit()
            except Exception as error:  # the process ends as it would have
                say("rank {}: {}: {}".format(self.rank, type(error).__name__, error))
        try:
            self.pages.close()
            if not is_launcher():
                write_end(self.control, self.pages, self.diary)
        except Exception as error:  # the process ends as it would have
            say("rank {}: {}: {}".format(self.rank, type(error).__name__, error))


def is_launcher():
    """Whether this process starts ranks: it imports torch, and trains nothing."""
    return "torch.distributed.launcher.api" in sys.modules and "RANK" not in os.environ


def objects_of(kind):
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


class Plan:
    """A window asked for. begin: number of finished steps at which it starts; None until rank 0 has chosen."""

    def __init__(self, request, begin=None):
        self.request = request
        self.begin = begin


def settled(times):
    last = sorted(times[-SETTLED:])
    if len(times) <= SETTLED:
        return False
    middle = last[len(last) // 2]
    return all(abs(each - middle) <= SETTLED_SPREAD * middle for each in last)


def _alive(pid):
    try:
        os.kill(int(pid), 0)
    except (OSError, ValueError, TypeError):
        return False
    return True
