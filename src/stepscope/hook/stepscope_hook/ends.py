"""Where a process of the job ended, as Python saw it, or hangs.

``end-RRRRR-A.json``: how a rank ended; pPID in place of A for a process that has made no step.

``failure-HOST-PID.json``: an exception that nobody caught, in any process of the job, which is then shown as ever. It is the
only trace of a rank that fails before it steps, or before it imports torch; of a launcher it also says which ranks failed
and with which codes (stepscope/records/profile.py).

``stack-RRRRR-A.txt``, the Python stacks of all threads, and ``flight-RRRRR-A.json``, torch's flight recorder, where it is
on and wanted: asked for by ``stack-request.json``, written anew (renamed into place) for each request, and answered by the
diary's thread, which runs while a collective waits. The first line of the stacks has the part of the step, and steps before.
"""

import linecache
import os
import re
import sys
import sysconfig
import threading
import time
import traceback

from stepscope_hook.control import Control, identity, utc

LONGEST = 300
OWN = os.path.dirname(os.path.abspath(__file__))
MESSAGE_CHARS = 2000
"""Longest message of a failure that is kept."""
FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (\S+)\n +(.*)')
REQUEST = "stack-request.json"
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Names of the dumps of torch's flight recorder: NCCL's own first, where it is built in."""


def write_end(control, pages, diary):
    """Write end-RRRRR-A.json, or end-RRRRR-pPID.json of a process that made no step."""
    error = getattr(sys, "last_value", None)
    if pages.name is None:
        write_early_end(control, diary.why_off)
        return
    document = head(control, diary.rank, diary.world)
    document.update(described(error), steps=diary.number, phase=diary.phase_of(error))
    control.write("rank_end/1", "end-" + pages.name + ".json", document)


def write_early_end(control, why=None):
    """Write the end of a process of which no step is recorded. why: the reason, where it is not the job's."""
    if is_launcher():
        return
    rank, world = identity()
    document = head(control, rank, world)
    if why is not None:
        document["message"] = why
    document.update(described(getattr(sys, "last_value", None)))
    control.write("rank_end/1", "end-{:05d}-p{}.json".format(rank, os.getpid()), document)


def head(control, rank, world):
    return {
        "rank": rank, "world_size": world, "host": control.host, "pid": os.getpid(), "restart": restart(),
        "kind": "exit", "steps": 0, "at_unix_ns": time.time_ns(),
    }  # fmt: skip


def described(error):
    """Return what an exception that nobody caught says."""
    if error is None:
        return {}
    text, trace = text_of(error), getattr(error, "__traceback__", None)
    message, where = of_worker(text) or (text, place_of(trace))
    return {"kind": "exception", "exception": kind_of(error), "message": message[:LONGEST], "place": where}


def of_worker(text):
    """Return (message, place) of an exception that a worker process of a DataLoader passed on with its traceback; None: no
    such."""
    lines = text.strip().splitlines()
    frames = FRAME.findall(text)
    if not frames or " in DataLoader worker process " not in lines[0]:
        return None
    own = [frame for frame in frames if not is_library(frame[0])]
    return "{}: {}".format(lines[0].rstrip("."), lines[-1]), "{}:{} in {}: {}".format(*(own or frames)[-1])


def is_launcher():
    """Whether this process starts ranks: it imports torch, and trains nothing."""
    return "torch.distributed.launcher.api" in sys.modules and "RANK" not in os.environ


def tell_uncaught():
    """Leave our own frames out of the traceback of an exception that nobody catches: it is the job's output."""
    before = sys.excepthook

    def shows(kind, error, trace):
        try:
            trace = without_ours(trace)
        except Exception:  # shown as it is
            pass
        before(kind, error, trace)

    sys.excepthook = shows


def without_ours(trace):
    """Return the traceback without frames of this package."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN):
        trace = trace.tb_next
    entry = trace
    while entry is not None:
        after = entry.tb_next
        while after is not None and after.tb_frame.f_code.co_filename.startswith(OWN):
            after = after.tb_next
        entry.tb_next = after
        entry = after
    return trace


def restart():
    """Return how often torchrun had restarted the ranks."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)


def kind_of(error):
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else kind.__module__ + "." + kind.__qualname__


def text_of(error):
    try:
        return str(error)
    except Exception:  # an exception of the job that cannot be printed
        return ""


def place_of(trace):
    """Return ``file:line in function: code`` of the innermost line of the user's own, else of the innermost one; None
    without."""
    own = innermost = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(OWN):
            innermost = (code.co_filename, trace.tb_lineno, code.co_name)
            if not is_library(code.co_filename):
                own = innermost
        trace = trace.tb_next
    shown = own or innermost
    if shown is None:
        return None
    line = linecache.getline(shown[0], shown[1]).strip()
    return "{}:{} in {}: {}".format(shown[0], shown[1], shown[2], line)


