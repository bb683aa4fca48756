"""What outlives a process that ends without a word: memory of it that stepscope opens while it runs (launch/black_boxes.py).

An anonymous file without a name on any disk: its number is in ``process-HOST-PID.json``, and it is read as
``/proc/PID/fd/NUMBER``. First ``STATE`` bytes: finished steps (uint64, written by the training thread after each), when the
diary's thread last looked (ns of the wall clock, uint64), the identity of the main thread (uint64), and the part of the step
that it saw (text, padded with zeros). Behind them ``faulthandler`` writes the stacks of all threads when SIGTERM comes,
whatever the threads do, before the signal does what it would have done: a launcher ends by it the ranks that were left.
"""

import faulthandler
import mmap
import os
import signal
import threading
import time

NAME = "stepscope"
STATE = 64
PART = slice(24, STATE)


class BlackBox:
    """The black box of this process; number is None where there is none: another system, or no memory."""

    def __init__(self):
        self.number = self.memory = self.words = None
        try:
            number = os.memfd_create(NAME)
        except (OSError, AttributeError):
            return
        try:
            self.open(number)
        except (OSError, ValueError, AttributeError):
            self.words = None
            os.close(number)

    def open(self, number):
        os.posix_fallocate(number, 0, STATE)
        self.memory = mmap.mmap(number, STATE)
        self.words = memoryview(self.memory)[: PART.start].cast("Q")
        self.words[2] = threading.main_thread().ident
        os.lseek(number, STATE, os.SEEK_SET)
        if threading.current_thread() is threading.main_thread():
            faulthandler.register(signal.SIGTERM, number, all_threads=True, chain=True)
        self.number = number

    def step(self, number):
        """Write down how many steps have ended."""
        if self.words is not None:
            self.words[0] = number

    def look(self, part):
        """Write down the part that the training thread is in, as another thread sees it."""
        if self.words is not None:
            self.memory[PART] = part.encode()[: STATE - PART.start].ljust(STATE - PART.start, b"\0")
            self.words[1] = time.time_ns()

    def forget(self):
        """Let go of the memory in a fork: it is the other process's."""
        if self.number is not None:
            faulthandler.unregister(signal.SIGTERM)
        self.number = self.words = None
