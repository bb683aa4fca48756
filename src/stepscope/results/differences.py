"""How two or more runs were made (what is the same, what is not, what a side does not tell), and which sweep of
collectives of one side is which of the other.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.words import grouped, ranges
from stepscope.machine.topology import parse_topology
from stepscope.records.comm import CommRow
from stepscope.records.comparison import Difference
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import PER_EPOCH
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.labels import (
    env_label,
    flight_label,
    identity,
    op_label,
    pacing_label,
    place_label,
    sweep_names,
)
from stepscope.results.pairs import matched

Key = tuple[object, ...]
Rows = dict[int, CommRow]
"""Rows of one sweep by size in bytes."""


@record
class SweepPair:
    """The same sweep on two sides. name: ``all_reduce on 8 ranks, NCCL_ALGO=Ring``; both names where they differ."""

    name: str
    first: Rows
    second: Rows


def sweep_pairs(
    first: Sequence[CommRow], second: Sequence[CommRow]
) -> tuple[tuple[SweepPair, ...], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the sweeps that both sides have, and the names of those that one side has alone.

    A sweep is everything it was measured with, variables, device, backend, network, pacing and calls in flight included.
    What is left pairs by operation, ranks, type and way of calling, where that names one sweep on each side.
    """
    # One row of each, so that names say what was measured and not in which of the two it was.
    called = sweep_names(
        list({(identity(r), r.size_bytes): r for r in (*_measured_rows(first), *_measured_rows(second))}.values())
    )
    first_sweeps, first_twice = _unique_and_repeated_sweeps(_measured_rows(first))
    second_sweeps, second_twice = _unique_and_repeated_sweeps(_measured_rows(second))
    same, left = matched(first_sweeps, second_sweeps, lambda rows: _row_key(next(iter(rows.values()))))
    alike, left = matched(*left, _sweep_key)
    alone = tuple(
        tuple(
            [_sweep_name(rows, called) for rows in sweeps]
            + [f"{_sweep_name(rows, called)}: measured more than once, so it cannot be paired" for rows in twice]
        )
        for sweeps, twice in zip(left, (first_twice, second_twice), strict=True)
    )
    return tuple(_sweep_pair(a, b, called) for a, b in (*same, *alike)), (alone[0], alone[1])


def _measured_rows(rows: Sequence[CommRow]) -> list[CommRow]:
    return [row for row in rows if row.kind == "collective" and row.status == "ok" and row.time_ns and row.size_bytes]


def _unique_and_repeated_sweeps(rows: Sequence[CommRow]) -> tuple[list[Rows], list[Rows]]:
    """Return the sweeps, apart from those of which a size is there more than once."""
    once: list[Rows] = []
    twice: list[Rows] = []
    for sweep in grouped(rows, _row_key).values():
        sizes = {row.size_bytes or 0: row for row in sweep}
        (once if len(sizes) == len(sweep) else twice).append(sizes)
    return once, twice


def _row_key(row: CommRow) -> Key:
    return (*identity(row), row.root, row.bidirectional)


def _sweep_key(rows: Rows) -> Key:
    row = next(iter(rows.values()))
    return (op_label(row), row.world_size, row.dtype, row.reduce_op, place_label(row), flight_label(row), row.root)


def _sweep_name(rows: Rows, called: Callable[[CommRow], str]) -> str:
    row = next(iter(rows.values()))
    return f"{op_label(row)} on {called(row)}"


def _sweep_pair(first: Rows, second: Rows, called: Callable[[CommRow], str]) -> SweepPair:
    a, b = _sweep_name(first, called), _sweep_name(second, called)
    return SweepPair(name=a if a == b else f"{a} → {b}", first=first, second=second)


def conditions_of_row(row: CommRow) -> dict[str, object]:
    """What a sweep was measured on, for a list of what differs between two."""
    return {
        "device": row.device,
        "backend": row.backend,
        "network": row.network or "real",
        "pacing": pacing_label(row),
        "hosts": row.hosts,
        "variables": env_label(row.env),
    }


_RUN_FIELDS = (
    "model", "dataset", "strategy", "precision", "accumulation", "world_size", "micro_batch", "global_batch", "scaling",
    "device", "backend", "hardware", "num_parameters",
)  # fmt: skip

Where = Literal["machine", "settings", "software"]
Facts = Mapping[str, Any]

CORE: Mapping[Where, tuple[str, ...]] = {
    "machine": ("host", "gpus"),
    "software": ("torch", "cuda", "nccl", "driver"),
}
"""What decides a figure most: said to be unknown even where no side tells."""


@record
class Conditions:
    """Conditions of the sides. differ, same: what all sides tell; unknown: what one of them does not tell."""

    differ: tuple[Difference, ...]
    same: tuple[Difference, ...]
    unknown: tuple[Difference, ...]


