"""Memory of this process over time: a small record about once a second, after an hour every ten, in a file beside the diary.

records/profile.py of stepscope says what the numbers are. All of it runs on the thread of ``pages.py``: counters of the
kernel and of torch's allocator are read, the device is asked nothing, and what fails ends the samples alone.
"""

import ctypes
import os
import struct
import sys
import time

from stepscope_hook.record import NAN

SAMPLE = struct.Struct("<dI6f")
EVERY_S, LATER_S, LATER_FROM_S = 1.0, 10.0, 3600.0
CGROUPS = (
    (b"0::", "/sys/fs/cgroup", "memory.max", "memory.current", b"inactive_file "),
    (b":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file "),
)
"""Rows of version 2 and 1: mark of the line in /proc/self/cgroup, mount, limit, what is used, and the part of it that can be
given back (a line of memory.stat)."""
NO_LIMIT = 1 << 60


class Samples:
    """The record of one process. diary: its steps, and where a note goes."""

    def __init__(self, diary):
        self.diary = diary
        self.on = True
        self.file = self.begun = self.limits = None
        self.due = 0.0
        self.devices = ()
        """Numbers of the CUDA devices that the parameters are on."""

    def look(self):
        """Take one sample, where it is time for it; called by the thread."""
        name, now = self.diary.pages.name, time.monotonic()
        if not self.on or name is None or now < self.due:
            return
        if self.begun is None:
            self.begun = now
        self.due = now + (EVERY_S if now - self.begun < LATER_FROM_S else LATER_S)
        try:
            record = SAMPLE.pack(
                self.diary.unix_s(), self.diary.number & 0xFFFFFFFF, *resident(), self.available(), *self.on_devices()
            )
            if self.file is None:
                path = self.diary.control.path("samples-" + name + ".bin")
                self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            if os.write(self.file, record) < SAMPLE.size:
                raise OSError("the disk is full")
        except Exception as error:  # the job goes on, and its diary too
            self.on = False
            self.diary.note("memory: {}: {}".format(type(error).__name__, error))

    def available(self):
        """Return the bytes that the host, or the control group of this process, has left."""
        if self.limits is None:
            self.limits = limits()
        left = [1024.0 * value for value in [after(read("/proc/meminfo", 512), b"MemAvailable:")] if value == value]
        for folder, most, used, given_back in self.limits:
            free = most - float(read(os.path.join(folder, used)) or NAN)
            left += [free + after(read(os.path.join(folder, "memory.stat"), 1 << 14), given_back)]
        return min((size for size in left if size == size), default=NAN)

    def on_devices(self):
        """Return (allocated, reserved, all there is) of the devices together."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if not self.devices or cuda is None or not cuda.is_initialized():
            return NAN, NAN, NAN
        kept = [cuda.memory_stats(device) for device in self.devices]
        used = (sum(stats.get(key + "_bytes.all.current", 0) for stats in kept) for key in ("allocated", "reserved"))
        return (*used, sum(cuda.get_device_properties(device).total_memory for device in self.devices))


def resident():
    """Return (bytes of this process in memory, of them those of files and shared memory); NaN where the system does not
    say."""
    fields = read("/proc/self/statm").split()
    return tuple(int(field) * os.sysconf("SC_PAGE_SIZE") for field in fields[1:3]) if len(fields) > 2 else (NAN, NAN)


def give_back_memory():
    """Return to the system what was freed just now, which the process would seem to hold from here on: a few MB of a list of
    its objects, some hundred of the profiler. Only the C library of GNU/Linux can (malloc_trim(3)).
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library, which keeps what it keeps


def limits():
    """Return (folder, limit, file of what is used, what of it is no loss) of each control group that limits this process."""
    groups = []
    for line in read("/proc/self/cgroup", 1 << 14).splitlines():
        for mark, mount, limit, used, given_back in CGROUPS:
            if mark not in line:
                continue
            parts = [word for word in os.fsdecode(line.rpartition(b":")[2]).split("/") if word not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                folder = os.path.join(mount, *parts[:depth])
                most = read(os.path.join(folder, limit)).strip()
                if most.isdigit() and int(most) < NO_LIMIT:
                    groups.append((folder, int(most), used, given_back))
    return groups


def after(text, key):
    """Return the number behind ``key``, or NaN where there is none."""
    rest = text.partition(key)[2].split(None, 1)
    return float(rest[0]) if rest else NAN


def read(path, most=256):
    """Return the bytes of a small file; none where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, most)
        finally:
            os.close(file)
    except OSError:
        return b""
