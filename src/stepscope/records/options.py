"""Base of every option schema (strategy, workload, dataset)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class OptionsModel(BaseModel):
    """Frozen, strict about unknown keys and types. ``as_dict`` is what goes into records and cell ids."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def takes(cls, name: str) -> bool:
        """Whether there is an option of this name, or any name is one."""
        return name in cls.model_fields or cls.model_config.get("extra") == "allow"

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump()
