"""Laws of scaling against throughputs made from known parameters."""

from __future__ import annotations

import pytest

from stepscope.core.errors import Unavailable
from stepscope.records.nouns import Estimate, Measured
from stepscope.results.scaling_laws import ScalingLaw, SizePoint, fit_amdahl, fit_usl

SIZES = (1, 2, 4, 8, 16)


def usl(n: int, serial: float, coherency: float = 0.0) -> float:
    return n / (1 + serial * (n - 1) + coherency * n * (n - 1))


def points(serial: float, coherency: float = 0.0, *, off: tuple[float, ...] = (), width: float | None = None):
    found = []
    for at, n in enumerate(SIZES):
        value = usl(n, serial, coherency) * (1 + (off[at] if off else 0.0))
        ends = None if width is None else (value * (1 - width), value * (1 + width))
        found.append(SizePoint(world_size=n, speedup=Measured.between(value, ends)))
    return found


def fitted(found: ScalingLaw | Unavailable) -> ScalingLaw:
    assert isinstance(found, ScalingLaw), found
    return found


@pytest.mark.parametrize("serial", [0.0, 0.02, 0.3])
def test_amdahl_gives_back_the_serial_fraction_of_exact_points(serial: float) -> None:
    law = fitted(fit_amdahl(points(serial)))
    assert law.serial_fraction.value == pytest.approx(serial, abs=1e-9)
    assert law.max_relative_error < 1e-9
    assert law.efficiency(16) == pytest.approx(usl(16, serial) / 16)
    assert law.most_speedup == (pytest.approx(1 / serial) if serial > 1e-6 else law.most_speedup)


def test_amdahl_against_the_textbook() -> None:
    """95% parallel on 4 ranks: 1 / (0.05 + 0.95 / 4) = 3.478."""
    law = fitted(fit_amdahl(points(0.05)))
    assert 4 * law.efficiency(4) == pytest.approx(1 / (0.05 + 0.95 / 4))


def test_the_baseline_may_be_on_several_ranks() -> None:
    """Relative to 2 ranks every speed-up has another unit; the fraction is the same."""
    base = usl(2, 0.1)
    found = [SizePoint(world_size=n, speedup=Estimate(value=usl(n, 0.1) / base)) for n in (2, 4, 8, 16)]
    assert fitted(fit_amdahl(found)).serial_fraction.value == pytest.approx(0.1)


def test_usl_gives_back_both_terms_and_the_peak() -> None:
    law = fitted(fit_usl(points(0.03, 0.002)))
    assert law.serial_fraction.value == pytest.approx(0.03)
    assert law.coherency.value == pytest.approx(0.002)
    assert law.best_world_size == pytest.approx((0.97 / 0.002) ** 0.5)
    best = max(range(1, 200), key=lambda n: usl(n, 0.03, 0.002))
    assert law.best_world_size == pytest.approx(best, abs=1)


def test_fewer_than_four_sizes_are_refused_and_named() -> None:
    found = fit_amdahl(points(0.05)[:3])
    assert isinstance(found, Unavailable)
    assert "3 different numbers of ranks (1, 2, 4)" in found.reason
    twice = [SizePoint(world_size=n, speedup=Estimate(value=float(n))) for n in (1, 2, 4, 4)]
    assert isinstance(fit_usl(twice), Unavailable), "two points of one size are one size"


def test_noise_of_the_points_widens_the_interval_around_the_truth() -> None:
    law = fitted(fit_amdahl(points(0.05, off=(0.0, 0.02, -0.02, 0.02, -0.01))))
    own = fitted(fit_amdahl(points(0.05, width=0.05)))
    narrow = fitted(fit_amdahl(points(0.05, width=0.01)))
    low, high = zip(
        *((each.serial_fraction.low, each.serial_fraction.high) for each in (law, own, narrow)), strict=True
    )
    assert max(low[:2]) < 0.05 < min(high[:2])
    assert high[0] - low[0] > 0.002
    assert high[1] - low[1] > 3 * (high[2] - low[2])


def test_super_linear_points_give_no_negative_fraction() -> None:
    law = fitted(fit_usl([SizePoint(world_size=n, speedup=Estimate(value=n**1.1)) for n in SIZES]))
    assert law.serial_fraction.value == 0.0
    assert law.coherency.value == 0.0
    assert law.best_world_size is None
    assert law.most_speedup is None
