"""A pipeline's layout, and what one rank does in it when."""

from __future__ import annotations

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
    def bubble(self) -> float | None:
        """Idle share of the step, equal stages, free messages: (p - 1) / (v m + p - 1) (METRICS, Pipeline).

        None: zero-bubble schedules, whose bubble depends on how a backward pass divides.
        """
        if self.schedule in ("zero_bubble", "zbv"):
            return None
        return (self.ranks - 1) / (self.chunks * self.micro_batches + self.ranks - 1)


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
