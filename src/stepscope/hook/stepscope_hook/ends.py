"""How the process ended, as Python saw it."""

import linecache
import os
import sys
import sysconfig
import time

from stepscope_hook.control import identity

LONGEST = 300
OWN = os.path.dirname(os.path.abspath(__file__))


def write_end(control, pages, diary):
    """end-RRRRR-A.json, or end-RRRRR-pPID.json of a process that made no step."""
    error = getattr(sys, "last_value", None)
    if pages.name is None:
        write_early_end(control)
        return
    document = head(control, diary.rank, diary.world)
    document.update(described(error), steps=diary.number, phase=diary.phase_of(error))
    control.write("rank_end/1", "end-" + pages.name + ".json", document)


def write_early_end(control):
    """Of a process that made no step."""
    if is_launcher():
        return
    rank, world = identity()
    document = head(control, rank, world)
    document.update(described(getattr(sys, "last_value", None)))
    control.write("rank_end/1", "end-{:05d}-p{}.json".format(rank, os.getpid()), document)


def head(control, rank, world):
    return {
        "rank": rank, "world_size": world, "host": control.host, "pid": os.getpid(), "restart": restart(),
        "kind": "exit", "steps": 0, "at_unix_ns": time.time_ns(),
    }  # fmt: skip


def described(error):
    """What an exception that nobody caught says."""
    if error is None:
        return {}
    return {"kind": "exception", "exception": kind_of(error), "message": text_of(error)[:LONGEST],
            "place": place_of(getattr(error, "__traceback__", None))}  # fmt: skip


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
    """The traceback without frames of this package."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN):
        trace = trace.tb_next
    each = trace
    while each is not None:
        after = each.tb_next
        while after is not None and after.tb_frame.f_code.co_filename.startswith(OWN):
            after = after.tb_next
        each.tb_next = after
        each = after
    return trace


def restart():
    """How often torchrun had restarted the ranks."""
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
    """``file:line in function: code`` of the innermost line of the user's own, else of the innermost one; None without."""
    own = innermost = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(OWN):
            innermost = (code.co_filename, trace.tb_lineno, code.co_name)
            if not is_library(code.co_filename):
                own = innermost
        trace = trace.tb_next
    found = own or innermost
    if found is None:
        return None
    line = linecache.getline(found[0], found[1]).strip()
    return "{}:{} in {}: {}".format(found[0], found[1], found[2], line)


def is_library(path):
    if path.startswith("<") or "site-packages" in path or "dist-packages" in path:
        return True
    paths = sysconfig.get_paths()
    return any(path.startswith(paths[key] + os.sep) for key in ("stdlib", "platstdlib") if paths.get(key))
