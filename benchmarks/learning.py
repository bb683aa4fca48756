"""Presets mnist and ag-news on real files: test accuracy on 1 and 2 ranks. Needs DATA=DIR; about half an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._report import heading

BARS = {"mnist": 0.95, "ag-news": 0.85}
"""Test accuracy that both numbers of ranks have to reach with the presets' own settings."""

APART = 0.01
"""Largest difference between 1 and 2 ranks: the global batch and the order of samples are the same."""


def main() -> None:
    heading("learning: test accuracy of the presets, 1 rank and 2 ranks")
    data = os.environ.get("DATA", "")
    if not Path(data).is_dir() or not data:
        sys.exit("learning needs the data sets: DATA=DIR python -m benchmarks learning")
    with tempfile.TemporaryDirectory() as folder:
        for preset, bar in BARS.items():
            accuracy = _accuracies(preset, Path(data).resolve(), Path(folder) / preset)
            apart = abs(accuracy[1] - accuracy[2])
            reached = min(accuracy.values()) >= bar and apart <= APART
            print(
                f"{preset}: {accuracy[1]:.4f} on 1 rank, {accuracy[2]:.4f} on 2, {apart:.4f} apart; "
                f"bar: at least {bar} and at most {APART} apart: {'reached' if reached else 'NOT REACHED'}",
                flush=True,
            )


def _accuracies(preset: str, data: Path, run: Path) -> dict[int, float]:
    """World size -> test accuracy after the last epoch; ``ddp`` stands for all strategies on 2 ranks."""
    command = [sys.executable, "-m", "stepscope.cli", "bench", "--preset", preset, "--data-dir", str(data),
               "--set", "axes.strategy=[ddp]", "-o", str(run), "--json"]  # fmt: skip
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return {row["world_size"]: row["test_accuracy"] for row in json.loads(done.stdout)["cells"]}


if __name__ == "__main__":
    main()
