"""What the timed loop itself costs: the operation replaced by a no-op, against a 4 KB all-reduce on gloo."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks._commands import comm
from benchmarks._report import heading
from stepscope.rank.comm.loop import time_calls

ROUNDS, CALLS = 20, 5000


def main() -> None:
    heading("timed loop with a no-op / 4 KB all-reduce on 2 gloo ranks")

    def nothing() -> None:
        return None

    costs = [float(np.median(time_calls(nothing, CALLS, pace=nothing))) for _ in range(ROUNDS)]
    back_to_back = [float(np.median(time_calls(nothing, CALLS))) for _ in range(ROUNDS)]
    with tempfile.TemporaryDirectory() as folder:
        (row,) = comm(
            Path(folder) / "run", "--ops", "all_reduce", "--sizes", "4K", "--ranks", "2", "--iters", "1000", "--warmup", "20"
        )  # fmt: skip
    call_ns = row.time_ns_median or 0.0
    for name, found in (("barrier before each call", costs), ("back to back", back_to_back)):
        cost = float(np.median(found))
        print(
            f"{name}: {cost:.0f} ns ({min(found):.0f} to {max(found):.0f}; {ROUNDS} rounds) of {call_ns / 1e3:.0f} us "
            f"= {cost / call_ns:.2%}; bar: <= 2%",
            flush=True,
        )


if __name__ == "__main__":
    main()
