"""What the hardware says beside the diary: each rank its own GPU and processors once a second, one process a host the
network ports.

All of it is on a thread of its own: where a driver does not answer, that thread alone stands still. records/hardware.py of
stepscope says what the files hold. Nothing here raises into the job; a fact that is not known is named with the reason.
"""

import json
import os
import struct
import threading
import time

from stepscope_hook.control import utc
from stepscope_hook.devices import Device, Driver, NotToldError
from stepscope_hook.load import Load
from stepscope_hook.ports import ports
from stepscope_hook.samples import EVERY_S, LATER_FROM_S, LATER_S

PORTS_EVERY_S = 10.0
MOST_S = 1.0
"""So long the end of the process waits for a driver that does not answer."""
MOST_ATTEMPTS = 1000
MOST_NOTES = 3
"""So many notes are made of one sample: a driver that is gone knows none of twelve facts, for one reason."""


class Hardware:
    """The sampler of one process. samples: which devices the parameters are on."""

    def __init__(self, diary, samples):
        self.diary, self.samples = diary, samples
        self.thread = None
        self.stop = threading.Event()

    def look(self):
        """Begin the thread once the diary is open; called about once a second."""
        if self.thread is None and self.diary.pages.name is not None and not self.stop.is_set():
            thread = threading.Thread(target=self.run, name="stepscope-hardware", daemon=True)
            thread.start()
            self.thread = (
                thread  # only now: the process may end meanwhile, and a thread that has not begun cannot be joined
            )

    def close(self):
        """Stop as the process ends: the driver's library must not be asked while it is being torn down."""
        self.stop.set()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(MOST_S)

    def run(self):
        driver, began = None, time.monotonic()
        try:
            driver, series = self.begin()
            while series:
                now = time.monotonic()
                for samples in list(series):
                    if now < samples.due:
                        continue
                    samples.due = now + (samples.every_s if now - began < LATER_FROM_S else LATER_S)
                    if not samples.sample(self.diary.unix_s(), self.diary.number):
                        series.remove(samples)
                    for problem in samples.problems:
                        self.diary.note(problem)
                if self.stop.wait(max(0.0, min((samples.due for samples in series), default=now) - time.monotonic())):
                    for samples in series:
                        if samples.kind == "load":  # what a short job used since its only other sample
                            samples.sample(self.diary.unix_s(), self.diary.number)
                    break
        except Exception as error:  # the job goes on, and its diary too
            self.diary.note("hardware: {}: {}".format(type(error).__name__, error))
        if driver is not None:
            driver.close()

    def begin(self):
        """Return the driver, None where there is none, and the series of the files that are to be written."""
        driver, series = None, self.loads()
        if self.samples.devices:
            devices, missing = [], {}
            try:
                driver = Driver()
            except NotToldError as error:
                missing = dict.fromkeys(map(str, self.samples.devices), str(error))
            for ordinal in self.samples.devices if driver is not None else ():
                try:
                    devices.append(Device(driver, ordinal))
                except NotToldError as error:
                    missing[str(ordinal)] = str(error)
            path = self.diary.control.path("devices-" + self.diary.pages.name + ".bin")
            series += self.opened(os.open(path, NEW, 0o666), "devices", devices, missing, EVERY_S)
        if self.diary.world > 1:
            file = self.file_of_host()
            if file is not None:
                series += self.opened(file, "ports", ports(), {}, PORTS_EVERY_S)
        return driver, series

    def loads(self):
        """Return a list of the series of the processors."""
        load = Load(self.diary, self.diary.control.options.get("command"))
        path = self.diary.control.path("load-" + self.diary.pages.name + ".bin")
        return self.opened(os.open(path, NEW, 0o666), "load", [load], {}, EVERY_S)

    def opened(self, file, kind, sources, missing, every_s):
        """Return a list of the series that samples the sources; of none, the header alone says why."""
        head = {
            "schema": "stepscope.hardware/1", "tool_version": self.diary.control.options["tool_version"],
            "created": utc(), "rank": self.diary.rank, "world_size": self.diary.world, "host": self.diary.control.host,
            "pid": os.getpid(), "restart": self.diary.restart, "columns": list(sources[0].columns) if sources else [],
            kind: [source.facts() for source in sources], "missing": missing,
        }  # fmt: skip
        os.write(file, json.dumps(head).encode() + b"\n")
        if sources:
            return [Series(file, kind, sources, every_s)]
        os.close(file)
        return []

    def file_of_host(self):
        """Return a file for the ports of this host, or None where another process that lives writes one."""
        for attempt in range(MOST_ATTEMPTS):
            path = self.diary.control.path("ports-{}-{}.bin".format(self.diary.control.host, attempt))
            try:
                return os.open(path, NEW, 0o666)
            except FileExistsError:
                if lives(path):
                    return None
        return None


NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


def lives(path):
    """Whether the process of this host that began the file is there; one that has not written its header yet is."""
    try:
        with open(path, "rb") as file:
            head = file.readline()
        os.kill(int(json.loads(head)["pid"]), 0) if head.endswith(b"\n") else None
    except (ProcessLookupError, ValueError, KeyError):
        return False
    except OSError:
        return True
    return True


class Series:
    """One file of samples: time, step, then the columns of each source."""

    def __init__(self, file, kind, sources, every_s):
        self.file, self.kind, self.sources, self.every_s = file, kind, sources, every_s
        self.record = struct.Struct("<dI{}f".format(len(sources) * len(sources[0].columns)))
        self.due = 0.0
        self.reported = self.missing()
        self.problems = []
        """Problems that the last sample had for the first time."""

    def missing(self):
        return {(source.name, column): reason for source in self.sources for column, reason in source.missing.items()}

    def sample(self, unix_s, step):
        """Write a sample; return whether a next one is worth taking."""
        values = [value for source in self.sources for value in source.read()]
        missing = self.missing()
        new = sorted({reason for of, reason in missing.items() if of not in self.reported})
        self.reported, self.problems = missing, ["{}: {}".format(self.kind, reason) for reason in new[:MOST_NOTES]]
        useful = any(value == value for value in values)
        try:
            if os.write(self.file, self.record.pack(unix_s, step & 0xFFFFFFFF, *values)) < self.record.size:
                raise OSError("the disk is full")
        except OSError as error:
            useful = False
            self.problems.append("{}: {}".format(self.kind, error))
        if not useful:
            os.close(self.file)
        return useful
