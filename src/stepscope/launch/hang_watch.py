"""A job that stands still: noticed by its diaries, explained by its ranks' stacks and flight recorders."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import DataError, StepscopeError
from stepscope.records.nccl import FlightDump
from stepscope.records.profile import Hang
from stepscope.store.importers.flight_recorder import read_dump
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import header_bytes, latest_step_ns, rank_of, steps_in
from stepscope.store.writer import write_bytes
from stepscope.traces.flight import compare, culprits, summary

LEAST_S = 60.0
STEPS = 20
"""Without a step for a minute, and for as long as 20 steps usually take: a guess that evaluations and checkpoints of most
jobs pass, 2026-11; --hang-after states another."""
FIRST_STEP = 10
"""Times as long before the first step: models are loaded and compiled there."""
ANSWER_S = 5.0
"""How long ranks have to leave their stacks: their hook looks for the request once a second."""
MOST_TOLD = 2

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_FOREIGN = re.compile(r"^<|[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|stepscope_hook")
_WAITS = re.compile(r"[/\\]torch[/\\](?:distributed|autograd|cuda|accelerator)[/\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A call of a Python stack. code: the line, where it can be read."""

    file: str
    line: int
    name: str
    code: str = ""

    @property
    def own(self) -> bool:
        """Whether the file is the user's."""
        return _FOREIGN.search(self.file) is None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line} in {self.name}" + (f": {self.code}" if self.code else "")


