"""A job that stands still: noticed by its diaries, explained by its ranks' stacks and flight recorders."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from stepscope.core.errors import DataError, StepscopeError
from stepscope.records.nccl import FlightDump
from stepscope.records.profile import Hang
from stepscope.results.ends.stacks import QUIET, Standing, training_stack
from stepscope.store.importers.flight_recorder import read_dump
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import latest_step_ns, longest_step_ns, rank_of, steps_in
from stepscope.store.writer import write_bytes
from stepscope.traces.flight import compare_dumps, culprits, summary

LEAST_S = 60.0
STEPS = 20
"""A job stands still when it makes no step for a minute and for as long as 20 steps usually take: a guess that evaluations
and checkpoints of most jobs pass, 2026-11; --hang-after states another."""
FIRST_STEP = 10
"""Before the first step the time is so many times as long: models are loaded and compiled there."""
ANSWER_S = 5.0
"""How long ranks have to leave their stacks: their hook looks for the request once a second."""
MOST_TOLD = 2
STALL_S, STALL_STEPS = 15.0, 10
"""A stall is reported after so many seconds and usual steps, unless the ranks are where no step is made (``QUIET``)."""
STALL_FACTOR = 1.5
"""A stall lasts at least so many times the longest step after the first ones: a job may gather data for as long every few
steps."""
FIRST_STEPS = 3
"""The first steps of each rank do not count for that: they compile, and fill caches."""
MOST_STALLS = 5
FEW_RANKS = 64
"""Up to so many ranks the flight recorders are asked for together with the stacks; of more they are too much for a short
stall."""
FLIGHT_S = 1.0
"""How long the flight recorders are waited for after the last stack: not every process has one."""
ANSWER_POLL_S = 0.25

Stage = Literal["stall", "hang"]


def explain(
    *,
    steps: Mapping[int, int],
    dumps: Sequence[FlightDump],
    stacks: Mapping[int, Standing],
    world_size: int,
    silent_s: float,
    hosts: Mapping[int, str],
) -> Hang:
    """Find which ranks hold the others up: those that the flight recorders blame, else those that are steps behind, else
    those that wait for nobody by their stacks, or do not answer. steps: how many each rank has ended. hosts: by rank, where
    known."""
    findings = compare_dumps(dumps, world_size=world_size) if dumps else ()
    blamed, statement = culprits(findings), summary(findings)
    if not blamed and len(set(steps.values())) > 1:
        blamed = tuple(sorted(rank for rank, ended in steps.items() if ended == min(steps.values())))
    if not blamed:
        busy = {rank for rank in steps if rank not in stacks or not stacks[rank].waits}
        blamed = tuple(sorted(busy)) if stacks and 0 < len(busy) < len(steps) else ()
    first = blamed[0] if blamed else 0 if world_size == 1 else None
    parts = {rank: part for rank, standing in stacks.items() if (part := standing.doing) is not None}
    parts |= {d.rank: call for d in dumps if parts.get(d.rank) in _UNNAMED and (call := _open_call(d)) is not None}
    return Hang(
        ranks=blamed if blamed or world_size > 1 else (0,),
        waiting=tuple(rank for rank in range(world_size) if rank not in blamed) if blamed else (),
        silent_s=silent_s,
        step=min(steps.values(), default=0) + 1,
        said=statement,
        place=None if first is None or first not in stacks else stacks[first].place,
        host=None if first is None else hosts.get(first),
        parts=tuple(sorted(parts.items())),
    )


_UNNAMED = (None, "comm", "backward")
"""Parts in which a rank may wait in a collective that its stack does not name."""


def _open_call(dump: FlightDump) -> str | None:
    """The collective that a rank entered last, where it is still in it."""
    last = dump.entries[-1] if dump.entries else None
    return last.op if last is not None and last.state != "completed" else None


class HangWatch:
    """Watches a job for standing still. after_s: seconds without a step until ranks are asked where they are; None derives
    them from the time that steps take. stall_s: the least until they are asked for a first word."""

    def __init__(self, layout: ProfileLayout, after_s: float | None, *, stall_s: float = STALL_S) -> None:
        self._layout = layout
        self._after_s = after_s
        self._stall_s = stall_s
        self._every_s = min(max((after_s or LEAST_S) / 50, 0.5), 5.0)
        self._looked = self._moved = time.monotonic()
        self._position: tuple[object, object] = ((), ())
        self._asked: float | None = None
        self._stage: Stage = "stall"
        self._stacks_at: float | None = None
        self._next_stall_s = 0.0
        self._stall_limit: tuple[float, float | None] = (0.0, None)
        self._number = 0
        self._reports = {"stall": 0, "hang": 0}
        self._hangs: dict[Stage, Hang] = {}

    def look(self) -> tuple[Stage, Hang] | None:
        """Return what is found of a job that stands still, once for each stage of it, and a few times for a job."""
        now = time.monotonic()
        if now - self._looked < (self._every_s if self._asked is None else ANSWER_POLL_S):
            return None
        self._looked = now
        with suppress(OSError):  # a shared file system that is away for a moment
            position = self._where()
            if position != self._position:
                if position[0] != self._position[0]:
                    self._hangs.clear()
                self._position, self._moved, self._asked, self._next_stall_s = position, now, None, 0.0
                return None
            if self._asked is not None:
                return self._heard(now) if self._answered(now) or now - self._asked > ANSWER_S else None
            if (stage := self._due(now - self._moved)) is not None and not training_ends(self._layout):
                self._ask(now, stage)
        return None

    @property
    def hang(self) -> Hang | None:
        """The hang of a job that stands still at this moment, as far as its ranks were asked; None without."""
        return self._still("hang")

    @property
    def stall(self) -> Hang | None:
        """The hang, or the stall of a job that may stand still for too short a time to be one; None without."""
        return self._still("hang") or self._still("stall")

    def _still(self, stage: Stage) -> Hang | None:
        hang = self._hangs.get(stage)
        return None if hang is None else replace(hang, silent_s=time.monotonic() - self._moved)

    def _due(self, silent_s: float) -> Stage | None:
        """Return the stage for which ranks are to be asked now, or None."""
        if "hang" in self._hangs:
            return None
        limit_s = self._limit_s()
        if silent_s > limit_s:
            return "hang" if self._reports["hang"] < MOST_TOLD else None
        early = "stall" not in self._hangs or self._next_stall_s
        if not early or self._reports["stall"] >= MOST_STALLS or silent_s <= max(self._stall_s, self._next_stall_s):
            return None
        if self._stall_limit[0] != self._moved:
            self._stall_limit = self._moved, self._stall_limit_s()
        stall_s = self._stall_limit[1]
        return "stall" if stall_s is not None and stall_s < silent_s and stall_s < limit_s else None

    def _heard(self, now: float) -> tuple[Stage, Hang] | None:
        """Return what the ranks' answers say, or None where they say that all is well."""
        stage, self._asked = self._stage, None
        hang = self._hangs[stage] = self._explained(now)
        well = stage == "stall" and not QUIET.isdisjoint(part for _, part in hang.parts)
        self._next_stall_s = 2 * (now - self._moved) if well else 0.0
        if well:
            return None
        self._reports[stage] += 1
        return stage, hang

    def _where(self) -> tuple[object, object]:
        """Return what changes while ranks step, and while they write a window."""
        windows = (*self._layout.root.glob("window-*/*"), *self._layout.root.glob("window-*/.*"))
        return _file_sizes(self._layout.diaries()), _file_sizes(windows)

    def _limit_s(self) -> float:
        """Seconds without a step that are a hang: as asked, else by the longest steps so far."""
        diaries = self._layout.diaries()
        if not diaries:
            return (self._after_s or LEAST_S) * FIRST_STEP
        if self._after_s is not None:
            return self._after_s
        times = [ns for path in diaries[:8] if (ns := latest_step_ns(path)) is not None]
        return max(LEAST_S, STEPS * max(times, default=0) / 1e9)

    def _stall_limit_s(self) -> float | None:
        """Return the seconds after which a silent job stalls; None until every rank has made its first steps."""
        diaries = self._layout.diaries()
        times = [latest_step_ns(path) for path in diaries[:8]]
        if not times or any(steps_in(path) < FIRST_STEPS for path in diaries[:8]):
            return None
        longest = max(longest_step_ns(path, first=FIRST_STEPS) for path in diaries[:8])
        return max(self._stall_s, STALL_STEPS * max(ns or 0.0 for ns in times) / 1e9, STALL_FACTOR * longest / 1e9)

    def _ask(self, now: float, stage: Stage) -> None:
        """Ask all ranks for their stacks, and for their flight recorders where it is a hang."""
        self._asked, self._stage, self._stacks_at = now, stage, None
        self._number += 1
        for path in (*self._layout.stacks(), *self._layout.flights()):
            path.unlink(missing_ok=True)
        flights = stage == "hang" or len(self._layout.diaries()) <= FEW_RANKS
        request = {"number": self._number, "at_unix_ns": time.time_ns(), "flights": flights}
        with suppress(StepscopeError):
            write_bytes(self._layout.stack_request, json.dumps(request).encode())

    def _answered(self, now: float) -> bool:
        """Whether every rank that has stepped has answered; its flight recorder comes after its stack."""
        ranks = {rank_of(path) for path in self._layout.diaries()}
        if not ranks or not ranks <= {rank_of(path) for path in self._layout.stacks() if _of_rank(path)}:
            return False
        self._stacks_at = now if self._stacks_at is None else self._stacks_at
        flown = ranks <= {rank_of(path) for path in self._layout.flights() if _of_rank(path)}
        return flown or (self._stage == "stall" and now - self._stacks_at > FLIGHT_S)

    def _explained(self, now: float) -> Hang:
        """Return the hang as steps, dumps and stacks explain it."""
        steps: dict[int, int] = {}
        for path in self._layout.diaries():  # in order of attempt: the last one counts
            steps[rank_of(path)] = steps_in(path)
        dumps = {}
        for path in filter(_of_rank, self._layout.flights()):
            with suppress(DataError):
                dumps[rank_of(path)] = read_dump(path, rank=rank_of(path))
        stacks = filter(_of_rank, self._layout.stacks()) if steps else self._layout.stacks()
        texts = {rank_of(path): path.read_text(errors="replace") for path in stacks}
        heads = {rank_of(path): _first_object(path) for path in self._layout.diaries()}
        worlds = [world for head in heads.values() if isinstance(world := head.get("world_size"), int)]
        return explain(
            steps=steps,
            dumps=list(dumps.values()),
            stacks={rank: training_stack(text) for rank, text in texts.items()},
            world_size=max(worlds, default=max(len(steps), 1)),
            silent_s=now - self._moved,
            hosts={rank: str(head["host"]) for rank, head in heads.items() if "host" in head},
        )


def training_ends(layout: ProfileLayout) -> bool:
    """Whether a rank is through with the training: the others may do what they do without steps."""
    last = {rank_of(path): path for path in layout.diaries()}  # in order of attempt
    ends = [ProfileLayout.end_of(path) for path in last.values()]
    return any(_first_object(path).get("kind") == "exit" for path in ends if path.exists())


def _file_sizes(files: Sequence[Path]) -> list[tuple[Path, int]]:
    sizes = []
    for path in files:
        with suppress(OSError):  # renamed just now
            sizes.append((path, path.stat().st_size))
    return sizes


def _first_object(path: Path) -> dict[str, object]:
    """Return the JSON object of the file's first line; an empty one where there is none."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
    except ValueError:
        return {}
    return header if isinstance(header, dict) else {}


def _of_rank(path: Path) -> bool:
    """Whether a stack or a dump is of a process that has stepped, not of a launcher."""
    return "-p" not in path.name
