"""Who this process is, and the files through which ranks and the command line agree on a window of steps.

In the folder ``.stepscope`` of the output: ``request-N.json`` (the command line asks for window N), ``window-N.json``
(rank 0 says at which step it begins and how many it has), ``window-N-stop.json`` (rank 0 ends it early), ``rank-R.json`` (a
rank is there, and what its job is made of), ``process-HOST-PID.json`` (a process imported torch), ``window-N-rank-R.json``
(how the window went on a rank); the diary's ``diary-``, ``events-`` and ``end-`` files (records/profile.py), with
``end-RRRRR-pPID.json`` of a process that made no step; ``stack-request.json``, ``stack-`` and ``flight-`` files (ends.py).
"""

import json
import os
import socket
import sys
import time


def say(text):
    """Write one line to stderr: only where nothing can be written into the output folder."""
    try:
        print("stepscope: " + text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # stderr is closed, nobody is left to read it


def utc():
    now = time.time()
    return "%s.%03dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)), int(now * 1000) % 1000)


class Control:
    """The files of one process. options: what the command line passed through the environment."""

    def __init__(self, options):
        self.options = options
        self.output = options["output"]
        self.folder = os.path.join(self.output, ".stepscope")
        self.shared = os.path.isfile(os.path.join(self.output, "profile.json"))
        """Whether this host sees the output folder that the command line made."""
        self.pid = os.getpid()
        self.host = socket.gethostname()

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        """Return the document, or None where it is not there (yet) or not complete."""
        try:
            with open(self.path(name), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def write(self, kind, name, document):
        """Write the whole file or nothing. Returns the reason where it could not be written."""
        head = {"schema": "stepscope." + kind, "tool_version": self.options["tool_version"], "created": utc()}
        head.update(document)
        temporary = self.path(".{}.{}".format(name, self.pid))
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(head, file)
            os.replace(temporary, self.path(name))
        except (OSError, ValueError) as error:
            try:
                os.remove(temporary)
            except OSError:
                pass  # it was never made
            return "{}: {}".format(self.path(name), error)
        return None


def identity():
    """Return (rank, world size) of this process: torch.distributed's where it is initialised, else the launcher's, else 0 of
    1."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in LAUNCHERS:
        if os.environ.get(rank, "").isdigit() and os.environ.get(world, "").isdigit():
            return int(os.environ[rank]), int(os.environ[world])
    return 0, 1


LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Environment variables by which launchers state rank and world size."""
