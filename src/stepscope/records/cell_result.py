"""What one cell left behind, all ranks together."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass
from stepscope.records.cell import CellSpec
from stepscope.records.comm import CommHeader, CommSample
from stepscope.records.run import CellStatus
from stepscope.records.samples import RankSummary, SamplesHeader, StepSample


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSamples:
    """What one rank measured in one cell, warm-up steps included."""

    header: SamplesHeader
    steps: tuple[StepSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommSamples:
    """What one rank measured in one comm cell: a sample per size (or pair)."""

    header: CommHeader
    samples: tuple[CommSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """Everything known about one cell. Partial after a failure: ranks or summaries may be missing."""

    spec: CellSpec
    status: CellStatus | None
    samples: tuple[RankSamples, ...]
    summaries: tuple[RankSummary, ...]
