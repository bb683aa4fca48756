"""The files of a diary: appended by a thread of this process about once a second, at first after each step, and at its end.

The training thread only puts bytes into memory. Where writing fails or takes long, memory is bounded: what does not fit is
dropped and counted, and the count is written once writing works again.
"""

import json
import os
import threading

from stepscope_hook.control import say, utc

FIRST_FLUSH_S = 0.2
FLUSH_S = 1.0
EACH_STEP = 16
"""Steps after each of which the thread writes at once: a rank that is killed early leaves where it was."""
MOST_S = 10.0
"""So long the end of the process waits for the last writes."""
MOST_BYTES = 1 << 20
"""Most bytes kept in memory of steps, and of events each: 26,000 steps."""
MOST_EVENTS = 100000
"""Most events written of one process: a job that saves or evaluates in every step would fill the disk with them."""


class Pages:
    """diary-, events- and end- files of one process. control: its folder."""

    def __init__(self, control):
        self.control = control
        self.each_second = []
        """Called by the thread about once a second, each guarded."""
        self.begin_again()

    def begin_again(self):
        """Forget the files: at the start, and in a fork of a process that has made no step."""
        self.pid = os.getpid()
        self.name = None
        """RRRRR-A, the name of the files, once they are open."""
        self.steps_file = None
        self.events_file = None
        self.steps = bytearray()
        self.events = bytearray()
        self.written_events = 0
        self.dropped = 0
        self.dropped_at = (0, 0)
        self.lock = threading.Lock()
        self.ended = False
        self.last = bool
        """What is written after everything else."""
        self.wake = threading.Event()
        """Set when the thread is to write now."""
        self.thread = None
        self.complained = False

    def open(self, rank, header):
        """Begin the diary of this process: the first name that is free. Raises OSError."""
        os.makedirs(self.control.folder, exist_ok=True)
        attempt = 0
        while True:
            name = "{:05d}-{}".format(rank, attempt)
            try:
                self.steps_file = os.open(
                    self.control.path("diary-" + name + ".bin"),
                    os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC,
                    0o666,
                )
                break
            except FileExistsError:
                attempt += 1
        self.name = name
        head = {"schema": "stepscope.diary/1", "tool_version": self.control.options["tool_version"], "created": utc()}
        head.update(header)
        self.steps[:0] = json.dumps(head).encode() + b"\n"

    def watch(self):
        """Begin the thread."""
        if self.thread is None and self.pid == os.getpid():
            self.thread = threading.Thread(target=self.run, name="stepscope", daemon=True)
            self.thread.start()

    def run(self):
        wait, ended = FIRST_FLUSH_S, False
        while not ended:
            self.wake.wait(wait)
            self.wake.clear()
            wait, ended = FLUSH_S, self.ended
            for task in [self.flush, self.last] if ended else [self.flush, *self.each_second]:
                try:
                    task()
                except Exception as error:  # the job goes on without it
                    self.complain("{}: {}".format(type(error).__name__, error))

    def step(self, record, number, at_ns):
        if len(self.steps) < MOST_BYTES:
            self.steps += record
        else:
            self.drop(number, at_ns)
        if number <= EACH_STEP:
            self.wake.set()

    def event(self, document):
        if len(self.events) < MOST_BYTES and self.written_events < MOST_EVENTS:
            self.events += json.dumps(document).encode() + b"\n"
            self.written_events += 1
        else:
            self.drop(document["step"], document["at_ns"])

    def drop(self, number, at_ns):
        if not self.dropped:
            self.dropped_at = (number, at_ns)
        self.dropped += 1

    def flush(self):
        """Write what is there."""
        if self.pid != os.getpid() or not self.lock.acquire(timeout=MOST_S):
            return
        try:
            if self.name is None:
                return
            self.steps_file = self.append(self.steps_file, None, self.steps)
            if self.dropped and not self.steps:
                (step, at_ns), count, self.dropped = self.dropped_at, self.dropped, 0
                what = {"kind": "dropped", "step": step, "at_ns": at_ns, "ns": 0, "count": count,
                        "what": "the diary could not be written fast enough, or is too long"}  # fmt: skip
                self.events += json.dumps(what).encode() + b"\n"
            if self.events:
                self.events_file = self.append(self.events_file, "events-" + self.name + ".jsonl", self.events)
        finally:
            self.lock.release()

    def append(self, file, name, buffer):
        """Take from ``buffer`` what can be written; return the file's number."""
        try:
            if file is None:
                file = os.open(self.control.path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            while buffer:
                done = os.write(file, bytes(buffer[: 1 << 18]))
                del buffer[:done]
        except OSError as error:
            self.complain(str(error))
        return file

    def complain(self, reason):
        if not self.complained:
            self.complained = True
            say("the diary of {} cannot be written: {}".format(self.name, reason))

    def close(self, last=bool):
        """End with the process: the thread writes what is left, then ``last``. Where the folder stands still, they wait for
        each other no longer than MOST_S."""
        self.last, self.ended = last, True
        self.wake.set()
        if self.thread is None or not self.thread.is_alive():
            self.flush()
            last()
        else:
            self.thread.join(MOST_S)

    def forget(self):
        """Forget the files in a fork: they are another process's."""
        self.ended = True
        self.name = None
