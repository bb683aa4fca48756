"""What worker processes can hide: the bound of the waits, and that of the processors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.predict.loading import MOST_WORKERS, Loading, fewest_workers, hidden_share, step_with_workers

MS = 1e6


def loading(step: float, wait: float, *, workers: int = 0, used: float | None = None, cores: float = 1.0) -> Loading:
    return Loading(
        step_ns=step * MS, wait_ns=wait * MS, workers=workers, used_ns=None if used is None else used * MS, cores=cores
    )


def test_on_busy_cores_workers_hide_nothing() -> None:
    """Of three scripts on two cores, the waits promised 1.4 to 2.2 times as fast, and workers made them slower."""
    for step, wait in ((18.3, 10.0), (13.1, 6.0), (25.0, 7.0)):
        assert fewest_workers(loading(step, wait)) is not None
        assert fewest_workers(loading(step, wait, used=0.97 * step)) is None
        assert step_with_workers(loading(step, wait, used=step), 4) == pytest.approx(step * MS)


def test_loading_that_sleeps_is_hidden_on_busy_cores() -> None:
    assert step_with_workers(loading(17.0, 12.0, used=5.0), 4) == pytest.approx((5.0 + 0.02 * 12.0) * MS)
    assert fewest_workers(loading(17.0, 12.0, used=5.0)) == 3


@pytest.mark.parametrize(
    ("cores", "step"), [(4.0, 10.2), (1.5, 20 / 1.5), (1.0, 20.0), (0.5, 20.0)]
)  # rest 10 ms, loading 10 ms of CPU time
def test_a_step_is_as_long_as_the_processors_need_for_it(cores: float, step: float) -> None:
    assert step_with_workers(loading(20.0, 10.0, used=20.0, cores=cores), 2) == pytest.approx(step * MS, rel=0.01)


def test_more_workers_than_there_are_share_a_batch_that_these_are_never_idle_for() -> None:
    one = loading(12.0, 7.0, workers=1, used=9.0, cores=4.0)
    assert step_with_workers(one, 1) == one.step_ns
    assert step_with_workers(one, 2) == pytest.approx(6.0 * MS)
    assert fewest_workers(one) == 3


@given(
    step=st.floats(1, 1000), part=st.floats(0, 1), used=st.floats(0, 2), cores=st.floats(0.1, 8), workers=st.integers(0, 4),
)  # fmt: skip
def test_no_prediction_is_longer_than_now_nor_shorter_than_what_has_to_be_done(
    step: float, part: float, used: float, cores: float, workers: int
) -> None:
    now = loading(step, part * step, used=used * step, cores=cores, workers=workers)
    for count in range(MOST_WORKERS + 1):
        then = step_with_workers(now, count)
        assert now.rest_ns * (1 - 1e-9) <= then <= now.step_ns * (1 + 1e-9)
        assert hidden_share(now, count) + 1e-9 >= 0
        assert then * (1 + 1e-9) >= min(now.step_ns, now.busy_ns)
