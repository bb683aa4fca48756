"""The run folder's own records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from stepscope.core.dataclass import dataclass

Status = Literal["ok", "oom", "host_oom", "timeout", "error", "killed", "unsupported", "skipped", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """run.json: what was asked for, when and with which tool.

    cells: of the matrix, in its order. earlier_cells: have a result in this folder and are not in the matrix any more.
    sections: of the matrix, each with its cells, run or not. argv: of the last command. commands: every different one that
    ran in this folder, oldest first.
    """

    kind: Literal["bench", "comm", "profile", "imported"]
    name: str
    matrix: Mapping[str, Any]  # the resolved file, as the user could have written it
    cells: tuple[str, ...]
    argv: tuple[str, ...]
    data_dir: str | None = None
    environment: str = "environment.json"
    earlier_cells: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """status.json, written by the controller only. ``failing_rank`` is the first that failed, not the first seen."""

    cell_id: str
    status: Status
    phase: str | None = None
    reason: str | None = None
    failing_rank: int | None = None
    failing_host: str | None = None
    exception: str | None = None
    stderr_tail: str | None = None
    exit_codes: Mapping[str, int] | None = None
    wall_ns: int | None = None
    group_id: str | None = None
    attempt: int = 1
