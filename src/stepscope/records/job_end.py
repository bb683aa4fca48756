"""How a profiled job ended: what each failing process left, and the judgement of all of them."""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import dataclass

EndKind = Literal[
    "ok", "crash", "exit-code", "killed", "out-of-memory", "hang", "interrupted", "no-steps", "short"
]  # fmt: skip
"""ok: the command ended with 0. crash: an exception that nobody caught. exit-code: neither exception nor signal. killed: by
a signal. short: the command ended with 0 before the window began. no-steps: it ended with 0 and no optimizer stepped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """A rank as its launcher saw it end. code: of the process, negative for a signal. message: of its error file."""

    rank: int
    pid: int
    code: int
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedProcess:
    """failure-HOST-PID.json: an exception that nobody caught, in any Python process of the job, whether it imported torch.

    rank, world_size: as the launcher states them in the environment; None: it states none. place: ``file:line in function:
    code`` of the innermost line of the user's own. ranks: of a launcher (torchrun, spawn), those that failed.
    """

    host: str
    pid: int
    rank: int | None
    world_size: int | None
    restart: int
    at_unix_ns: int
    exception: str
    message: str
    place: str | None = None
    torch: bool = True
    ranks: tuple[LaunchedRank, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Ranks that stand still. ranks: that hold the others up, as far as is known. waiting: those that are held up.

    silent_s: since any rank ended a step. said: what the flight recorders tell. place: where the first of ``ranks`` is.
    step: the one that does not end.
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...] = ()
    silent_s: float
    step: int
    said: str | None = None
    place: str | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """job-end.json. ranks: that failed by themselves, or hold the others up in a hang. victims: ranks that failed of it.

    code: of the command as a shell gives it, None where it is not known; rank_code: of the first of ``ranks``. step: in
    which it happened, from 1; None: before the first step, or not known. signal: its name. likely: the kind is inferred.
    steps_timed: recorded and not profiled, of the rank with the most; None: there is no diary. restarts: by the launcher.
    independent: processes that train side by side as rank 0 of 1 each. no_window: why none was written.
    """

    kind: EndKind
    code: int | None
    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    host: str | None = None
    exception: str | None = None
    message: str | None = None
    place: str | None = None
    step: int | None = None
    phase: str | None = None
    rank_code: int | None = None
    signal: str | None = None
    likely: bool = False
    hang: Hang | None = None
    steps_timed: int | None = None
    steps_profiled: int = 0
    restarts: int = 0
    independent: int = 0
    no_window: str | None = None
