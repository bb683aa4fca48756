"""Which rank the names of files and folders state: alone (``rank3``), or side by side (``-TP-0-PP-1``, ``trace_0``).

A name is its numbers, each with the word before it. What the words say of a rank is the table ``AXES``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from stepscope.core.dataclass import dataclass, record

AXES: Mapping[str, tuple[str, ...]] = {
    "rank": ("rank", "globalrank", "global", "worker", "procid", "r"),
    "node": ("node", "noderank", "grouprank", "host", "machine", "server", "pod"),
    "pp": ("pp", "pprank", "stage", "stagerank"),
    "dp": ("dp", "dprank", "replica"),
    "cp": ("cp", "cprank", "sp", "dcp"),
    "ep": ("ep", "eprank"),
    "tp": ("tp", "tprank", "mp", "mprank"),
    "device": ("gpu", "device", "npu", "xpu", "hip", "cuda", "card", "localrank", "local", "proc", "process"),
    "process": ("pid",),
    "capture": ("step", "iter", "iteration", "epoch", "cycle", "window", "capture", "part", "of", "attempt", "v"),
}
"""Words before a number, without blanks and marks. The first names a rank by itself, the last two never do; between them lie
the axes of a grid, the slowest first."""

_AXIS_OF = {word: axis for axis, words in AXES.items() for word in words}
_GRID = tuple(AXES)[1:-2]

RANK_FOLDER = re.compile(
    r"(global_?rank|local_?rank|rank|worker|node|host|machine|proc|process|gpu|device|npu|xpu|card|slurm-\d+\.)"
    r"[-_.]?\[?(\d+)\]?",
    re.IGNORECASE,
)
"""A folder of one rank (``rank3``, ``gpu_3``, ``slurm-812.3``) or of a host's ranks: its files are of its parent's job."""

_FOLDER = re.compile(rf"{RANK_FOLDER.pattern}|\d{{1,4}}", re.IGNORECASE)
_ENDING = re.compile(r"(\.pt)?(\.trace)?(\.json|\.sqlite)(\.gz|\.zst)*$")
_FIELD = re.compile(
    r"(?P<word>(?:(?<![A-Za-z])(?i:global|local|node|group|stage|tp|pp|dp|ep|cp|mp)[-_ ]?(?=[Rr]ank|RANK))?"
    r"(?:[A-Z]?[a-z]+|[A-Z]+)?)[^A-Za-z0-9]*(?P<number>\d+(?:(?<=\d{9})\.\d+)?)"
)
_HANDLER = re.compile(r"[_.](?P<process>\d+)\.\d{10,}(?:\.\d+)?$")
"""Of tensorboard_trace_handler: ``HOST_PID.TIME.pt.trace.json``, without its ending."""

_MOST, _MOST_PLAIN = 1 << 16, 1 << 10
"""No rank is larger: what is names a process, or a time. Without a word for a rank, much smaller numbers do."""
_TIME_DIGITS = 9


@record
class NamedRank:
    """The rank that a name states. sure: by a word for it. how: in words. stem: the name without it, ids of processes and
    times. when: its times and numbers of steps."""

    rank: int | None
    sure: bool
    how: str
    stem: str
    when: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Field:
    """One number of a name. axis: a key of ``AXES``, or "" where the word before it is none of them; word: where that
    begins."""

    axis: str
    text: str
    word: int
    start: int
    end: int

    @property
    def value(self) -> int:
        return int(self.text.partition(".")[0])

    @property
    def is_time(self) -> bool:
        return len(self.text.partition(".")[0]) >= _TIME_DIGITS

    def moved(self, by: int) -> _Field:
        return replace(self, word=max(self.word + by, 0), start=self.start + by, end=self.end + by)

    @property
    def is_id(self) -> bool:
        return self.value >= (_MOST if self.axis else _MOST_PLAIN)


def is_of_ranks(folder: Path) -> bool:
    """Return whether the folder is one of a job's, each of a rank, a device or a host. ``gpu4`` alone may be a whole job on
    four: devices are counted from 0."""
    match = RANK_FOLDER.fullmatch(folder.name)
    if folder.name.endswith(("_ascend_pt", "_ascend_ms")):
        return True
    if match is None:
        return re.fullmatch(r"\d{1,4}", folder.name) is not None and (folder.parent / "0").is_dir()
    first = folder.name[: match.start(2)] + "0" * len(match[2]) + folder.name[match.end(2) :]
    return _AXIS_OF.get(match[1].lower().replace("_", "")) != "device" or (folder.parent / first).is_dir()


def rank_from_name(path: Path) -> int | None:
    """The rank that a file name states by itself (rank-3, worker3, TP-3), or else its folder; None when neither does."""
    return ranks_by_name([path])[str(path)].rank


def ranks_by_name(files: Sequence[Path]) -> dict[str, NamedRank]:
    """Return for every file, by its path, the rank that its name states beside the others'."""
    texts = {str(file): _name_text(file) for file in files}
    fields = {name: _name_fields(text) for name, text in texts.items()}
    chosen, how = _chosen_ranks(fields, texts)
    named: dict[str, NamedRank] = {}
    for name, text in texts.items():
        rank, used = chosen.get(name, (None, ()))
        own = text.rfind("/") + 1
        of_rank = [f for f in fields[name] if f in used or f.is_id or f.axis not in ("", "capture")]
        stem = _text_without_fields(text[own:], [f.moved(-own) for f in of_rank if f.start >= own])
        when = tuple(f.value for f in fields[name] if f.is_time or f.axis == "capture")
        sure = rank is not None and any(f.axis == "rank" for f in used)
        named[name] = NamedRank(rank=rank, sure=sure, how=how, stem=stem, when=when)
    return named


