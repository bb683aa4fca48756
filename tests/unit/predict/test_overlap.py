"""Computation that waits for collectives: hand-made timelines with known ends."""

from __future__ import annotations

import pytest

from stepscope.predict.overlap import Transfer, Transport, run

ONE, TWO = Transport(lanes=1), Transport(lanes=2)


def job(ready: float, needed: float, wire: float, *, blocking: bool = False) -> Transfer:
    return Transfer(ready=ready, needed=needed, latency=0, wire=wire, blocking=blocking)


@pytest.mark.parametrize(
    ("jobs", "lanes", "waited", "ends"),
    [
        ([], ONE, 0, []),
        ([job(0, 10, 30)], ONE, 20, [30]),  # computation stands still from 10 to 30
        ([job(0, 100, 30)], ONE, 0, [30]),  # hidden
        ([job(90, 100, 30)], ONE, 20, [120]),
        ([job(0, 10, 30), job(0, 50, 30)], ONE, 20, [30, 60]),  # the second one runs on while computation does
        ([job(0, 10, 30), job(0, 10, 30)], TWO, 50, [60, 60]),  # both share the wire
        ([job(20, 20, 30, blocking=True), job(20, 20, 30, blocking=True)], ONE, 60, [50, 80]),
        ([job(50, 60, 10), job(0, 10, 30)], ONE, 40, [60, 90]),  # launched in order: the second waits for the first
    ],
)
def test_computation_goes_on_until_it_needs_what_has_not_come(
    jobs: list[Transfer], lanes: Transport, waited: float, ends: list[float]
) -> None:
    assert run(jobs, 100, lanes) == pytest.approx(waited)
    assert [each.end for each in jobs] == pytest.approx(ends)
