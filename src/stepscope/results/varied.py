"""The settings that tell the cells of one run apart, beside what every table shows of a cell anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.records import mesh
from stepscope.records.cell import CellSpec

SETTINGS = (
    "batch_rule", "optimizer", "lr", "momentum", "lr_warmup", "weight_decay", "clip", "loss", "steps", "epochs",
    "seed", "num_workers", "pin_memory", "persistent_workers", "cudnn_benchmark", "threads_per_rank", "network",
)  # fmt: skip
"""Fields of a cell that a result row has no column for, or (steps, epochs) fills with what really ran."""


CHECKPOINTING = "activation_checkpointing"


def settings_of(cell: CellSpec) -> dict[str, Any]:
    """Keys as a matrix file writes them (``lr``, ``dataset_options.samples``, ``env.NCCL_ALGO``) and their values."""
    return {
        **{f"dataset_options.{name}": value for name, value in cell.dataset_options.items()},
        **{name: getattr(cell, name) for name in SETTINGS},
        **({"mesh": mesh.text(cell.mesh)} if cell.mesh else {}),
        **({CHECKPOINTING: cell.activation_checkpointing} if cell.activation_checkpointing != "none" else {}),
        **({"inject": cell.inject} if cell.inject is not None else {}),
        **{f"env.{name}": value for name, value in cell.env.items()},
    }


def varied_settings(cells: Sequence[CellSpec]) -> tuple[Mapping[str, Any], ...]:
    """For each cell its settings that are not the same (or not there) in all of ``cells``."""
    every = [settings_of(cell) for cell in cells]
    varied = varying(every)
    return tuple({key: value for key, value in settings.items() if key in varied} for settings in every)


def varying(settings: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Keys that do not have one and the same value in all of ``settings``; one without the key counts as another."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return frozenset(key for key in keys if len({_text(one, key) for one in settings}) > 1)


def _text(settings: Mapping[str, Any], key: str) -> str | None:
    return repr(settings[key]) if key in settings else None
