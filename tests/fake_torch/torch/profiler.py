import json
import os
import time
from enum import Enum

from torch.autograd.profiler import profile as _profile


class ProfilerActivity(Enum):
    CPU = 0
    CUDA = 2


class record_function:  # noqa: N801 - torch's name
    spans = []  # noqa: RUF012

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.begun = time.perf_counter_ns()

    def __exit__(self, *exception):
        now = time.perf_counter_ns()
        self.spans.append({
            "ph": "X", "cat": "user_annotation", "name": self.name, "pid": os.getpid(), "tid": os.getpid(),
            "ts": self.begun / 1e3, "dur": (now - self.begun) / 1e3, "args": {},
        })  # fmt: skip
        self.spans.append(self.spans[-1] | {"cat": "cpu_op", "name": "aten::mm", "dur": (now - self.begun) / 2e3})


class _KinetoProfile:
    def __init__(self, **settings):
        self.settings = settings
        self.metadata = {}

    def prepare_trace(self):
        self.profiler = _profile()
        self.profiler._prepare_trace()

    def start_trace(self):
        self.profiler._start_trace()
        record_function.spans.clear()

    def stop_trace(self):
        self.profiler.__exit__(None, None, None)

    def add_metadata_json(self, key, value):
        self.metadata[key] = json.loads(value)

    def export_chrome_trace(self, path):
        with open(path, "w") as file:  # noqa: PTH123
            json.dump({"schemaVersion": 1, **self.metadata, "traceEvents": record_function.spans}, file)