def training_stack(text: str) -> tuple[Frame, ...]:
    """Calls of the main thread, the innermost first, of what the hook wrote: it comes first, the innermost call last."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if line.startswith("thread ") and frames:
            break
        if match := _FRAME.match(line):
            frames.append(Frame(file=match["file"], line=int(match["line"]), name=match["name"]))
        elif frames and not frames[-1].code and line.startswith("    ") and line.strip(" ~^"):
            frames[-1] = replace(frames[-1], code=line.strip())
    return tuple(reversed(frames))


def explain(
    *,
    steps: Mapping[int, int],
    dumps: Sequence[FlightDump],
    stacks: Mapping[int, Sequence[Frame]],
    world_size: int,
    silent_s: float,
    hosts: Mapping[int, str],
) -> Hang:
    """Which ranks hold the others up: those that the flight recorders blame, else those that are steps behind, else those
    that wait for nobody by their stacks, or do not answer. steps: that each rank has ended. hosts: where known."""
    findings = compare(dumps, world_size=world_size) if dumps else ()
    blamed, said = culprits(findings), summary(findings)
    if not blamed and len(set(steps.values())) > 1:
        blamed = tuple(sorted(rank for rank, ended in steps.items() if ended == min(steps.values())))
    if not blamed:
        busy = {rank for rank in steps if not (stack := stacks.get(rank)) or not _WAITS.search(stack[0].file)}
        blamed = tuple(sorted(busy)) if stacks and 0 < len(busy) < len(steps) else ()
    first = blamed[0] if blamed else 0 if world_size == 1 else None
    return Hang(
        ranks=blamed if blamed or world_size > 1 else (0,),
        waiting=tuple(rank for rank in range(world_size) if rank not in blamed) if blamed else (),
        silent_s=silent_s,
        step=min(steps.values(), default=0) + 1,
        said=said,
        place=None if first is None else next((frame.place for frame in stacks.get(first, ()) if frame.own), None),
        host=None if first is None else hosts.get(first),
    )


class HangWatch:
    """after_s: without a step until ranks are asked where they are; None: by the time that steps take."""

    def __init__(self, layout: ProfileLayout, after_s: float | None) -> None:
        self._layout = layout
        self._after_s = after_s
        self._every_s = min(max((after_s or LEAST_S) / 50, 0.5), 5.0)
        self._looked = self._moved = time.monotonic()
        self._position: object = None
        self._asked: float | None = None
        self._told = 0
        self._hang: Hang | None = None
        self._headers: dict[Path, int] = {}

    def look(self) -> Hang | None:
        """What is found of a job that stands still, once it is found; at most MOST_TOLD times."""
        now = time.monotonic()
        if now - self._looked < self._every_s:
            return None
        self._looked = now
        with suppress(OSError):  # a shared file system that is away for a moment
            position = self._where()
            if position != self._position:
                self._position, self._moved, self._asked, self._hang = position, now, None, None
                return None
            if self._asked is None:
                if self._told < MOST_TOLD and now - self._moved > self._limit_s() and not training_ends(self._layout):
                    self._ask(now)
                return None
            if self._hang is None and (self._answered() or now - self._asked > ANSWER_S):
                self._hang = self._explained(now)
                self._told += 1
                return self._hang
        return None

    @property
    def hang(self) -> Hang | None:
        """Of a job that stands still at this moment, as far as it was asked."""
        if self._hang is None:
            return None
        fields = {name: getattr(self._hang, name) for name in ("ranks", "waiting", "step", "said", "place", "host")}
        return Hang(silent_s=time.monotonic() - self._moved, **fields)

    def _where(self) -> object:
        """What changes while ranks step, or write a window."""
        files = (*self._layout.diaries(), *self._layout.root.glob("window-*/*"), *self._layout.root.glob("window-*/.*"))
        sizes = []
        for path in files:
            with suppress(OSError):  # renamed just now
                sizes.append((path, path.stat().st_size))
        return sizes

    def _limit_s(self) -> float:
        diaries = self._layout.diaries()
        if not diaries:
            return (self._after_s or LEAST_S) * FIRST_STEP
        if self._after_s is not None:
            return self._after_s
        times = [ns for path in diaries[:8] if (ns := latest_step_ns(path)) is not None]
        return max(LEAST_S, STEPS * max(times, default=0) / 1e9)

    def _ask(self, now: float) -> None:
        self._asked = now
        for path in (*self._layout.stacks(), *self._layout.flights()):
            path.unlink(missing_ok=True)
        request = {"number": self._told + 1, "at_unix_ns": time.time_ns()}
        with suppress(StepscopeError):
            write_bytes(self._layout.stack_request, json.dumps(request).encode())

    def _answered(self) -> bool:
        """Of every rank that has stepped: its flight recorder comes after its stack."""
        ranks = {rank_of(path) for path in self._layout.diaries()}
        return bool(ranks) and ranks <= {rank_of(path) for path in self._layout.flights() if _of_rank(path)}

    def _explained(self, now: float) -> Hang:
        steps: dict[int, int] = {}
        for path in self._layout.diaries():  # in order of attempt: the last one counts
            steps[rank_of(path)] = steps_in(path, self._header(path))
        dumps = {}
        for path in filter(_of_rank, self._layout.flights()):
            with suppress(DataError):
                dumps[rank_of(path)] = read_dump(path, rank=rank_of(path))
        stacks = filter(_of_rank, self._layout.stacks()) if steps else self._layout.stacks()
        texts = {rank_of(path): path.read_text(errors="replace") for path in stacks}
        heads = {rank_of(path): _head(path) for path in self._layout.diaries()}
        worlds = [world for head in heads.values() if isinstance(world := head.get("world_size"), int)]
        return explain(
            steps=steps,
            dumps=list(dumps.values()),
            stacks={rank: training_stack(text) for rank, text in texts.items()},
            world_size=max(worlds, default=max(len(steps), 1)),
            silent_s=now - self._moved,
            hosts={rank: str(head["host"]) for rank, head in heads.items() if "host" in head},
        )

    def _header(self, path: Path) -> int | None:
        if path not in self._headers and (length := header_bytes(path)) is not None:
            self._headers[path] = length
        return self._headers.get(path)


def training_ends(layout: ProfileLayout) -> bool:
    """Whether a rank is through with the training: the others may do what they do without steps."""
    last = {rank_of(path): path for path in layout.diaries()}  # in order of attempt
    ends = [ProfileLayout.end_of(path) for path in last.values()]
    return any(_head(path).get("kind") == "exit" for path in ends if path.exists())


def _head(path: Path) -> dict[str, object]:
    """The JSON object of its first line; empty where there is none."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _of_rank(path: Path) -> bool:
    """Whether a stack or a dump is of a process that has stepped, not of a launcher."""
    return "-p" not in path.name
