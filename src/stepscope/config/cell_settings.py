"""The plain keys of a cell: names, types, ranges and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import Field

from stepscope.config.options import OptionsModel
from stepscope.records.cell import Checkpointing, LossName, OptimizerName, Precision

PRECISIONS: tuple[str, ...] = get_args(Precision)
CHECKPOINTING: tuple[str, ...] = get_args(Checkpointing)
OPTIMIZERS: tuple[str, ...] = get_args(OptimizerName)
LOSSES: tuple[str, ...] = get_args(LossName)


class CellSettings(OptionsModel):
    """What one cell says apart from the options of its workload, dataset and strategy.

    A field's description is what an error calls the values it takes.
    """

    workload: str = Field(description="the name of a workload")
    dataset: str = Field(description="the name of a dataset")
    strategy: str = Field(description="the name of a strategy")
    world_size: int = Field(ge=1, description="a whole number of ranks, at least 1")
    mesh: Mapping[str, int] | None = Field(default=None, description="a mapping such as {dp: 2, tp: 2}")
    precision: Precision = Field(default="fp32", description="one of " + ", ".join(PRECISIONS))
    accumulation: int = Field(default=1, ge=1, description="a whole number of micro-steps, at least 1")
    global_batch: int | None = Field(default=None, ge=1, description="a whole number of samples, at least 1")
    micro_batch: int | None = Field(default=None, ge=1, description="a whole number of samples, at least 1")
    activation_checkpointing: Checkpointing = Field(default="none", description="one of " + ", ".join(CHECKPOINTING))
    optimizer: OptimizerName = Field(default="sgd", description="one of " + ", ".join(OPTIMIZERS))
    lr: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="a number of at least 0")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="a number from 0 to below 1")
    lr_warmup: int = Field(default=0, ge=0, description="a whole number of optimizer steps, at least 0")
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="a number of at least 0")
    clip: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="a gradient norm above 0 such as 1.0, or null for no clipping",
    )
    loss: LossName | None = Field(default=None, description="one of " + ", ".join(LOSSES))
    steps: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=None, description="a whole number of at least 1, or auto"
    )
    epochs: int | None = Field(default=None, ge=1, description="a whole number of at least 1 (only `steps` takes auto)")
    seed: int = Field(default=1, ge=0, lt=2**63, description="a whole number of at least 0")
    num_workers: int = Field(default=0, ge=0, description="a whole number of at least 0")
    pin_memory: bool = Field(default=False, description="true or false")
    persistent_workers: bool = Field(default=False, description="true or false")
    cudnn_benchmark: bool = Field(default=False, description="true or false")
    network: str | None = Field(default=None, description="the name of an emulated network, or null")
    inject: str | None = Field(default=None, description="planted faults such as slow_rank=2:30%, or null")


CELL_KEYS: tuple[str, ...] = tuple(CellSettings.model_fields)
REQUIRED_KEYS: tuple[str, ...] = tuple(k for k, f in CellSettings.model_fields.items() if f.is_required())

OPTION_GROUPS = {"model": "workload", "dataset_options": "dataset", "strategy_options": "strategy"}
"""Prefix of a dotted key, and the cell key whose value brings the schema of what follows the dot."""

GROUP_KEYS: tuple[str, ...] = (*OPTION_GROUPS, "env")

RIVALS: tuple[tuple[str, str], ...] = (("global_batch", "micro_batch"), ("steps", "epochs"))
"""Keys of which a cell gives exactly one."""


def rival_of(key: str) -> str | None:
    """The key that ``key`` excludes, or None."""
    for first, second in RIVALS:
        if key == first:
            return second
        if key == second:
            return first
    return None
