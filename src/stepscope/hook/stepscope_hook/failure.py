"""An exception that nobody caught, in any process of the job: written as ``failure-HOST-PID.json``, then shown as ever.

It is the only trace of a rank that fails before it steps, or before it imports torch; of a launcher it also says which
ranks failed and with which codes. What it writes is described in stepscope/records/profile.py.
"""

import os
import sys
import time

from stepscope_hook.control import Control
from stepscope_hook.ends import kind_of, place_of, restart, text_of

MESSAGE_CHARS = 2000


def watch(options):
    """From here on. options: what the command line passed through the environment."""
    before = sys.excepthook

    def told(kind, error, trace):
        if issubclass(kind, KeyboardInterrupt):  # an import in here would make a plain exit 1 of Python's end by SIGINT
            return before(kind, error, trace)
        try:
            tell(Control(options), error, trace)
        except Exception:  # the job's own failure is what counts
            pass
        return before(kind, error, trace)

    sys.excepthook = told


def tell(control, error, trace):
    document = {
        "host": control.host, "pid": os.getpid(), "rank": number("RANK"), "world_size": number("WORLD_SIZE"),
        "restart": restart(), "at_unix_ns": time.time_ns(),
        "exception": kind_of(error), "message": text_of(error)[:MESSAGE_CHARS], "place": place(error, trace),
        "torch": "torch" in sys.modules, "ranks": launched(error),
    }  # fmt: skip
    control.write("profile_failure/1", "failure-{}-{}.json".format(control.host, os.getpid()), document)


def number(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def launched(error):
    """Ranks that failed, as torchrun (ChildFailedError) and multiprocessing's spawn (ProcessException) know them."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):
        return [
            {"rank": int(rank), "pid": each.pid, "code": each.exitcode, "message": text(each.message)}
            for rank, each in failures.items()
        ]
    rank, pid = getattr(error, "error_index", None), getattr(error, "error_pid", None)
    if rank is None or pid is None:
        return []
    return [
        {"rank": rank, "pid": pid, "code": getattr(error, "exit_code", 1), "message": text(getattr(error, "msg", ""))}
    ]


def text(message):
    """Of an error file, which holds the traceback beside its last line."""
    if isinstance(message, dict):
        message = (message.get("extraInfo") or {}).get("py_callstack") or message.get("message")
    return str(message)[-MESSAGE_CHARS:] if message else None


def place(error, trace):
    """``file:line in function: code`` of the innermost line of the user's own; a line that does not parse."""
    if isinstance(error, SyntaxError) and error.filename:
        return "{}:{}: {}".format(error.filename, error.lineno, (error.text or "").strip())
    return place_of(trace)
