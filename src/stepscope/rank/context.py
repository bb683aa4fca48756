"""What all cells of a group share on one rank."""

from __future__ import annotations

from dataclasses import field

from stepscope.core.dataclass import dataclass
from stepscope.rank.control import Control
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.mesh import Mesh
from stepscope.rank.startup import RankPlace
from stepscope.records.cell import GroupSpec
from stepscope.records.samples import EpochResult
from stepscope.store.layout import RunLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """What all cells of a group share on this rank."""

    group: GroupSpec
    place: RankPlace
    mesh: Mesh
    control: Control
    pulse: Pulse
    layout: RunLayout
    scheduler_policy: str
    epochs: dict[str, list[EpochResult]] = field(default_factory=dict)  # of the rounds so far, by cell id
