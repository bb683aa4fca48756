"""Who uses the processors that this process may use: everybody together, this process, its worker processes, the command of
stepscope; and what of the wait for data was CPU time. records/hardware.py of stepscope says what the numbers are.
"""

import os
import socket
import sys
import time

from stepscope_hook.record import NAN
from stepscope_hook.samples import read

STAT_AT_MOST = 1 << 17
"""Bytes of /proc/stat: 1,000 processors have 80 each."""
IDLE, WAITS_FOR_IO = 3, 4
"""Fields of a processor's line that hold time in which nobody used it."""


class Load:
    """The source of one process. diary: its data waits; command: host and process of the command line, None: not known."""

    columns = ("busy_s", "process_s", "workers_s", "stepscope_s", "data_s", "data_cpu_s")
    name = "load"

    def __init__(self, diary, command=None):
        self.diary = diary
        self.missing = {}
        self.tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self.cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        host, pid = command or (None, None)
        self.command = pid if host == socket.gethostname() else None
        self.of_workers = 0.0
        """CPU seconds of worker processes, ended ones too, as they were seen last."""
        self.workers()
        self.before = self.totals()

    def facts(self):
        return {"name": self.name, "cpus": self.cpus, "missing": self.missing}

    def read(self):
        """Return a number for each column since the last call; NaN where the system does not say."""
        now, before = self.totals(), self.before
        self.before = now
        since = [after - earlier for after, earlier in zip(now, before)]
        return [*since[:2], self.workers(), *since[2:]]

    def totals(self):
        data_ns, cpu_ns = self.diary.data_used
        return (
            self.busy(), time.process_time(), NAN if self.command is None else self.of_process(self.command),
            data_ns / 1e9, cpu_ns / 1e9,
        )  # fmt: skip

    def busy(self):
        """Return the seconds that the processors of this process were used by anybody."""
        ticks, seen = 0, 0
        for line in read("/proc/stat", STAT_AT_MOST).splitlines():
            fields = line.split()
            if fields and fields[0][:3] == b"cpu" and fields[0][3:].isdigit() and int(fields[0][3:]) in self.cpus:
                used = [int(field) for field in fields[1:9]]
                ticks += sum(used) - used[IDLE] - used[WAITS_FOR_IO]
                seen += 1
        return ticks * self.tick_s if seen and seen == len(self.cpus) else NAN

    def workers(self):
        """Return the CPU seconds since the last call of processes that this one started with multiprocessing: loaders'
        workers."""
        children = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
        ended = os.times()
        used = ended.children_user + ended.children_system
        for pid in [getattr(child, "pid", None) for child in list(children)]:
            seconds = NAN if pid is None else self.of_process(pid)
            used += seconds if seconds == seconds else 0.0
        since, self.of_workers = max(0.0, used - self.of_workers), max(used, self.of_workers)
        return since

    def of_process(self, pid):
        """Return the CPU seconds of a process and of those of its children that have ended."""
        fields = read("/proc/{}/stat".format(pid), 1024).rpartition(b")")[2].split()
        return sum(int(field) for field in fields[11:15]) * self.tick_s if len(fields) > 15 else NAN
