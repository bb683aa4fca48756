"""Faults planted into a cell: a slow rank, jitter, a slow loader; their text form, and how long each takes. Pure."""

from __future__ import annotations

import re

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.units import format_duration, format_percent, parse_duration_ns

EXAMPLES = "slow_rank=2:30%, jitter=50%, loader=10ms, or several with a comma between them"
KINDS = ("slow_rank", "jitter", "loader")
DEFAULT = "50%"
"""The amount of jitter and loader where none is given: half of a rank's own computation shows above the noise of two
busy cores."""

MAX_SHARE = 100.0
MAX_NS = 60 * 10**9
DIGITS = 6
"""Digits of a percentage behind its point, in the canonical text and in what it is read as."""

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@record
class Amount:
    """Time that is lost: a share of the rank's own computation of a step, or ns. One of the two is None."""

    share: float | None = None
    ns: int | None = None

    def __str__(self) -> str:
        if self.ns is None:
            return f"{100 * (self.share or 0):.{DIGITS}f}".rstrip("0").rstrip(".") + "%"
        unit, scale = next((u, s) for u, s in _UNITS.items() if self.ns % s == 0)
        return f"{self.ns // scale}{unit}"

    @property
    def words(self) -> str:
        """``30%`` or ``5 ms``."""
        return format_percent(self.share or 0) if self.ns is None else format_duration(self.ns)

    @property
    def of_step(self) -> str:
        """``50% of its computation`` or ``5 ms``."""
        return self.words if self.ns is not None else f"{self.words} of its computation"

    def of(self, own_ns: float) -> float:
        """Return ns for a rank whose own computation of a step takes ``own_ns``."""
        return self.share * own_ns if self.share is not None else float(self.ns or 0)


@record
class SlowRank:
    """A rank that computes longer in every step."""

    rank: int
    by: Amount


@record
class Injection:
    """The faults of one cell. ``str()`` is the canonical text: a part of the cell's identity.

    slow: by rank. jitter: every rank loses, in every step, a random time between 0 and this (uniform, from the cell's seed).
    loader: every rank waits so long for the batches of a step.
    """

    slow: tuple[SlowRank, ...] = ()
    jitter: Amount | None = None
    loader: Amount | None = None

    def __str__(self) -> str:
        parts = [f"slow_rank={s.rank}:{s.by}" for s in self.slow]
        parts += [f"{name}={amount}" for name in KINDS[1:] if (amount := getattr(self, name)) is not None]
        return ",".join(parts)

    @property
    def amounts(self) -> tuple[Amount, ...]:
        return (*(s.by for s in self.slow), *(a for a in (self.jitter, self.loader) if a is not None))

    @property
    def words(self) -> str:
        """Say in words what is planted."""
        parts = [f"rank {s.rank} computes {s.by.words} longer" for s in self.slow]
        if self.jitter is not None:
            parts.append(f"every rank loses a random time up to {self.jitter.of_step} in each step")
        if self.loader is not None:
            parts.append(f"every rank waits {self.loader.of_step} longer for the batches of a step")
        return ", ".join(parts)


def parse_injection(text: str) -> Injection:
    """Parse the faults ``slow_rank=RANK:AMOUNT[,jitter[=AMOUNT]][,loader[=AMOUNT]]``; AMOUNT: ``30%`` of the rank's
    own computation of a step, or a time such as ``5ms``. Raises UsageError."""
    slow: dict[int, SlowRank] = {}
    other: dict[str, Amount] = {}
    for part in (part.strip() for part in text.strip().lower().split(",")):
        kind, equals, value = part.partition("=")
        if kind == "slow_rank":
            fault = _slow_rank(value, part, text)
            if fault.rank in slow:
                raise _bad_fault_error(text, f"rank {fault.rank} is slow twice")
            slow[fault.rank] = fault
        elif kind in KINDS:
            if kind in other:
                raise _bad_fault_error(text, f"{kind} is given twice")
            other[kind] = _fault_amount(value if equals else DEFAULT, part, text)
        else:
            raise _bad_fault_error(text, f"{part!r} is none of {', '.join(KINDS)}")
    return Injection(slow=tuple(slow[rank] for rank in sorted(slow)), **other)


def canonical(text: str | None) -> str | None:
    """Return the one text that stands for this set of faults in a cell's identity. Raises UsageError."""
    return None if text is None else str(parse_injection(text))


def injection_of(text: str | None) -> Injection:
    """Return a cell's faults; an empty injection for a cell without any."""
    return Injection() if text is None else parse_injection(text)


def absent_ranks(injection: Injection, world_size: int) -> tuple[int, ...]:
    """Return the slow ranks that are not among ``world_size`` ranks."""
    return tuple(s.rank for s in injection.slow if s.rank >= world_size)


def absent(injection: Injection, world_size: int) -> str | None:
    """Return why the ranks of a cell cannot take the faults, or None when they can."""
    missing = absent_ranks(injection, world_size)
    if not missing:
        return None
    there = "rank 0 alone" if world_size == 1 else f"ranks 0 to {world_size - 1}"
    return f"{injection} slows rank {missing[0]}, and the cell has {there}"


def _slow_rank(value: str, part: str, whole: str) -> SlowRank:
    rank, colon, amount = value.partition(":")
    if not colon or not rank.isdecimal():
        raise _bad_fault_error(whole, f"{part!r} is not slow_rank=RANK:AMOUNT")
    return SlowRank(rank=int(rank), by=_fault_amount(amount, part, whole))


def _fault_amount(value: str, part: str, whole: str) -> Amount:
    if (match := _PERCENT.fullmatch(value)) is not None:
        share = round(float(match[1]), DIGITS) / 100
        if not 0 < share <= MAX_SHARE:
            raise _bad_fault_error(whole, f"{part!r}: expected more than 0% and at most {100 * MAX_SHARE:,.0f}%")
        return Amount(share=share)
    try:
        # A bare number has no unit: neither a share nor a time.
        ns = 0 if value.replace(".", "").isdecimal() else parse_duration_ns(value)
    except UsageError:
        ns = 0
    if not 0 < ns <= MAX_NS:
        raise _bad_fault_error(
            whole, f"{part!r}: expected a share such as 30%, or a time up to 60 s with its unit, such as 5ms"
        )
    return Amount(ns=ns)


def _bad_fault_error(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is not a planted fault", why=why, fix=f"write {EXAMPLES}")
