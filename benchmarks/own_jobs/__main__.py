"""``python -m benchmarks.own_jobs [OPTIONS]``."""

from __future__ import annotations

import sys

from benchmarks.own_jobs import main

main(sys.argv[1:])
