"""What SCHED_BATCH does for small messages on gloo: 1 KiB all-reduce under it and under the default policy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks._commands import comm
from benchmarks._report import heading

ALTERNATIONS, ITERATIONS = 5, 400


def main() -> None:
    heading("mean time of a 1 KiB all-reduce, gloo on loopback, SCHED_BATCH / default policy")
    for ranks in (2, 4):
        found: dict[str, list[float]] = {"batch": [], "inherit": []}
        policies: dict[str, set[str | None]] = {"batch": set(), "inherit": set()}
        for number in range(ALTERNATIONS):
            order = ("batch", "inherit") if number % 2 == 0 else ("inherit", "batch")
            for scheduler in order:
                with tempfile.TemporaryDirectory() as folder:
                    (row,) = comm(
                        Path(folder) / "run", "--ops", "all_reduce", "--sizes", "1K", "--ranks", str(ranks),
                        "--warmup", "20", "--iters", str(ITERATIONS),
                        env={"STEPSCOPE_SCHEDULER": scheduler},
                    )  # fmt: skip
                found[scheduler].append((row.time_ns_mean or 0) / 1e3)
                policies[scheduler].add(row.scheduler_policy)
        batch, default = (np.array(found[name]) for name in ("batch", "inherit"))
        bar = "; bar: <= 0.333" if ranks == 2 else ""
        print(
            f"{ranks} ranks: {np.median(batch) / np.median(default):.3f}  ({policies['batch']}: {np.median(batch):.0f} us, "
            f"{batch.min():.0f} to {batch.max():.0f}; {policies['inherit']}: {np.median(default):.0f} us, "
            f"{default.min():.0f} to {default.max():.0f}; {ALTERNATIONS} alternations){bar}",
            flush=True,
        )


if __name__ == "__main__":
    main()
