"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.records.finding import Finding, Quiet, Skipped

if TYPE_CHECKING:
    from stepscope.results.evidence import Evidence

Outcome = tuple[Finding, ...] | Quiet | Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number that decides, with its unit and where it comes from (a paper, METRICS, a measurement with its date)."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A registered rule; the file's docstring is its page: what it sees, why that is bad, known problems, references.

    name: as users write it (``launch-bound``), the file's stem with hyphens. symptom: one line for tables of rules.
    needs: attributes of :class:`Evidence` that must be there (not None, not empty), else it is skipped with the reason and
    the command of ``evidence.NEEDS``. protocol: the step of the investigation (1 to 5, ``diagnose/protocol.py``) it serves.
    check: pure. Findings (never an empty tuple), Quiet with the number that decided, or Skipped for data that ``needs``
    cannot name. any_of: attributes of which at least one must be there (a rule that reads steps as well as traces).
    good_news: it fires for what is well, so that its silence is no praise.
    """

    name: str
    symptom: str
    needs: tuple[str, ...] = ()
    check: Callable[[Evidence], Outcome]
    protocol: int
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    any_of: tuple[str, ...] = ()
    good_news: bool = False
