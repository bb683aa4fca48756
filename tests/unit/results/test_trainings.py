"""Processes of one command put together by time and by the launcher's count."""

from __future__ import annotations

import pytest

from stepscope.results.trainings import ProcessSpan, trainings


@pytest.mark.parametrize(
    ("spans", "found"),
    [
        ([(0, 0, 0, 9), (1, 0, 1, 9)], [[2]]),
        ([(0, 0, 0, 9), (0, 1, 10, 19)], [[1, 1]]),  # a restart
        ([(0, 0, 0, 9), (0, 0, 10, 19)], [[1], [1]]),  # a sweep
        ([(0, 0, 0, 9), (0, 1, 10, 19), (0, 0, 20, 29)], [[1, 1], [1]]),
        ([(0, 0, 0, 9), (1, 0, 0, 9), (0, 0, 10, 19), (1, 0, 10, 19), (2, 0, 10, 19)], [[2], [3]]),
        ([(0, 0, 0, 9), (0, 0, 5, 19)], [[2]]),  # side by side
        ([(0, 2, 0, 9)], [[1]]),
        ([], []),
    ],
)
def test_an_attempt_whose_count_does_not_grow_is_another_training(
    spans: list[tuple[int, int, int, int]], found: list[list[int]]
) -> None:
    made = [ProcessSpan(rank=rank, restart=restart, start_ns=start, end_ns=end) for rank, restart, start, end in spans]
    assert [[len(attempt) for attempt in each] for each in trainings(made, lambda span: span)] == found
