"""Base of every option schema (strategy, workload, dataset)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class OptionsModel(BaseModel):
    """Frozen, strict about unknown keys and types. ``as_dict`` is what goes into records and cell ids."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump()
