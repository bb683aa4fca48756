"""One step in the diary: its columns and flags, as stepscope/records/profile.py defines them."""

import math
import struct

RECORD = struct.Struct("<9fHBB")
WHOLE, DATA, BEFORE, FORWARD, BACKWARD, OPTIMIZER, COMM, OUTSIDE, CPU, OTHER = range(10)
"""Parts of a step; the first nine are the columns of a record."""
PHASES = {DATA: "data", BEFORE: "before", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer",
          COMM: "comm", OUTSIDE: "outside", OTHER: "other"}  # fmt: skip
NO_DELAY = 65535
PROFILED, WINDOW, DEVICE_CLOCK, OWN_PROFILER, FIRST = 1, 2, 4, 8, 16
NAN = math.nan
