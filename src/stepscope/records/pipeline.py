"""A pipeline's layout, and what one rank does in it when."""

from __future__ import annotations

import math

from stepscope.core.dataclass import dataclass

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """ranks: p. micro_batches: m of one step. chunks: v, stages a rank (virtual stages).

    schedule: ``gpipe``, ``1f1b`` and ``interleaved`` (Narayanan et al., SC 2021); ``zero_bubble``: ZB-H1 with one chunk,
    torch's InterleavedZeroBubble with more; ``zbv``: ZB-V (both Qi et al., ICLR 2024).
    """

    schedule: str
    ranks: int
    micro_batches: int
    chunks: int = 1

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    @property
    def rank_of_stage(self) -> tuple[int, ...]:
        """In a loop; ``zbv``: down the ranks and up again, so that a rank holds stage s and the s-th last."""
        loop = tuple(range(self.ranks))
        return loop + loop[::-1] if self.schedule == "zbv" else loop * self.chunks

    @property
    def rounds(self) -> int:
        """Groups of micro-batches that interleaved schedules take through all chunks one after the other."""
        return max(1, self.micro_batches // self.ranks)

    @property
    def problem(self) -> str | None:
        """Why there is no such schedule."""
        if self.schedule not in SCHEDULES:
            return f"unknown pipeline schedule {self.schedule!r}: choose one of {', '.join(SCHEDULES)}"
        if min(self.ranks, self.micro_batches, self.chunks) < 1:
            return "a pipeline needs at least 1 rank, 1 micro-batch and 1 chunk"
        if self.schedule in ("gpipe", "1f1b") and self.chunks != 1:
            return f"{self.schedule} has one chunk a rank, not {self.chunks}: interleaved and zero_bubble take several"
        if self.schedule == "interleaved" and self.chunks == 1:
            return "interleaved needs 2 chunks a rank or more; with one it is 1f1b"
        if self.schedule == "zbv" and self.chunks != 2:
            return f"zbv has exactly 2 chunks a rank, not {self.chunks}"
        if self.schedule in ("interleaved", "zero_bubble") and self.micro_batches % self.rounds:
            return (
                f"{self.schedule} on {self.ranks} ranks takes micro-batches in {self.rounds} equal rounds, which "
                f"{self.micro_batches} are not: choose a multiple of {self.ranks}"
            )
        return None

    @property
    def bubble(self) -> float:
        """Idle share of the step, equal stages, free messages: (p - 1) / (v m + p - 1) (METRICS, Pipeline).

        Zero-bubble schedules: (p - 1) / (3 v m + p - 1), where forward, input's and weights' gradients take equally long.
        With several chunks m is at least p: fewer micro-batches cannot fill the loop, which the simulation shows.
        """
        return (self.ranks - 1) / (self._units * self.micro_batches + self.ranks - 1)

    @property
    def formula(self) -> str:
        """``bubble`` with its numbers."""
        work = f"{self._units} x {self.micro_batches}" if self._units > 1 else f"{self.micro_batches}"
        return f"({self.ranks} - 1) / ({work} + {self.ranks} - 1)"

    def micro_batches_for(self, bubble: float) -> int:
        """The fewest micro-batches with at most this bubble."""
        fewest = math.ceil((self.ranks - 1) * (1 - bubble) / bubble / self._units - 1e-9)
        if self.schedule in ("interleaved", "zero_bubble"):
            return -(-fewest // self.ranks) * self.ranks  # in whole rounds
        return max(fewest, self.ranks if self.schedule == "1f1b" else 1)

    @property
    def _units(self) -> int:
        return self.chunks * (3 if self.schedule in ("zero_bubble", "zbv") else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpan:
    """One computation. kind: F forward, B backward; zero-bubble schedules split B into I (gradient of the input) and
    W (of the weights). Times from the start of the step.
    """

    rank: int
    stage: int
    micro_batch: int
    kind: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """What one rank's stages computed in a few steps.

    split: blocks of every stage. steps: times on the rank's own clock, on which ``synced_ns`` is the moment when it left a
    barrier of all ranks; ranks of one host share that clock.
    """

    layout: PipelineLayout
    split: tuple[int, ...]
    synced_ns: int
    steps: tuple[tuple[PipelineSpan, ...], ...]
