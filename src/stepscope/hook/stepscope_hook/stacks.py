"""Where a rank is that hangs: asked for by a file, answered by the diary's thread, which runs while a collective waits.

``stack-request.json`` in ``.stepscope``, written anew (renamed into place) for each request, makes every rank write
``stack-RRRRR-A.txt``, the Python stacks of all threads, and ``flight-RRRRR-A.json``, torch's flight recorder, where it is
on. Names are those of the diary; pPID in place of A for a process that has made no step.
"""

import os
import sys
import threading
import traceback

from stepscope_hook.control import identity, utc

REQUEST = "stack-request.json"
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Of torch's flight recorder: NCCL's own first, where it is built in."""


class Stacks:
    def __init__(self, control, pages):
        self.control = control
        self.pages = pages
        self.answered = None

    def answer(self):
        """Once for each request."""
        try:
            found = os.stat(self.control.path(REQUEST))
        except OSError:
            return
        request = (found.st_mtime_ns, found.st_ino)
        if request == self.answered:
            return
        self.answered = request
        name = self.pages.name or "{:05d}-p{}".format(identity()[0], os.getpid())
        self.put("stack-{}.txt".format(name), stacks_of_all())
        recorded = flight_recorder()
        if recorded is not None:
            self.put("flight-{}.json".format(name), recorded)

    def put(self, name, data):
        temporary = self.control.path(".{}.{}".format(name, os.getpid()))
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, self.control.path(name))


def stacks_of_all():
    """The main thread first, the innermost call last, as in a traceback."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, here = threading.main_thread().ident, threading.get_ident()
    lines = ["pid {} at {}\n".format(os.getpid(), utc())]
    for ident, frame in sorted(sys._current_frames().items(), key=lambda each: each[0] != main):
        if ident != here:
            lines.append("\nthread {} ({}):\n".format(names.get(ident, "?"), ident))
            lines.extend(traceback.format_stack(frame))
    return "".join(lines).encode("utf-8", "replace")


def flight_recorder():
    """JSON of the collectives that this process entered last; None where it is not recorded."""
    module = sys.modules.get("torch._C._distributed_c10d")
    for name in DUMPS:
        dump = getattr(module, name, None)
        if dump is None:
            continue
        try:
            found = dump(True, False)
        except TypeError:
            found = dump()
        except Exception:  # it is off, or of another version
            continue
        found = found.encode() if isinstance(found, str) else bytes(found)
        if b'"entries"' in found:
            return found
    return None
