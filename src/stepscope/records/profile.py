"""What `stepscope profile` writes into its output folder, and what the hook inside the job writes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from stepscope.core.dataclass import dataclass

WindowStatus = Literal["open", "written", "missed", "stepped_back", "failed", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """A window of steps that the command line asks for.

    steps: auto: rank 0 chooses, 8 to 32 by the spread of the steps before it, fewer where they are long. wait: finished
    steps before it, or auto: when step times have settled. fixed_step: where ranks that do not see the
    output folder begin; None in a running job. ranks: None for all. collect: shapes, stacks, memory, flops, modules.
    duration_s, after_s: a time window in place of steps, for jobs without an optimizer.
    """

    steps: int | Literal["auto"]
    wait: int | Literal["auto"]
    warmup: int
    fixed_step: int | None
    collect: tuple[str, ...]
    ranks: tuple[int, ...] | None = None
    tool: Literal["torch", "nsys"] = "torch"
    duration_s: float | None = None
    after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """profile.json: the command that runs under the hook. first: None where the hook sleeps until it is woken."""

    command: tuple[str, ...]
    folder: str  # working directory of the command
    host: str
    first: WindowRequest | None
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedProcess:
    """process-HOST-PID.json: a process that imported torch. rank, world_size: RANK and WORLD_SIZE as they are set."""

    pid: int
    host: str
    argv: tuple[str, ...]
    rank: str | None
    world_size: str | None
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedRank:
    """rank-R.json: a rank whose optimizer has stepped. restart: how often torchrun had restarted the ranks.

    facts: model, wrappers, loaders, frameworks in use, machine (hook's facts.py); a part that could not be read is absent.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    restart: int
    python: str
    torch: str
    local_rank: str | None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOfRank:
    """window-N-rank-R.json: how a window went on one rank; ``open`` while it lasts.

    profiled_ns: host time of its steps. paused_s: how long the rank waited while its trace was written. bounded: why it has
    fewer steps than would be needed.
    """

    window: int
    rank: int
    world_size: int
    host: str
    status: WindowStatus
    reason: str | None
    restart: int
    first_step: int
    last_step: int
    profiled_ns: tuple[int, ...]
    ended: str | None = None
    file: str | None = None
    size_bytes: int = 0
    paused_s: float = 0.0
    bounded: str | None = None
