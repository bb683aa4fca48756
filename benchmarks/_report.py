"""How every benchmark prints its figure."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from benchmarks._rounds import Comparison, compare_rounds


def compare(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], again: Sequence[Sequence[float]]) -> Comparison:
    """Rounds that took turns: A, B, A again."""
    return compare_rounds(a, b, a_again=again, rng=np.random.default_rng(0))


def heading(title: str) -> None:
    print(f"\n== {title} ({os.cpu_count()} cores)", flush=True)


def show(what: str, result: Comparison, *, bar: str) -> None:
    """``what``: "A / B" in words. bar: what the figure has to reach."""
    ratio, aa = result.ratio, result.aa
    interval = "too few rounds" if ratio.low is None else f"95% {ratio.low:.3f} to {ratio.high:.3f}"
    spread = "" if aa is None or aa.low is None else f"; A/A {aa.value:.3f} ({aa.low:.3f} to {aa.high:.3f})"
    print(f"{what}: {ratio.value:.3f} ({interval}; {result.rounds} rounds{spread}); bar: {bar}", flush=True)
