"""Two clocks of one step agree: events on the stream against the trace's own kernels; matrix products against the peak."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.conftest import Target

from stepscope.core.errors import Unavailable
from stepscope.machine.peaks.lookup import find

pytestmark = pytest.mark.timeout(900)

HERE = Path(__file__).parent
CLOSE = {"cuda": 0.03, "cpu": 0.25}
"""Relative distance allowed. On the CPU, profiling itself lies between the two clocks' readings."""


@pytest.fixture(autouse=True)
def _one_process(target: Target) -> None:
    if target.ranks > 1:
        pytest.skip("one process is enough")


def run(target: Target, program: str, *arguments: str) -> dict[str, float]:
    """What a program of this folder prints as JSON."""
    done = subprocess.run(
        [sys.executable, str(HERE / program), target.device, *arguments],
        capture_output=True, text=True, timeout=600, cwd=target.cli.folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_phases_by_events_are_those_of_the_trace(target: Target) -> None:
    by_events = run(target, "phases_program.py", "rank-0.json")
    document = target.cli("trace", "rank-0.json", "--show", "all", "--json").json()
    traced = {row["phase"]: row["compute_ns"] + row["exposed_memory_ns"] for row in document["phases"]}
    for phase in ("forward", "backward", "optimizer"):
        assert traced[phase] == pytest.approx(by_events[phase], rel=CLOSE[target.device]), (phase, traced, by_events)


def test_matrix_products_come_near_the_cards_peak_and_never_above_it(target: Target) -> None:
    rates = run(target, "matmul_program.py")
    if target.device == "cpu":
        assert min(rates.values()) > 0
        pytest.skip("no peak is known of a CPU: the program ran")
    card = find(target.device_name)
    if isinstance(card, Unavailable):
        pytest.skip(f"no peak to compare with: {card.reason}")
    for dtype, rate in rates.items():
        peak = card.peak(dtype)
        if not isinstance(peak, Unavailable):
            assert 0.4 * peak < rate <= 1.02 * peak, f"{dtype}: {rate / 1e12:.1f} of {peak / 1e12:.1f} TFLOP/s"