def is_library(path):
    if path.startswith("<") or "site-packages" in path or "dist-packages" in path:
        return True
    paths = sysconfig.get_paths()
    return any(path.startswith(paths[key] + os.sep) for key in ("stdlib", "platstdlib") if paths.get(key))


def watch_failures(options):
    """Write exceptions that nobody catches. options: what the command line passed through the environment."""
    before = sys.excepthook

    def writes_failure(kind, error, trace):
        if issubclass(kind, KeyboardInterrupt):  # an import in here would make a plain exit 1 of Python's end by SIGINT
            return before(kind, error, trace)
        try:
            write_failure(Control(options), error, trace)
        except Exception:  # the job's own failure is what counts
            pass
        return before(kind, error, trace)

    sys.excepthook = writes_failure


def write_failure(control, error, trace):
    message, where = of_worker(text_of(error)) or (text_of(error), place(error, trace))
    document = {
        "host": control.host, "pid": os.getpid(), "parent": os.getppid(), "rank": number_in("RANK"),
        "world_size": number_in("WORLD_SIZE"), "restart": restart(), "at_unix_ns": time.time_ns(),
        "exception": kind_of(error), "message": message[:MESSAGE_CHARS], "place": where,
        "torch": "torch" in sys.modules, "ranks": launched(error),
    }  # fmt: skip
    control.write("profile_failure/1", "failure-{}-{}.json".format(control.host, os.getpid()), document)


def number_in(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def launched(error):
    """Return the ranks that failed, as torchrun (ChildFailedError) and multiprocessing's spawn (ProcessException) know
    them."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):
        return [
            {"rank": int(rank), "pid": failure.pid, "code": failure.exitcode, "message": message_text(failure.message)}
            for rank, failure in failures.items()
        ]
    rank, pid = getattr(error, "error_index", None), getattr(error, "error_pid", None)
    if rank is None or pid is None:
        return []
    return [
        {
            "rank": rank,
            "pid": pid,
            "code": getattr(error, "exit_code", 1),
            "message": message_text(getattr(error, "msg", "")),
        }
    ]


def message_text(message):
    """Return the end of an error file's message: of the traceback, where it holds one beside its last line."""
    if isinstance(message, dict):
        message = (message.get("extraInfo") or {}).get("py_callstack") or message.get("message")
    return str(message)[-MESSAGE_CHARS:] if message else None


def place(error, trace):
    """Return ``file:line in function: code`` of the innermost line of the user's own, or the line that does not parse."""
    if isinstance(error, SyntaxError) and error.filename:
        return "{}:{}: {}".format(error.filename, error.lineno, (error.text or "").strip())
    return place_of(trace)


class Stacks:
    def __init__(self, control, diary):
        self.control = control
        self.diary = diary
        self.answered = None

    def answer(self):
        """Answer each request once."""
        try:
            status = os.stat(self.control.path(REQUEST))
        except OSError:
            return
        request = (status.st_mtime_ns, status.st_ino)
        if request == self.answered:
            return
        self.answered = request
        name = self.diary.pages.name or "{:05d}-p{}".format(identity()[0], os.getpid())
        self.put("stack-{}.txt".format(name), stacks_of_all(self.diary))
        wanted = (self.control.read(REQUEST) or {}).get("flights", True)
        recorded = flight_recorder() if wanted else None
        if recorded is not None:
            self.put("flight-{}.json".format(name), recorded)

    def put(self, name, data):
        temporary = self.control.path(".{}.{}".format(name, os.getpid()))
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, self.control.path(name))


def stacks_of_all(diary):
    """Return the stacks of all threads: the main thread first, the innermost call last, as in a traceback."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, here = threading.main_thread().ident, threading.get_ident()
    part = diary.phase_of(None) or "nothing"
    lines = ["pid {} at {} in {} after {} steps\n".format(os.getpid(), utc(), part, diary.number)]
    for ident, frame in sorted(sys._current_frames().items(), key=lambda entry: entry[0] != main):
        if ident != here:
            lines.append("\nthread {} ({}):\n".format(names.get(ident, "?"), ident))
            lines.extend(traceback.format_stack(frame))
    return "".join(lines).encode("utf-8", "replace")


def flight_recorder():
    """Return JSON of the collectives that this process entered last, or None where it is not recorded."""
    module = sys.modules.get("torch._C._distributed_c10d")
    for name in DUMPS:
        dump = getattr(module, name, None)
        if dump is None:
            continue
        try:
            content = dump(True, False)
        except TypeError:
            content = dump()
        except Exception:  # it is off, or of another version
            continue
        content = content.encode() if isinstance(content, str) else bytes(content)
        if b'"entries"' in content:
            return content
    return None