Chosen = dict[str, tuple[int, tuple[_Field, ...]]]


def _chosen_ranks(fields: Mapping[str, Sequence[_Field]], texts: Mapping[str, str]) -> tuple[Chosen, str]:
    """Return the rank of each file and the numbers that state it; and how, in words."""
    by_axis = {name: {f.axis: f for f in row} for name, row in fields.items()}  # the last of an axis: the file's own
    if any("rank" in axes for axes in by_axis.values()):
        return {n: (a["rank"].value, (a["rank"],)) for n, a in by_axis.items() if "rank" in a}, "from the file name"
    axes = [axis for axis in _GRID if all(axis in row for row in by_axis.values())]
    alone = len(fields) == 1
    if alone:  # of one file only what needs no other
        axes = [axis for axis in axes if axis != "node" and next(iter(by_axis.values()))[axis].value] or axes[-1:]
        axes = axes if len(axes) == 1 and axes != ["node"] else []
    by_process = {} if alone or axes not in ([], ["node"]) else _by_process(fields, texts)
    if by_process:
        return by_process, "by the order of hosts and process ids in the file names"
    if axes:
        grid = _by_grid({name: [row[axis] for axis in axes] for name, row in by_axis.items()})
        if grid and (alone or len({rank for rank, _ in grid.values()}) > 1):
            return grid, "from the file name" if len(axes) == 1 else f"from the file name ({', '.join(axes)})"
    shapes = {tuple((f.axis, f.is_time) for f in row) for row in fields.values()}
    if not alone and len(shapes) == 1:
        places = [i for i, (axis, is_time) in enumerate(next(iter(shapes))) if not axis and not is_time]
        plain = {name: [row[i] for i in places] for name, row in fields.items()}
        grid = _by_grid(plain)
        if len({rank for rank, _ in grid.values()}) > 1:
            return grid, "from the file name"
    return {}, ""


def _by_grid(fields: Mapping[str, Sequence[_Field]]) -> Chosen:
    """Number the files by a few numbers each, the slowest first: by the fastest alone where that tells as many files apart,
    else by all that vary. Empty where the numbers are not those of a whole grid."""
    rows = list(fields.values())
    width = min(map(len, rows), default=0)
    if not width or any(len(row) != width for row in rows):
        return {}
    values = [sorted({row[i].value for row in rows}) for i in range(width)]
    varying = [i for i in range(width) if len(values[i]) > 1]
    cells = {tuple(row[i].value for i in varying) for row in rows}
    alone = [i for i in (varying or range(width)) if len(values[i]) == len(cells)]
    if alone:
        return {
            name: (row[alone[-1]].value, tuple(row[i] for i in (*varying, alone[-1]))) for name, row in fields.items()
        }
    number = {cell: at for at, cell in enumerate(sorted(cells))}
    whole = 1
    for i in varying:
        whole *= len(values[i])
    if len(cells) < whole:
        return {}
    return {
        name: (number[tuple(row[i].value for i in varying)], tuple(row[i] for i in varying))
        for name, row in fields.items()
    }


def _by_process(fields: Mapping[str, Sequence[_Field]], texts: Mapping[str, str]) -> Chosen:
    """Number the files by host and process id, which is how a launcher starts them; empty where names lack one."""
    keys: dict[str, tuple[str, int]] = {}
    used: dict[str, tuple[_Field, ...]] = {}
    handlers = False
    for name, row in fields.items():
        ids = [f for f in row if f.axis == "process" or (f.is_id and not f.is_time)]
        if not ids:
            return {}
        handlers |= ids[-1].axis == "process"
        keys[name] = (_text_without_fields(texts[name][: ids[-1].start], []), ids[-1].value)
        used[name] = tuple(row)
    if not handlers and len({number for _, number in keys.values()}) == 1:
        return {}
    number = {key: at for at, key in enumerate(sorted(set(keys.values()), key=lambda key: (natural(key[0]), key[1])))}
    return {name: (number[key], used[name]) for name, key in keys.items()} if len(number) > 1 else {}


def home(path: PurePath) -> PurePath:
    """Return the folder of a file's job: above the folders of ranks that it lies in."""
    return next((f for f in path.parents if not _FOLDER.fullmatch(f.name)), path.parent)


def _name_text(path: Path) -> str:
    """The file's name without its ending, behind those of its folders that are of a rank, or a number alone."""
    whole = path.parent / path.name  # a file behind a URL, too
    return _ENDING.sub("", whole.relative_to(home(whole)).as_posix())


def _name_fields(text: str) -> list[_Field]:
    """Return the numbers in a file's name, each with the axis that the word before it names."""
    numbers = []
    handler = _HANDLER.search(text)
    for match in _FIELD.finditer(text):
        axis = _AXIS_OF.get(re.sub(r"[-_ ]", "", match["word"]).lower(), "")
        if axis not in ("rank", "tp", "device") and handler and handler.start("process") == match.start("number"):
            axis = "process"
        field = _Field(axis, match["number"], match.start(), match.start("number"), match.end())
        numbers.append(replace(field, axis="") if field.is_id and axis != "process" else field)
    return numbers


def _text_without_fields(text: str, fields: Iterable[_Field]) -> str:
    """The text without these numbers, the words of their axes, and marks at its ends."""
    for field in sorted(fields, key=lambda f: -f.start):
        text = text[: field.word if field.axis else field.start] + text[field.end :].lstrip("])")
    return text.strip("-_. ")


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts rank-2 before rank-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", f"{name}\0") if part]
