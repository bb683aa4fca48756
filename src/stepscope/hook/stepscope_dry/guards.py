"""What a script does beside training is not carried out: files, checkpoints, trackers, connections, processes."""

import builtins
import os
import sys
import threading

from stepscope_dry.files import Files
from stepscope_dry.imports import replaced, when_imported

OFF = {
    "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug", "MLFLOW_TRACKING_URI": "file:///dev/null",
    "SWANLAB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
"""What trackers and hubs ask of the environment, so that they neither send nor fetch."""

SAVES = {
    "torch": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "torch.onnx": ("export",),
    "safetensors.torch": ("save_file", "save_model"),
    "safetensors.numpy": ("save_file",),
    "torch.cuda.memory": ("_dump_snapshot",),
}
"""Functions that write what the script has trained, past Python's own files."""

ABSORBED = {
    "torch.utils.tensorboard": ("SummaryWriter",),
    "tensorboardX": ("SummaryWriter",),
    "mlflow": ("start_run", "end_run", "set_experiment", "set_tracking_uri", "log_metric", "log_metrics", "log_param",
               "log_params", "log_artifact", "log_artifacts", "autolog"),
    "clearml": ("Task",), "aim": ("Run",), "trackio": ("init", "log", "finish"),
}  # fmt: skip
"""Trackers that the environment does not turn off."""

READS = frozenset("git nvidia-smi lscpu uname hostname which ldconfig".split())
"""Commands that only look: they are carried out."""


def begin(session):
    guards = Guards(session)
    session.parts["guards"] = guards
    os.environ.update(OFF)
    for module, names in SAVES.items():
        when_imported(module, lambda owner, names=names: guards.leave_out(owner, names))
    for module, names in ABSORBED.items():
        when_imported(module, lambda owner, names=names: guards.absorb(owner, names))
    guards.refuse_connections()
    guards.refuse_extensions()
    guards.refuse_processes()
    guards.watch()


class Absorbing:
    """An object that takes everything and does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class Guards:
    """refused: host of a connection that the script wanted."""

    def __init__(self, session):
        self.session = session
        self.refused = None
        self.files = Files(session)

    def enter(self):
        self.files.begin()
        sys.dont_write_bytecode = True
        exits = self.exits
        replaced(sys, "exit", exits)
        for name in ("exit", "quit"):
            replaced(builtins, name, exits)

    def finish(self):
        if self.session.world > 1 and self.session.backend is None:
            self.session.note("alone", "the script makes no process group: each rank trains a model of its own", "")

    def exits(self, plain):
        def leave(code=None):
            self.session.exit_place, self.session.exit_code = self.session.place(), code
            if code and sys.exc_info()[1] is not None:  # somebody caught it to say it in other words
                self.session.uncaught(*sys.exc_info())
            if isinstance(code, str):
                self.session.fail("exit", "the script ended itself: {}".format(code[:300]), self.session.exit_place)
            raise SystemExit(code)

        return leave

    def reason_of(self, error):
        """Return why an exception that nobody caught ended the script, and what to do."""
        if self.refused is not None and not isinstance(error, (NameError, AttributeError)):
            return "needs-data", "the script needs {}, and a dry run opens no connection: fetch it first".format(
                self.refused
            )
        if isinstance(error, ConnectionError) or "ffline" in str(error):
            return "needs-data", "fetch it first: a dry run opens no connection"
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return "needs-data", "give the script what it reads, or batches of torch.save with --batch-from FILE"
        if isinstance(error, ImportError):
            return "raised", "install it for {}".format(sys.executable)
        return "raised", None

    def leaves(self):
        self.files.end()

    def skipped(self, what):
        self.session.note("skipped", "{} is left out".format(what), self.session.place())

    def leave_out(self, module, names):
        for name in names:
            replaced(module, name, lambda plain, name=name: self.nothing(module.__name__ + "." + name))

    def nothing(self, what):
        return lambda *args, **kwargs: self.skipped(what)

    def absorb(self, module, names):
        for name in names:
            if hasattr(module, name):
                what = "{}.{}".format(module.__name__, name)
                setattr(
                    module,
                    name,
                    type(name, (Absorbing,), {"__init__": lambda *args, what=what, **kwargs: self.skipped(what)}),
                )

    # --- the network

    def refuse_connections(self):
        import socket

        def guarded(plain):
            def connect(this, address, *args):
                host = address[0] if isinstance(address, tuple) else None
                if host is not None and str(host) not in ("localhost", "127.0.0.1", "::1"):
                    self.refuse(host)
                return plain(this, address, *args)

            return connect

        for name in ("connect", "connect_ex"):
            replaced(socket.socket, name, guarded)

        def resolve(plain):
            def getaddrinfo(host, *args, **kwargs):
                if host is not None and str(host) not in ("localhost", "127.0.0.1", "::1", "", socket.gethostname()):
                    self.refuse(host)
                return plain(host, *args, **kwargs)

            return getaddrinfo

        replaced(socket, "getaddrinfo", resolve)

    def refuse(self, host):
        self.refused = host if isinstance(host, str) else os.fsdecode(host)
        raise ConnectionRefusedError("a dry run opens no connection: {}".format(self.refused))

    def refuse_extensions(self):
        def refused(what):
            def refuse(*args, **kwargs):
                self.session.fail(
                    "unsupported",
                    "the script compiles an extension of its own ({}): its operators have no shapes here".format(what),
                    self.session.place(),
                    fix="choose the option of the script that uses torch's own operators",
                )

            return refuse

        def refuse_engine(*args, **kwargs):
            self.session.fail(
                "unsupported",
                "DeepSpeed's engine divides parameters by their addresses in memory, and tensors without data have none",
                self.session.place(),
                fix="give the script's own path for DDP or FSDP, or a named layout: stepscope predict --model",
            )

        when_imported("deepspeed", lambda module: setattr(module, "initialize", refuse_engine))
        when_imported(
            "torch.utils.cpp_extension",
            lambda module: [
                replaced(module, name, lambda plain, name=name: refused(name)) for name in ("load", "load_inline")
            ],
        )

    # --- processes

    def of_script(self):
        """Whether the script itself calls, and no library for its own ends."""
        from stepscope_dry.session import HERE, of_user

        frame, standard = sys._getframe(2), os.path.dirname(os.__file__) + os.sep
        while frame is not None:
            name = frame.f_code.co_filename
            library = name.startswith(("<", HERE))
            if not library and (not name.startswith(standard) or "site-packages" in name):
                return of_user(name)
            frame = frame.f_back
        return False

    def refuse_processes(self):
        import multiprocessing.process as processes
        import subprocess

        import torch.multiprocessing as spawning

        def popen(plain):
            def init(this, args, *rest, **kwargs):
                words = args.split() if isinstance(args, str) else [os.fsdecode(word) for word in args]
                if self.of_script() and os.path.basename(words[0]) not in READS:
                    self.skipped("`{}`".format(" ".join(words)[:80]))
                    args, kwargs["shell"] = [sys.executable, "-I", "-S", "-c", ""], False
                plain(this, args, *rest, **kwargs)

            return init

        replaced(subprocess.Popen, "__init__", popen)
        replaced(os, "system", lambda plain: lambda command: self.skipped("`{}`".format(command)) or 0)
        replaced(processes.BaseProcess, "start", self.started)
        spawn = self.spawned

        def start_processes(plain):
            def start(fn, args=(), nprocs=1, join=True, *rest, **kwargs):
                return spawn(fn, args, nprocs)

            return start

        for module in (spawning, sys.modules.get("torch.multiprocessing.spawn")):
            for name in ("spawn", "start_processes"):
                if module is not None and callable(getattr(module, name, None)):
                    replaced(module, name, start_processes)

    def spawned(self, function, args, count):
        """The script starts its ranks itself: this process is the first of them."""
        session = self.session
        if count not in (session.world, session.local):
            session.fail(
                "world",
                "the script starts {} ranks of its own, and the world has {}".format(count, session.world),
                fix="ask for --gpus {}, or let torchrun start its ranks".format(count),
            )
        session.note(
            "spawned", "the script starts {} ranks of its own: the first is carried out".format(count), session.place()
        )
        function(session.rank % max(1, count), *args)
        return Absorbing()

    def started(self, plain):
        guards = self

        def start(process):
            if not guards.of_script():
                return plain(process)
            args = getattr(process, "_args", ())
            numbers = [value for value in args if isinstance(value, int)]
            import torch.distributed as dist

            if numbers and numbers[0] == guards.session.rank and not (dist.is_available() and dist.is_initialized()):
                guards.session.note(
                    "spawned", "the script starts its ranks: the first is carried out", guards.session.place()
                )
                process.run()
            else:
                guards.skipped("a process of the script")
            process._popen = Ended()
            return None

        return start

    # --- time

    def watch(self):
        """End a script that takes no step in the time that it has."""
        limit_s = self.session.options.get("limit_s")
        if not limit_s:
            return
        main = threading.main_thread().ident

        def late():
            frame = sys._current_frames().get(main)
            self.session.fail(
                "timeout",
                "the script took {} of its optimizer's steps in {:g} s".format(self.session.step or "none", limit_s),
                self.session.place_in(frame) or "",
                fix="give it more with --timeout, or a smaller data set",
            )

        timer = threading.Timer(limit_s, late)
        timer.daemon = True
        timer.start()


class Ended:
    """A process that has ended well."""

    returncode = exitcode = 0
    pid = sentinel = 0

    def poll(self, *args):
        return 0

    wait = poll

    def terminate(self):
        pass

    kill = close = terminate
