"""Python stacks that ranks left: where the training thread is, and what it does there. Pure."""

from __future__ import annotations

import linecache
import re
from dataclasses import replace

from stepscope.core.dataclass import record

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>.+)')
_THREAD = re.compile(r"(?:Current t|T)hread 0x(?P<ident>[0-9a-f]+)")
_PART = re.compile(r"pid \d+ at \S+ in (?P<part>\S+) after (?P<steps>\d+) steps")
_FOREIGN = re.compile(r"^<|[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|stepscope_hook")
_WAITS = re.compile(r"[/\\]torch[/\\](?:distributed|autograd|cuda|accelerator)[/\\]")
_WINDOW = re.compile(r"stepscope_hook[/\\](?:window|plans)\.py$")

_WHERE = (
    ("checkpoint", r"[/\\]torch[/\\]serialization\.py$|[/\\]distributed[/\\]checkpoint[/\\]|[/\\]safetensors[/\\]"),
    ("compilation", r"[/\\]torch[/\\]_(?:dynamo|inductor|functorch)[/\\]|[/\\]triton[/\\]compiler[/\\]"),
    ("data", r"[/\\]torch[/\\]utils[/\\]data[/\\]|[/\\]torchdata[/\\]"),
)
"""Part of a step <- files of the calls that are in it."""
_CALLED = (
    ("checkpoint", r"_?(?:save|load|write)_(?:checkpoint|pretrained|state|model)|_save_checkpoint|save_file"),
    ("evaluation", r"(?:\w+_)?(?:eval|evaluate|evaluation|validate|validation)(?:_\w+)?"),
)
"""Part of a step <- names of the functions that are in it."""
_COMPILED_CODE = re.compile(
    r"eval_frame\.py$|external_utils\.py$|_aot_autograd[/\\]runtime_wrappers|[/\\]output_code\.py$"
)
"""Matches a frame of compiled code that runs, too."""

QUIET = frozenset({"checkpoint", "evaluation", "compilation", "window"})
"""Parts in which a job makes no step, and all is well."""


@record
class StackFrame:
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


@record
class Standing:
    """Where one rank stands. part: of the step, as its recorder saw it; steps: number that it has ended. frames: the
    innermost call first; empty: not known."""

    part: str | None = None
    steps: int | None = None
    frames: tuple[StackFrame, ...] = ()

    @property
    def place(self) -> str | None:
        """The innermost line of the user's own."""
        return next((frame.place for frame in self.frames if frame.own), None)

    @property
    def waits(self) -> bool | None:
        """Whether it waits for other ranks (or for a device that may); None: not known."""
        if self.frames:
            return _WAITS.search(self.frames[0].file) is not None
        return None if self.part is None else self.part in ("comm", "backward")

    @property
    def doing(self) -> str | None:
        """The part of the step, by its calls where they tell more than the recorder: the name of a collective, else a
        key."""
        outside = (frame for frame in self.frames if not _COMPILED_CODE.search(frame.file))
        for frame in outside:
            if _WINDOW.search(frame.file):
                return "window"
            for part, files in _WHERE:
                if re.search(files, frame.file):
                    return part
        for frame in self.frames:
            for part, names in _CALLED:
                if frame.own and re.fullmatch(names, frame.name):
                    return part
        if self.waits and self.frames:
            called = [frame.name for frame in self.frames if "distributed_c10d" in frame.file]
            return called[-1] if called else self.part if self.part in ("backward", "optimizer") else "comm"
        return self.part


@record
class LeftState:
    """The state that a process left in its black box. steps: number of steps that had ended. seen_ns: when ``standing.part``
    was seen, on the wall clock. standing: with a stack where SIGTERM came."""

    steps: int
    seen_ns: int
    standing: Standing


def training_stack(text: str) -> Standing:
    """Return where the main thread stands, from what the hook wrote when it was asked: it comes first, the innermost call
    last."""
    frames: list[StackFrame] = []
    head = _PART.match(text)
    for line in text.splitlines():
        if line.startswith("thread ") and frames:
            break
        if match := _FRAME.match(line):
            frames.append(StackFrame(file=match["file"], line=int(match["line"]), name=match["name"]))
        elif frames and not frames[-1].code and line.startswith("    ") and line.strip(" ~^"):
            frames[-1] = replace(frames[-1], code=line.strip())
    part = None if head is None or head["part"] == "nothing" else head["part"]
    return Standing(part=part, steps=None if head is None else int(head["steps"]), frames=tuple(reversed(frames)))


def signalled_stack(text: str, ident: int) -> tuple[StackFrame, ...]:
    """Return the calls of the thread ``ident``, the innermost first, from the last of the stacks that Python's faulthandler
    wrote."""
    frames: list[StackFrame] = []
    inside = False
    for line in text.splitlines():
        if match := _THREAD.match(line):
            inside = int(match["ident"], 16) == ident
            if inside:
                frames = []
        elif inside and (match := _FRAME.match(line)):
            code = linecache.getline(match["file"], int(match["line"])).strip()
            frames.append(StackFrame(file=match["file"], line=int(match["line"]), name=match["name"], code=code))
    return tuple(frames)
