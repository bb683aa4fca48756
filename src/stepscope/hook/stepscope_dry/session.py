"""The dry run of one process: where it stands in the step, what it notes, and how it ends."""

import atexit
import json
import linecache
import os
import random
import re
import sys
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = tuple(
    os.path.normpath(path) + os.sep
    for path in {
        os.path.dirname(os.__file__),
        HERE,
        *(p for p in sys.path if "site-packages" in p or "dist-packages" in p),
    }
)
_USERS, _NAMED = {}, {}


def of_user(filename):
    """Whether code of this file is the user's: neither a library's nor ours."""
    answer = _USERS.get(filename)
    if answer is None:
        path = os.path.abspath(filename)
        answer = not filename.startswith("<") and "site-packages" not in path and not path.startswith(LIBRARIES)
        _USERS[filename] = answer
    return answer


class Session:
    """One process of a dry run.

    phase: key of records/parts.py in which operators are now; step: steps that optimizers have finished; paused: depth of
    what is not the script's own work (meshes, loaders): nothing is recorded there. parts: objects of the other modules, by
    name.
    """

    def __init__(self, options):
        self.options = options
        self.rank, self.world = options["rank"], options["world"]
        self.local = options.get("ranks_per_node") or min(self.world, 8)
        self.last = options.get("last_step", 2)
        self.on_host = options.get("device", True) is None
        self.folder = os.environ.get("PWD") or os.getcwd()
        self.phase = "before"
        self.step = self.micro_steps = self.paused = 0
        self.passes = 1  # backward passes of the step before
        self.twice = False  # the backward pass is to be differentiated again
        self.samples = self.tokens = None
        self.device = "cpu"
        self.backend = None
        self.optimizers = []
        self.stepping = []
        """Optimizers whose step runs: one may step another within its own."""
        self.wrappers, self.settings, self.mesh, self.pipeline = [], {}, {}, None
        self.notes = {}
        self.parts = {}
        self.at_step = []
        """Functions that are called as a step begins: what they recorded so far is of a step that is over."""
        self.mode = self.exit_place = self.exit_code = self.only_step = None
        self.pid, self.trains, self.has_optimizer = os.getpid(), False, False

    # --- where the script is

    def place(self, depth=1):
        """Return the user's innermost line, ``train.py:88``; None where no code of the user runs."""
        return self.place_in(sys._getframe(depth))

    def place_in(self, frame):
        """Return the user's innermost line of a frame."""
        while frame is not None:
            if of_user(frame.f_code.co_filename):
                return self.named(frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
        return None

    def named(self, filename, line):
        named = _NAMED.get((filename, line))
        if named is None:
            path = os.path.abspath(filename)
            if path.startswith(self.folder + os.sep):
                path = path[len(self.folder) + 1 :]
            named = _NAMED[filename, line] = "{}:{}".format(path, line)
        return named

    def note(self, code, text, place=None):
        """Keep what the dry run did in place of the script, once a place."""
        place = place or self.place(2)
        self.notes.setdefault((code, place, text), {"code": code, "text": text, "place": place})

    def wrapper(self, name, **settings):
        """Keep that the script uses this way to share its work."""
        if name not in self.wrappers:
            self.wrappers.append(name)
        for key, value in settings.items():
            self.settings["{}.{}".format(name, key)] = str(value)

    # --- the step

    def begin(self):
        """Enter the mode without data and watch for the step."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        seed(torch)
        self.watch_backward(torch)
        init = torch.optim.Optimizer.__init__

        def init_optimizer(optimizer, *args, **kwargs):
            self.has_optimizer = True
            init(optimizer, *args, **kwargs)

        torch.optim.Optimizer.__init__ = init_optimizer
        register_optimizer_step_pre_hook(self.step_begins)
        register_optimizer_step_post_hook(self.step_ends)
        sys.excepthook = self.uncaught
        atexit.register(self.at_exit)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.mode.__enter__()
        for part in self.parts.values():
            if hasattr(part, "enter"):
                part.enter()

    def watch_backward(self, torch):
        engine = torch.autograd._engine_run_backward

        def run_backward(*args, **kwargs):
            if self.phase == "backward" or self.paused:
                return engine(*args, **kwargs)
            before, self.phase, self.twice = self.phase, "backward", len(args) > 3 and bool(args[3])
            for part in self.parts.values():
                if hasattr(part, "backward_begins"):
                    part.backward_begins()
            try:
                return engine(*args, **kwargs)
            finally:
                self.micro_steps += 1
                self.phase = "other" if before != "optimizer" else before

        torch.autograd._engine_run_backward = run_backward
        torch.autograd.graph._engine_run_backward = run_backward

    def training_begins(self):
        """What came before the first forward pass is no part of a step."""
        if not (self.step or self.trains):
            self.trains = True
            for function in self.at_step:
                function()
        elif self.micro_steps and not self.has_optimizer:
            self.note("own-optimizer", "the script has no optimizer of torch: its step ends where the next one begins")
            self.step_over()

    def step_begins(self, optimizer, args, kwargs):
        if os.getpid() != self.pid or self.paused:
            return None
        if not any(optimizer is other for other in self.optimizers):
            self.optimizers.append(optimizer)
        self.stepping.append(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self.optimizer_begins(optimizer)
            return None

        def passes():
            """The closure computes the loss and its gradients: what follows it is the optimizer's."""
            self.phase = "other"
            loss = closure()
            self.optimizer_begins(optimizer)
            return loss

        return (args[0], passes, *args[2:]) if len(args) > 1 else args, {
            **kwargs,
            **({} if len(args) > 1 else {"closure": passes}),
        }

    def optimizer_begins(self, optimizer):
        self.phase = "optimizer"
        for part in self.parts.values():
            if hasattr(part, "optimizer_begins"):
                part.optimizer_begins(optimizer)

    def step_ends(self, optimizer, args, kwargs):
        """A step ends with that of the first optimizer (or the Nth, in the order of their first steps): what the others do
        follows it, and is part of the next one."""
        if os.getpid() != self.pid or self.paused:
            return
        while self.stepping and self.stepping.pop() is not optimizer:
            pass
        self.phase = "optimizer" if self.stepping else "other"
        counted = self.options.get("step_optimizer", 1)
        if len(self.optimizers) >= counted and optimizer is self.optimizers[counted - 1]:
            self.step_over()

    def step_over(self):
        self.step += 1
        if self.step >= self.last:
            self.end()
        self.only_step = self.document()
        self.phase, self.passes = "before", self.micro_steps
        self.micro_steps, self.samples, self.tokens = 0, None, None
        for function in self.at_step:
            function()

    # --- the end

    def end(self):
        """Write the record of the step and leave, without the script's own clean-up."""
        self.paused += 1
        self.mode.__exit__(None, None, None)
        self.write_step(self.document())

    def document(self):
        """Return the record of the step that has just ended."""
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        from stepscope_dry.written import rank_document

        self.paused += 1
        try:
            with unset_fake_temporarily():
                for part in self.parts.values():
                    if hasattr(part, "finish"):
                        part.finish()
                return rank_document(self)
        finally:
            self.paused -= 1

    def write_step(self, document):
        self.write("dry_rank/1", "world-{:06d}-rank-{:06d}.json".format(self.world, self.rank), document)
        self.leave(0)

    def fail(self, reason, text, place=None, fix=None):
        """Write why there is no step, and leave."""
        place = self.place(2) if place is None else place or None
        decided = [note["place"] for note in self.notes.values() if note["code"] == "value-decides"]
        if reason in ("timeout", "no-step") and decided:
            text += "; it decides by values that were answered: {}".format(", ".join(sorted(set(decided))[:3]))
            fix = "check what the script does with 1.0, 1 or False there" if fix else None
        self.write(
            "dry_failure/1",
            "failure-{:06d}-rank-{:06d}.json".format(self.world, self.rank),
            {"world_size": self.world, "rank": self.rank, "reason": reason, "text": text, "place": place, "fix": fix},
        )
        self.leave(3)

    def leave(self, code):
        for part in self.parts.values():
            if hasattr(part, "leaves"):
                part.leaves()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def write(self, kind, name, document):
        head = {"schema": "stepscope." + kind, "tool_version": self.options["tool_version"], "created": utc()}
        head.update(document)
        path = os.path.join(self.options["output"], ".stepscope", name)
        with real_open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(head, file)
        os.replace(path + ".part", path)

    def uncaught(self, kind, error, trace):
        import traceback

        if issubclass(kind, (KeyboardInterrupt, SystemExit)) or os.getpid() != self.pid:
            sys.__excepthook__(kind, error, trace)
            return
        traceback.print_exception(kind, error, trace)
        place, source = self.place_of(trace)
        text = re.sub(r"\s+", " ", str(error).strip())[:400] or source
        reason, fix = self.parts["guards"].reason_of(error)
        lacking = next((note["text"] for note in self.notes.values() if note["code"] == "no-device"), None)
        if lacking and re.search("cuda|nvidia", text, re.I):
            reason, text, fix = "no-device", lacking, OTHER_TORCH
        self.fail(reason, text if reason == "no-device" else "{}: {}".format(kind.__name__, text), place, fix)

    def place_of(self, trace):
        """Return the user's innermost line of a traceback, and its text."""
        place, source = None, ""
        while trace is not None:
            code = trace.tb_frame.f_code
            if of_user(code.co_filename):
                place, source = (
                    self.named(code.co_filename, trace.tb_lineno),
                    linecache.getline(code.co_filename, trace.tb_lineno),
                )
            trace = trace.tb_next
        return place, source.strip()

    def at_exit(self):
        if os.getpid() != self.pid:
            return
        if self.step == 1:
            self.note("one-step", "the script takes one step, in which its optimizer begins", "")
            self.write_step({**self.only_step, "notes": list(self.notes.values())})
        if self.exit_code:
            text = "the script ended itself with exit code {}".format(self.exit_code)
            self.fail("no-step", text, place=self.exit_place or "")
        text = "the script ended without a step of an optimizer"
        self.fail("no-step", text, place=self.exit_place or "", fix=NO_STEP)


def seed(torch):
    """Have a loader that shuffles, and whatever draws, draw alike in each world and each time; the script may seed too."""
    random.seed(0)
    torch.default_generator.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def utc():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


OTHER_TORCH = "run it in an environment with torch 2.9 or later, or on the script's own path for CPUs"
NO_STEP = "let it train for two steps or more; an optimizer of its own has to be a torch.optim.Optimizer"
real_open = open
"""Before guards put their own in its place."""
