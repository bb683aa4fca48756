"""What a job's text says of collectives that did not end: who waited where, and who never came. Pure.

A number counts the calls of one process group: numbers of two groups are never compared. A rank of which the text has no
line is not accused: it may have come, and its output be elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration
from stepscope.core.words import grouped, plural
from stepscope.records.imported import Sign
from stepscope.records.profile import Hang

APART = 1024
"""Calls by which ranks of one group may be apart: what a device takes into its queue before its process has to wait."""

STOOD_STILL = 1.5
"""From this multiple of the timeout on, the process that should have seen it did not run."""

_OPS = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather", "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "reduce_scatter",
    "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
}  # fmt: skip
_MOST_DIGITS = 15
"""Of a number of elements: torch writes 2**64 - 1 for calls that it puts together."""
_OF_ONE_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Operations whose input has as many elements on every rank."""


@record
class Wait:
    """One rank that waited in a call until the timeout. rank: global, of old lines without a prefix the group's member.

    group: None where the text does not say it. op, elements, waited_s, timeout_s: likewise.
    """

    rank: int
    member: int
    sequence: int
    group: str | None = None
    op: str | None = None
    elements: int | None = None
    waited_s: float | None = None
    timeout_s: float | None = None

    @property
    def what(self) -> tuple[str, int | None]:
        """Operation and size, which the ranks of one call share."""
        return self.op or "", self.elements if self.op in _OF_ONE_SIZE else None


@record
class Position:
    """How far a rank came in a group: the last calls that it enqueued and that its device completed."""

    rank: int
    group: str
    enqueued: int
    completed: int


@record
class WaitedCall:
    """A call in which ranks waited until the timeout. never: ranks that had not called it by then, as they say themselves;
    came: those that had, and gave no timeout of their own.

    sure: whether all of its lines are of one group; others only have the same number.
    """

    sequence: int
    group: str | None
    waits: tuple[Wait, ...]
    never: tuple[Position, ...]
    came: tuple[int, ...]
    sure: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({wait.rank for wait in self.waits}))

    @property
    def inside(self) -> tuple[int, ...]:
        """All ranks that are known to be in it."""
        return tuple(sorted({*self.ranks, *self.came}))

    @property
    def sides(self) -> list[tuple[tuple[str, int | None], list[int]]]:
        """What ranks called, the fewest ranks first."""
        sides = grouped((wait for wait in self.waits if wait.op), lambda wait: wait.what)
        sized = {op for op, size in sides if size is not None}  # a line that is cut off has no size
        ranks = {
            (op, size): sorted({wait.rank for wait in waits})
            for (op, size), waits in sides.items()
            if size is not None or op not in sized
        }
        return sorted(ranks.items(), key=lambda side: (len(side[1]), -side[1][0]))

    @property
    def seconds(self) -> float | None:
        """How long the first of them waited, or its timeout."""
        return max((seconds for wait in self.waits if (seconds := wait.waited_s or wait.timeout_s)), default=None)

    @property
    def after(self) -> str:
        return "" if self.seconds is None else f", after {format_duration(self.seconds * 1e9)}"


@record
class TextHang:
    """calls: in the order of the text; of each group the earliest first. world_size: as the text says it, else None.

    scattered: lines without a group have numbers that cannot be of one. still: of waits far longer than their timeout.
    """

    calls: tuple[WaitedCall, ...]
    positions: tuple[Position, ...]
    names: dict[str, str]
    world_size: int | None
    scattered: bool
    still: tuple[Wait, ...]

    def named(self, call: WaitedCall, *, after: bool = True) -> str:
        """Return a call with its group, operation and size, and how long it was waited for."""
        group = call.group and self.names.get(call.group, f"process group {call.group}")
        sides = call.sides
        op = f", {op_name(sides[-1][0][0])}" if sides else ""
        size = sides[0][0][1] if len(sides) == 1 else None
        sizes = {wait.elements for wait in call.waits if wait.elements is not None}
        if size is None and len(sizes) == 1:
            size = next(iter(sizes))
        of_size = "" if size is None else f" of {size:,} {plural(size, 'element')}"
        of_group = f" of {group}" if group else ""
        return f"collective {call.sequence}{of_group}{op}{of_size}{call.after if after else ''}"