def conditions_of(sides: Sequence[Evidence], partners: Sequence[tuple[Any, ...]]) -> Conditions:
    """Return machine and software of the sides, then settings of what is compared, each with its value on every side.

    partners: runs, sweeps and traced jobs that have one another on the sides, in their order.
    """
    traced = [tuple(job.summary for job in jobs) for jobs in partners if isinstance(jobs[0], TraceEvidence)]
    runs = [partner for partner in partners if isinstance(partner[0], TrainingRun)]
    sweeps = [partner for partner in partners if isinstance(partner[0], CommRow)]
    machines = [_machine_facts(side.environment, side.hardware) for side in sides]
    settings: list[list[Facts]] = [_asked_facts(run) for run in runs]
    settings += [[conditions_of_row(row) for row in sweep] for sweep in sweeps]
    settings += [[_trace_setting_facts(job) for job in jobs] for jobs in traced]
    return _sorted_conditions(
        [
            ("settings", _command_facts(sides)),
            ("settings", [_dry_setting_facts(side) for side in sides]),
            ("machine", _with_devices(machines, traced)),
            ("software", _facts_with_absences([_software_facts(side.environment) for side in sides])),
            *(("settings", setting) for setting in settings),
        ]
    )


def _command_facts(sides: Sequence[Evidence]) -> list[Facts]:
    """Return how the commands of jobs that were started under the hook differ, without the words that all begin, or end,
    with; nothing where a side is not one such job."""
    started = [[job.record.command for job in side.profiled] or [job.run.command for job in side.dry] for side in sides]
    if any(len(commands) != 1 for commands in started):
        return [{} for _ in sides]
    commands = [[Path(word).name for word in line] for (line,) in started]
    ahead = _common_words(commands)
    behind = _common_words([words[ahead:][::-1] for words in commands])
    apart = [words[ahead : len(words) - behind] for words in commands]
    whole = [shlex.join(words) for words in (apart if any(apart) else commands)]
    return [{"command": f"... {text or '-'}" if any(apart) and ahead else text or "-"} for text in whole]


def _dry_setting_facts(side: Evidence) -> Facts:
    """Return what a dry run is priced on, and what its wrappers were made to do."""
    return {
        key: value
        for job in side.dry
        for key, value in {"gpu": job.run.gpu, "network": job.run.network, **job.run.changes}.items()
    }


def _common_words(commands: Sequence[Sequence[str]]) -> int:
    """Return with how many equal words all commands begin."""
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*commands, strict=False)))


def trace_conditions(first: TraceSummary, second: TraceSummary) -> Conditions:
    """Return the conditions of two traced jobs, as far as their traces tell."""
    jobs = (first, second)
    return _sorted_conditions(
        [
            ("machine", [_device_facts(job) for job in jobs]),
            ("software", [{}, {}]),
            ("settings", [_trace_setting_facts(job) for job in jobs]),
        ]
    )


def _facts_with_absences(sides: Sequence[Facts]) -> list[Facts]:
    """Fill in "none" for packages and variables that a recorded side does not list: they are not there."""
    listed = {key: "none" for side in sides for key in side if key.startswith(("package ", "variable "))}
    return [{**listed, **side} if side else side for side in sides]


def _with_devices(machines: Sequence[Facts], jobs: Sequence[tuple[TraceSummary, ...]]) -> list[Facts]:
    """Fill in hosts and devices that the traces name, where no environment was recorded."""
    if len({tuple(map(str, map(_device_facts, job))) for job in jobs}) != 1:
        return list(machines)
    devices = [_device_facts(job) for job in jobs[0]]
    return [
        {**traced, **{key: value for key, value in machine.items() if value is not None}}
        for machine, traced in zip(machines, devices, strict=True)
    ]


def _device_facts(job: TraceSummary) -> Facts:
    """Return the hosts and GPUs of a traced job."""
    names = Counter(p.facts.device_name for p in job.ranks)
    hosts = set(job.hosts.values())
    cpu_only = all(p.budget is not None and p.budget.source == "cpu_spans" for p in job.ranks)
    gpus = ", ".join(f"{n} x {name}" for name, n in sorted(names.items(), key=str)) if None not in names else None
    return {
        "host": None if None in hosts or not hosts else ", ".join(sorted(h for h in hosts if h)),
        "gpus": "none" if gpus is None and cpu_only else gpus,
    }


def _trace_setting_facts(job: TraceSummary) -> Facts:
    """Return the ranks, those of them that were traced, and the backend of a job."""
    backends = {p.facts.backend for p in job.ranks}
    return {
        "world_size": job.world_size,
        "ranks traced": ranges(p.facts.rank for p in job.ranks),
        "backend": None if None in backends else ", ".join(sorted(b for b in backends if b)) or None,
    }


