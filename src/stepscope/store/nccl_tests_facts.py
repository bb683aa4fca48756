"""Which collective a table of nccl-tests is of, on how many ranks and what: from all that the log says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from stepscope.core.bus_factor import OF_WHOLE_BUFFERS, one, twice_others
from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import counted
from stepscope.store.nccl_tests_log import LoggedRun

PROGRAMS: Mapping[str, str] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all", "alltoallv": "all_to_all_v",
    "sendrecv": "send_recv", "gather": "gather", "scatter": "scatter",
}  # fmt: skip
"""Name of a program without ``_perf`` -> the collective that it measures."""

_REDUCING = frozenset(["all_reduce", "reduce_scatter", "reduce"])

_TWICE = frozenset(op for op, factor in OF_WHOLE_BUFFERS.items() if factor is twice_others)
_ONCE = frozenset(op for op, factor in OF_WHOLE_BUFFERS.items() if factor is one)

_ROOTED = frozenset(["broadcast", "reduce", "gather", "scatter"])

LARGEST_WORLD = 1 << 20


@record
class Facts:
    """bus_factor: busbw / algbw of this collective on this many ranks. gpu: the one kind, as the driver names it."""

    op: str
    world_size: int
    bus_factor: float
    hosts: int | None
    gpu: str | None
    hardware: str | None
    notes: tuple[str, ...]


def facts_of(table: LoggedRun, name: str, given: int | None) -> Facts:
    """Find a table's facts. Raises UsageError where the log leaves ranks or collective open, DataError where it contradicts.

    given: the ranks that the user states. The caller puts the log's name before what a DataError says.
    """
    notes: list[str] = []
    listed = ranks_listed(table)
    if table.apart and (listed or table.gpus) == 1:
        raise DataError(
            f"{len(table.apart)} independent jobs of 1 rank each: none of them communicates",
            why="nccl-tests was built without MPI=1, so that each process that mpirun or srun starts is a job of its own",
            fix="build it with MPI=1 (make MPI=1 MPI_HOME=...), and start it again",
        )
    if listed and given and listed != given:
        raise DataError(
            f"its list of devices has {counted(listed, 'rank')}, but --world-size states {given}",
            fix=f"leave out --world-size for {name}",
        )
    span = _printed_factor(table)
    op = _table_op(table, name, span, ranks=listed or given)
    measured = _ranks_from(op, span)
    if listed and measured is not None and measured > listed:
        notes.append(
            f"the list of devices has {counted(listed, 'rank')}, but busbw / algbw is that of {op} on {measured}: a part of "
            "the list is missing"
        )
        listed = None
        given = given or measured
    if table.apart and not listed and table.threads and table.gpus:
        listed = table.threads * table.gpus  # of each process, which is a job of its own
    ranks = listed or given or measured
    if ranks is None:
        raise UsageError(
            f"{name}: the number of ranks is unknown",
            why=f"the log has no list of devices, and the bandwidths of {op} do not determine it",
            fix=f"--world-size {name.split()[0]}=N",
        )
    factor = OF_WHOLE_BUFFERS[op](ranks)
    if not listed and not given:
        notes.append(f"no list of devices: {counted(ranks, 'rank')}, because busbw / algbw of {op} is {factor:.4g}")
    if span is not None and not span[0] <= factor <= span[1]:
        notes.append(
            f"busbw / algbw is {_span_middle(span):.4g} and {op} on {counted(ranks, 'rank')} has {factor:.4g}: "
            "busbw is shown as the log prints it"
        )
        factor = _span_middle(span)
    if (groups := len({d.group for d in table.devices.values()})) > 1:
        notes.append(f"{groups} groups of {ranks} ranks ran at the same time (NCCL_TESTS_SPLIT)")
    if missing := _missing_devices(table):
        notes.append(f"the list of devices lacks {counted(missing, 'rank')}")
    if table.libraries:
        notes.append(", ".join(table.libraries))
    gpus = sorted({d.name for d in table.devices.values()})
    hosts = len({d.host for d in table.devices.values()})
    return Facts(
        op=op,
        world_size=ranks,
        bus_factor=factor,
        hosts=hosts if table.devices and listed else None,
        gpu=gpus[0] if len(gpus) == 1 else None,
        hardware=_hardware_text(gpus, len(table.devices), hosts) if table.devices and listed else None,
        notes=tuple(notes),
    )


def _hardware_text(gpus: Sequence[str], ranks: int, hosts: int) -> str:
    return f"{ranks} x {' and '.join(gpus)}" + (f" on {hosts} hosts" if hosts > 1 else "")


def ranks_listed(table: LoggedRun) -> int | None:
    """Count the ranks of one communicator in the list of devices; None without a whole list."""
    if not table.devices or table.devices_torn or _missing_devices(table):
        return None
    groups: dict[int, int] = {}
    for device in table.devices.values():
        groups[device.group] = groups.get(device.group, 0) + 1
    return max(groups.values())


def _missing_devices(table: LoggedRun) -> int:
    return max(table.devices, default=-1) + 1 - len(table.devices)


def _printed_factor(table: LoggedRun) -> tuple[float, float] | None:
    """Return the interval of busbw / algbw of all rows, rates being rounded to 0.01 GB/s; None where rows differ.

    Rates below 1 GB/s have too few digits to tell anything.
    """
    low, high = 0.0, math.inf
    for row in table.rows:
        for form in (row.out_of_place, row.in_place):
            if form.algbw is None or form.busbw is None or float(form.algbw) < 1:
                continue
            algbw, busbw = float(form.algbw), float(form.busbw)
            low = max(low, (busbw - 0.0051) / (algbw + 0.0051))
            high = min(high, (busbw + 0.0051) / (algbw - 0.0051))
    return (low, high) if low <= high < math.inf else None


def _span_middle(span: tuple[float, float]) -> float:
    return (span[0] + span[1]) / 2


def _ranks_from(op: str, span: tuple[float, float] | None) -> int | None:
    """Return the one number of ranks that gives this busbw / algbw; None where several do, or all."""
    if span is None or op in _ONCE:
        return None
    whole = 2.0 if op in _TWICE else 1.0
    if span[1] >= whole:
        return None
    low = whole / (whole - span[0])
    high = whole / (whole - span[1])
    fitting = range(math.ceil(low), math.floor(high) + 1)
    return fitting[0] if len(fitting) == 1 and 2 <= fitting[0] <= LARGEST_WORLD else None


def _table_op(table: LoggedRun, name: str, span: tuple[float, float] | None, *, ranks: int | None) -> str:
    """Return the collective: the program's, else of the commands before the table the one that fits, else the name's."""
    if table.started is not None:
        if table.started not in PROGRAMS:
            raise DataError(
                f"{table.started}_perf is not a collective that stepscope knows",
                why=f"known are {', '.join(PROGRAMS)}",
            )
        return PROGRAMS[table.started]
    fits = _op_filter(table, span, ranks)
    ran = list(dict.fromkeys(PROGRAMS[p] for p in table.programs if p in PROGRAMS))
    possible = [op for op in ran if fits(op)]
    if len(possible) == 1 or (possible and not _op_in_name(name)):
        return possible[-1]
    called = _op_in_name(name)
    if called is not None and fits(called):
        return called
    if called is not None and not ran:
        seen = "" if span is None else f"busbw / algbw is {_span_middle(span):.4g}, "
        if seen and ranks is not None:
            seen += f"{called} on {counted(ranks, 'rank')} has {OF_WHOLE_BUFFERS[called](ranks):.4g}, "
        raise DataError(
            "the collective is unknown",
            why=f"its name says {called}, which does not fit: {seen}"
            f"reductions: {', '.join(sorted({r.redop or 'none' for r in table.rows}))}",
            fix="rename the file after its program (all_reduce.log), and correct --world-size if you gave it",
        )
    if ran:
        return ran[-1]
    certain = [op for op in PROGRAMS.values() if fits(op)]
    if len(certain) == 1:
        return certain[0]
    raise DataError(
        "the collective is unknown",
        why="neither the log nor the file name states it" + (f"; it can be {', '.join(certain)}" if certain else ""),
        fix="rename the file after its program: all_gather.log",
    )


def _op_filter(table: LoggedRun, span: tuple[float, float] | None, ranks: int | None) -> Callable[[str], bool]:
    """Return whether an operation can be that of a table, by its reductions, roots, and busbw over algbw."""
    reduces = any(row.redop is not None for row in table.rows)
    roots = {row.root for row in table.rows}  # -1: the program has none

    def fits(op: str) -> bool:
        """Whether the table can be of this operation."""
        if reduces != (op in _REDUCING) or (op in _ROOTED and roots == {-1}):
            return False
        if span is None:
            return True
        if ranks is not None:
            return span[0] <= OF_WHOLE_BUFFERS[op](ranks) <= span[1]
        if span[0] <= 1 <= span[1]:
            return op in _ONCE or op in _TWICE  # of those, on two ranks
        return op not in _ONCE and (op in _TWICE) == (span[0] > 1)

    return fits


def _op_in_name(name: str) -> str | None:
    """Return the collective in a file's name, or None; longer names go first, because they contain shorter ones."""
    plain = name.lower().replace("_", "").replace("-", "")
    return next(_in_name(plain), None)


def _in_name(plain: str) -> Iterator[str]:
    for program in sorted(PROGRAMS, key=len, reverse=True):
        if program.replace("_", "") in plain:
            yield PROGRAMS[program]