def op_name(op: str) -> str:
    """Return an operation as plans call it: ``all_gather`` for ``_ALLGATHER_BASE``."""
    return _OPS.get(op, op.strip("_").lower())


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the ranks of a list: ``0, 1, 5``."""
    return tuple(int(word) for word in text.split(","))


def text_hang_of(signs: Iterable[Sign], world_size: int | None = None) -> TextHang:
    """Compare what ranks say of calls that ran into their timeout. world_size: where it is known from elsewhere."""
    signs = tuple(signs)
    statuses = [sign for sign in signs if sign.kind == "group-status" and _sign_rank(sign) is not None]
    positions = tuple(
        Position(
            rank=_sign_rank(sign) or 0,
            group=_sign_group(sign) or "",
            enqueued=int(sign.values["enqueued"]),
            completed=int(sign.values["completed"]),
        )
        for sign in statuses
    )
    waits = _rank_waits([sign for sign in signs if sign.kind in ("timeout", "timeout-cut")], statuses)
    calls = []
    for group, of_group in grouped(waits, lambda wait: wait.group).items():
        waiting = {wait.rank for wait in of_group}
        for sequence, same in sorted(grouped(of_group, lambda wait: wait.sequence).items()):
            others = [p for p in positions if p.group == group and p.rank not in waiting]
            calls.append(
                WaitedCall(
                    sequence=sequence,
                    group=group,
                    waits=tuple(same),
                    never=tuple(p for p in others if p.enqueued < sequence),
                    came=tuple(p.rank for p in others if p.completed < sequence <= p.enqueued),
                    sure=_of_one_group(same, group),
                )
            )
    apart = [wait.sequence for wait in waits if wait.group is None]
    worlds = {int(sign.values["world"]) for sign in signs if sign.kind == "world"}
    if not worlds:  # the largest communicator that is alone in its group
        worlds = {max((int(sign.values["world"]) for sign in signs if sign.kind == "ras-world"), default=0)} - {0}
    return TextHang(
        calls=tuple(calls),
        positions=positions,
        names={_sign_group(status) or "": _group_text(status) for status in statuses},
        world_size=world_size or (worlds.pop() if len(worlds) == 1 else None),
        scattered=bool(apart)
        and (max(apart) - min(apart) > APART or not all(c.sure for c in calls if c.group is None)),
        still=tuple(w for w in waits if w.waited_s and w.timeout_s and w.waited_s > STOOD_STILL * w.timeout_s),
    )


def hang_of(signs: Iterable[Sign]) -> Hang | None:
    """Return what is known of a hang in the terms of the one judge: whom ranks waited for is named by what that rank or the
    text says itself, and by nothing else. None where no rank gave up waiting."""
    signs = tuple(signs)
    text = text_hang_of(signs)
    named = [n for s in signs if s.kind in ("desync", "desync-never", "barrier") for n in numbers_of(s.values["ranks"])]
    if not named and text.calls and not text.still:
        named = [position.rank for position in text.calls[0].never]
    ranks = tuple(sorted(set(named)))
    reached = [sign.rank for sign in signs if sign.kind == "barrier-reached" and sign.rank is not None]
    waiting = tuple(sorted({*reached, *(rank for call in text.calls for rank in call.inside)} - set(ranks)))
    if not ranks and not waiting:
        return None
    first = text.calls[0] if text.calls else None
    return Hang(
        ranks=ranks,
        waiting=waiting,
        silent_s=max((call.seconds or 0.0 for call in text.calls), default=0.0),
        step=0,
        timed_out=waiting,
        timeout=None if first is None else f"collective {first.sequence}",
    )


def _sign_rank(sign: Sign) -> int | None:
    if sign.rank is not None:
        return sign.rank
    return int(sign.values["member"]) if "member" in sign.values else None


def _sign_group(sign: Sign) -> str | None:
    return sign.values.get("group") or sign.values.get("number")


def _group_text(sign: Sign) -> str:
    """Return a group as its line has it: its number on that rank, its own id where that differs, its name."""
    number, group, name = (sign.values.get(key) for key in ("number", "group", "name"))
    if name == "default_pg":
        return name
    more = [f"id {group}" if group not in (None, number) else None, None if name == "undefined" else name]
    inside = ", ".join(filter(None, more))
    return f"process group {number}{f' ({inside})' if inside else ''}"


def _may_be_one_group(one: Sign, other: Sign) -> bool:
    """Whether two lines can be of one group: its members are numbered in the order of their ranks."""
    rank, member = ((_sign_rank(s) or 0, int(s.values.get("member", _sign_rank(s) or 0))) for s in (one, other))
    return (rank[0] < member[0], rank[0] > member[0]) == (rank[1] < member[1], rank[1] > member[1])


def _line_of(sign: Sign) -> tuple[str | None, ...]:
    """Return what a line says beside its prefix: an exception repeats it without the global rank."""
    return tuple(sign.values.get(key) for key in ("member", "sequence", "ran"))


def _rank_waits(timeouts: Sequence[Sign], statuses: Sequence[Sign]) -> list[Wait]:
    """Return the waits of ranks, each once: the line of a status says the group of the timeout with the same number."""
    at = grouped((s for s in statuses if "at" in s.values), lambda sign: int(sign.values["at"]))
    waits: dict[Wait, None] = {}
    prefixed = {_line_of(sign) for sign in timeouts if sign.rank is not None}
    for sign in timeouts:
        rank, number = _sign_rank(sign), sign.values.get("sequence")
        repeated = sign.rank is None and _line_of(sign) in prefixed
        if rank is None or number is None or repeated:
            continue
        same = at.get(int(number), [])
        groups = {_sign_group(s) for s in same if _sign_rank(s) == rank}
        if not groups:
            by_group = grouped(same, _sign_group)
            groups = {
                group for group, others in by_group.items() if all(_may_be_one_group(other, sign) for other in others)
            }
        ran, timeout, elements = (sign.values.get(key) for key in ("ran", "timeout", "elements"))
        wait = Wait(
            rank=rank,
            member=int(sign.values.get("member", rank)),
            sequence=int(number),
            group=groups.pop() if len(groups) == 1 else None,
            op=sign.values.get("op"),
            elements=None if elements is None or len(elements) > _MOST_DIGITS else int(elements),
            waited_s=None if ran is None else int(ran) / 1000,
            timeout_s=None if timeout is None else int(timeout) / 1000,
        )
        waits[wait] = None
    reported = {(wait.rank, wait.group, wait.sequence) for wait in waits}
    for sequence, same in at.items():
        for sign in same:
            rank = _sign_rank(sign)
            if rank is not None and (rank, _sign_group(sign), sequence) not in reported:
                member = int(sign.values.get("member", rank))
                waits[Wait(rank=rank, member=member, sequence=sequence, group=_sign_group(sign))] = None
    return list(waits)


def _of_one_group(waits: Sequence[Wait], group: str | None) -> bool:
    """Whether lines with one number are of one group: they say so, or nothing speaks against it.

    One rank in two such calls, or two ranks with the same number within their group, are of two groups.
    """
    by_rank = grouped(waits, lambda wait: wait.rank)
    for of_rank in by_rank.values():
        ops, sizes = ({wait.what[n] for wait in of_rank} - {"", None} for n in (0, 1))
        if len(ops) > 1 or len(sizes) > 1:
            return False
    members = [of_rank[0].member for _, of_rank in sorted(by_rank.items())]
    return group is not None or (sorted(set(members)) == members)
