"""Where a window with ``steps: auto`` ends before its steps are done: rank 0 says so, and every rank ends at that step."""

import os

WINDOW_S = 20.0
TRACE_BYTES = 200e6
TRACE_PER_MEMORY = 0.9
"""Bytes of a trace for each byte by which the process grew while it was recorded: 0.87 measured with shapes (2026-11-23,
torch 2.13, CPU)."""


class Bounds:
    """Of one window on one rank. margin: steps from rank 0's word to the end, so that every rank has read it."""

    def __init__(self, window, margin):
        self.window = window
        self.margin = margin
        self.name = "window-{}-stop.json".format(window.number)
        self.memory = resident_bytes()
        self.last = None
        """Finished steps at which the window ends; None: as planned."""
        self.reason = None

    def over(self, count, elapsed_s):
        """Whether the window ends with this step."""
        if self.last is None:
            if self.window.steps.rank == 0:
                self.decide(count, elapsed_s)
            elif os.access(self.window.control.path(self.name), os.F_OK):
                found = self.window.control.read(self.name) or {}
                if found.get("restart") == self.window.steps.restart:
                    self.last, self.reason = found["last"], found["reason"]
        return self.last is not None and count >= self.last

    def decide(self, count, elapsed_s):
        grown = resident_bytes() - self.memory
        if elapsed_s > WINDOW_S:
            self.reason = "{:.0f} s had passed".format(elapsed_s)
        elif grown * TRACE_PER_MEMORY > TRACE_BYTES:
            self.reason = "the trace had about {:.0f} MB".format(grown * TRACE_PER_MEMORY / 1e6)
        else:
            return
        self.last = count + self.margin
        if self.margin:
            document = {"last": self.last, "reason": self.reason, "restart": self.window.steps.restart}
            self.window.control.write("profile_window_stop/1", self.name, document)


def resident_bytes():
    """0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
