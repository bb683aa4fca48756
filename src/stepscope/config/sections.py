"""The ``launch`` and ``measure`` sections of a matrix file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stepscope.config.options import OptionsModel
from stepscope.records.cell import MeasureSettings

NS_PER_S = 1_000_000_000

LAUNCHER_VARIABLES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
})  # fmt: skip
"""Environment variables that the launcher sets for each rank: a matrix that set them would be overruled or break it."""


class LaunchSettings(OptionsModel):
    """Where and how worker processes start. Same values for every cell of the matrix."""

    backend: Literal["auto", "gloo", "nccl"] = Field(default="auto", description="auto, gloo or nccl")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto, cpu or cuda")
    threads_per_rank: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="a whole number of at least 1, or auto (usable cores / ranks)"
    )
    env: dict[str, str] = Field(default_factory=dict, description="a mapping of variable names to text")
    isolate: bool = Field(default=False, description="true or false")
    oversubscribe: bool = Field(default=True, description="true or false")


class CommSection(OptionsModel):
    """The sweep of collectives that a matrix brings, in the words of ``stepscope comm``."""

    ops: str = Field(default="all", description="names of collectives, or all")
    sizes: str = Field(default="1K:64M:4", description="sizes as nccl-tests writes them, such as 1K:64M:4")
    dtype: str = Field(default="fp32", description="types, such as fp32,bf16")
    pairs: bool = Field(default=False, description="true or false")
    matmul: bool = Field(default=False, description="true or false")
    overlap: bool = Field(default=False, description="true or false")
    budget_s: float = Field(default=2.0, gt=0, allow_inf_nan=False, description="a number of seconds above 0")


class MeasureOptions(OptionsModel):
    """How long and how carefully to measure; not part of a cell's identity."""

    warmup: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        default="auto", description="a whole number of steps, or auto"
    )
    rounds: int = Field(default=1, ge=1, description="a whole number of at least 1")
    budget_s: float = Field(default=60.0, gt=0, allow_inf_nan=False, description="a number of seconds above 0")
    ci: float = Field(default=0.02, gt=0, lt=1, description="a fraction between 0 and 1, such as 0.02")
    timeout_s: float = Field(default=900.0, gt=0, allow_inf_nan=False, description="a number of seconds above 0")
    profile: bool = Field(default=False, description="true or false")

    def settings(self) -> MeasureSettings:
        """The record that ranks read, in base units."""
        return MeasureSettings(
            warmup_steps=None if self.warmup == "auto" else self.warmup,
            rounds=self.rounds,
            budget_ns=round(self.budget_s * NS_PER_S),
            ci_fraction=self.ci,
            timeout_ns=round(self.timeout_s * NS_PER_S),
            profile=self.profile,
        )
