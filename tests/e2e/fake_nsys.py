#!/usr/bin/env python3
"""As much of nsys as `stepscope profile --nsys` uses: it runs the program, leaves a report, and exports it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

NEW = """usage: nsys profile [<args>] [application] [<application args>]

    -c, --capture-range=
         Possible values are none, cudaProfilerApi, nvtx, hotkey.
    --capture-range-end=
         Possible values are 'none', 'stop', 'stop-shutdown', 'repeat[:N]'.
    --cpuctxsw=
         Possible values are 'process-tree', 'system-wide', or 'none'.
    -s, --sample=
         Possible values are 'process-tree', 'system-wide', or 'none'.
    -t, --trace=
         Possible values are 'cuda', 'nvtx', 'cublas', 'cublas-verbose', 'cudnn', 'nccl', 'mpi',
         'osrt', 'opengl' or 'none'.
         Select the API(s) to trace.
    -w, --show-output=
"""
OLD = """usage: nsys profile [<args>] [application] [<application args>]

    -c, --capture-range=
         Possible values are none, cudaProfilerApi, nvtx.
    --stop-on-range-end=
         Possible values are 'true' or 'false'.
    -t, --trace=
         Possible values are 'cuda', 'nvtx', 'osrt', 'cublas', 'openacc' or 'none'.
    -w, --show-output=
"""


def main() -> int:
    old = os.environ.get("FAKE_NSYS_VERSION") == "old"
    words = sys.argv[1:]
    if words == ["--version"]:
        sys.stdout.write(
            f"NVIDIA Nsight Systems version {'2020.3.4.32-52657a0' if old else '2025.1.1.131-251135540420v0'}\n"
        )
    elif words == ["profile", "--help"]:
        sys.stdout.write(OLD if old else NEW)
    elif words[0] == "export":
        shutil.copy(os.environ["FAKE_NSYS_EXPORT"], words[words.index("--output") + 1])
    else:
        at = next(i for i, word in enumerate(words) if i and not word.startswith("-"))
        output = next(word.partition("=")[2] for word in words[:at] if word.startswith("--output="))
        output = re.sub(r"%q\{(\w+)\}", lambda name: os.environ[name[1]], output)
        marks = f"{output}.marks"
        done = subprocess.run(words[at:], env={**os.environ, "FAKE_NSYS": marks})
        if Path(marks).exists():
            Path(marks).rename(f"{output}{'.qdrep' if old else '.nsys-rep'}")
        return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
