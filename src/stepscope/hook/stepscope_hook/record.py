"""One step in the diary: its columns and flags (stepscope/records/profile.py), and what the kernel is asked for them."""

import math
import os
import struct
import time

WHOLE, DATA, BEFORE, FORWARD, BACKWARD, OPTIMIZER, COMM, OUTSIDE, CPU, INFERENCE, BEFORE_CPU, OTHER = range(12)
"""Parts of a step, and what else a record has of it; all but the last are its columns, named after them."""
NAMES = [name.lower() for name in list(globals()) if name.isupper()]
COLUMNS = tuple(name + "_ns" for name in NAMES[:OTHER])
RECORD = struct.Struct("<{}fHBB".format(len(COLUMNS)))
PARTS = {name: at for at, name in enumerate(NAMES) if at not in (WHOLE, OUTSIDE, CPU, BEFORE_CPU)}
"""Name -> part of a step that the training thread can be in: with what is outside they sum to the whole."""
NO_DELAY = 65535
PROFILED, WINDOW, DEVICE_CLOCK, OWN_PROFILER, FIRST = 1, 2, 4, 8, 16
NAN = math.nan


SCHEDSTAT = "/proc/thread-self/schedstat"


class RunQueue:
    """Measures the time that the thread which made this object was ready to run and had no processor.

    The same file holds CPU time, but only as of the last tick of the scheduler (up to 4 ms ago): ``thread_time_ns`` is asked
    for that.
    """

    def __init__(self):
        try:
            self.file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            self.delay_ns()
        except (OSError, ValueError, IndexError):
            self.close()

    def delay_ns(self):
        """Return the time in ns, or None where it is not known."""
        if self.file is None:
            return None
        return int(os.pread(self.file, 64, 0).split()[1])

    def close(self):
        file, self.file = getattr(self, "file", None), None
        if file is not None:
            os.close(file)


def process_age_ns():
    """Return the ns since this process began, or None where it is not known."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return max(int(age * 1e9), 0)


def cores():
    """Return the number of processors that this process may use, or None where it is not known."""
    try:
        return len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        return os.cpu_count()