def _sorted_conditions(lists: Iterable[tuple[Where, Sequence[Facts]]]) -> Conditions:
    """Sort every key by whether all sides tell the same, or not, or not all tell; once for each of its values."""
    by_kind: dict[str, dict[Difference, None]] = {"differ": {}, "same": {}, "unknown": {}}
    for where, sides in lists:
        for difference in _differences(where, sides):
            values = set(difference.values)
            kind = "unknown" if None in values else "same" if len(values) == 1 else "differ"
            by_kind[kind][difference] = None
    unlike = {(difference.where, difference.key) for kind in ("differ", "unknown") for difference in by_kind[kind]}
    same = tuple(difference for difference in by_kind["same"] if (difference.where, difference.key) not in unlike)
    return Conditions(differ=tuple(by_kind["differ"]), same=same, unknown=tuple(by_kind["unknown"]))


def _differences(where: Where, sides: Sequence[Facts]) -> Iterator[Difference]:
    core = CORE.get(where, ())
    for key in dict.fromkeys([*core, *(key for side in sides for key in side)]):
        values = tuple(_text_or_none(side.get(key)) for side in sides)
        if key in core or any(value is not None for value in values):
            yield Difference(where=where, key=key, values=values)


def _machine_facts(environment: EnvironmentRecord | None, hardware: Sequence[str]) -> Facts:
    """Return what is known of a machine: processor, memory, GPUs, links, network."""
    named = {"hardware": ", ".join(hardware) or None}
    if environment is None:
        return named
    gpus = Counter(gpu.name for gpu in environment.gpus)
    return {
        **named,
        "host": environment.host,
        "cpu": environment.cpu_model,
        "usable cores": environment.usable_cores,
        "memory bytes": environment.memory_bytes,
        "gpus": ", ".join(f"{n} x {name}" for name, n in gpus.items()) or "none",
        "power limit W": ", ".join(sorted({f"{g.power_limit_w:.0f}" for g in environment.gpus if g.power_limit_w}))
        or None,
        "links": _gpu_links_text(environment.topology),
        "network": _network_text(environment),
        "scheduling": environment.scheduling_policy,
    }


def _gpu_links_text(text: str | None) -> str | None:
    """``24 x NV12, 4 x SYS`` of the pairs of GPUs."""
    topology = None if text is None else parse_topology(text)
    if topology is None or isinstance(topology, Unavailable):
        return None
    links = [topology.link(*pair) for pair in topology.gpu_pairs()]
    counts = Counter(f"{link.kind}{link.nvlinks or ''}" for link in links if link is not None)
    return ", ".join(f"{n} x {kind}" for kind, n in sorted(counts.items())) or None


def _network_text(environment: EnvironmentRecord) -> str | None:
    """``1 x ethernet 25 Gbit/s``: what is up and leaves the machine."""
    there = [nic for nic in environment.nics if nic.up and nic.kind not in ("loopback", "virtual")]
    counts = Counter(
        nic.kind if nic.speed_bits_per_s is None else f"{nic.kind} {nic.speed_bits_per_s / 1e9:g} Gbit/s"
        for nic in there
    )
    return ", ".join(f"{n} x {kind}" for kind, n in sorted(counts.items())) or None


def _software_facts(environment: EnvironmentRecord | None) -> Facts:
    """Return the versions of system, driver, torch and packages, and the variables; nothing where none are recorded."""
    if environment is None:
        return {}
    torch = environment.torch
    drivers = sorted({gpu.driver_version for gpu in environment.gpus if gpu.driver_version})
    absent = None if torch is None else "none"
    return {
        "os": environment.os,
        "kernel": environment.kernel,
        "python": environment.python,
        "torch": None if torch is None else torch.version,
        "cuda": absent if torch is None else torch.cuda_version or absent,
        "nccl": absent if torch is None else torch.nccl_version or absent,
        "driver": ", ".join(drivers) or (None if environment.gpus else "none"),
        **{f"package {name}": version for name, version in environment.packages.items()},
        **{f"variable {name}": value for name, value in environment.variables.items()},
    }


def _asked_facts(runs: Sequence[TrainingRun]) -> list[Facts]:
    """Return the settings of runs; a cell that does not list what another has was not asked for it."""
    sides = [_run_facts(run) for run in runs]
    listed = {key: "none" for key in ("network", "inject") if any(side.get(key) is not None for side in sides)}
    return [
        {**side, **{key: side.get(key) or none for key, none in listed.items()}} if run.workload is not None else side
        for run, side in zip(runs, sides, strict=True)
    ]


def _run_facts(run: TrainingRun) -> Facts:
    fields = {name: getattr(run, name) for name in _RUN_FIELDS}
    return {**fields, **{key: value for key, value in run.settings.items() if key not in fields and key != PER_EPOCH}}


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)
