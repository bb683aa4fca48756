"""What the order of epochs in a file says: one job, one that was started again, or two at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepscope.core.words import listed, plural

MAX_SERIES = 16
"""More jobs than write into one file; numbers in any other order then go to the latest series."""

MOST_EPOCHS = 10**7
"""Numbers of epochs are below: what is not is damage."""


_SOME = 3


def is_clock(times: Sequence[float]) -> bool:
    """Whether times by epoch are likely to count from the start of the training: they only grow, past twice the first."""
    return len(times) > _SOME and all(a < b for a, b in pairwise(times)) and times[-1] > 2 * times[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """duplicates: epochs that appear more than once, sorted. series: rising sequences that the rows fall into; 0: no row.

    alternating: rows of one series stand between rows of another, so their writers ran at the same time.
    backwards: how often a number is not above the one before.
    """

    duplicates: tuple[int, ...]
    series: int
    alternating: bool
    backwards: int

    @property
    def sentence(self) -> str | None:
        """What to tell a reader; None: every epoch stands once and in order."""
        if not self.duplicates and not self.backwards:
            return None
        twice = f"{_ranges(self.duplicates)} appear more than once" if self.duplicates else "epochs go backwards"
        if self.alternating:
            return (
                f"{twice} and rows of {self.series} series alternate: {self.series} jobs wrote this file at the same time; "
                "no row states whose it is, so that time of an epoch and best accuracy are left out"
            )
        return f"{twice}: the job was restarted and continued this file; all rows are kept"


def epoch_order(numbers: Sequence[int]) -> EpochOrder:
    """The order of ``numbers``, each put to the series that it continues, the latest one first."""
    last: list[int] = []
    owners: list[int] = []
    for number in numbers:
        owner = _owner(number, last, owners[-1] if owners else None)
        if owner == len(last):
            last.append(number)
        last[owner] = number
        owners.append(owner)
    switches = sum(a != b for a, b in pairwise(owners))
    counts = Counter(numbers)
    return EpochOrder(
        duplicates=tuple(sorted(number for number, times in counts.items() if times > 1)),
        series=len(last),
        alternating=len(last) > 1 and switches > len(last) - 1,
        backwards=sum(b <= a for a, b in pairwise(numbers)),
    )


def _owner(number: int, last: Sequence[int], current: int | None) -> int:
    """Index of the series that ``number`` continues; ``len(last)``: of a new one."""
    latest_first = sorted(range(len(last)), key=lambda i: i != current)
    for index in latest_first:
        if last[index] == number - 1:
            return index
    below = [index for index in latest_first if last[index] < number]
    if not below and current is not None and len(last) >= MAX_SERIES:
        return current
    return max(below, key=lambda i: last[i], default=len(last))


def _ranges(numbers: Sequence[int]) -> str:
    """``epochs 6 to 20``, ``epochs 3, 5, 7``."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"epochs {numbers[0]} to {numbers[-1]}"
    return f"{plural(len(numbers), 'epoch')} {listed(numbers, at_most=8)}"
