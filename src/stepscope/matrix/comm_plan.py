"""From what ``stepscope comm`` was asked to the cells to run: a sweep per operation, type, way of calling, world;
and from a finished run to its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import Literal

from stepscope.collectives import REDUCE_OPS, Collective
from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.units import format_bytes_binary
from stepscope.core.words import counted, unknown
from stepscope.launch.hosts.survey import HostWorld
from stepscope.matrix.expand import named
from stepscope.matrix.keys import LaunchSettings
from stepscope.matrix.machine import (
    Backend,
    Device,
    Machine,
    canonical_network,
    choose_device,
    here_or_there,
    network_misfit,
    slowest_bits_per_s,
)
from stepscope.records.comm import CommKind, CommRow, CommSpec, Mode, Pacing
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.plan import DTYPE_BYTES
from stepscope.results.comm_facts import link_peak
from stepscope.results.comm_rows import build_comm_rows, read_comm_cells, write_comm_rows
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there

DTYPES: Mapping[str, str] = {
    "fp32": "float32", "float": "float32", "float32": "float32",
    "fp64": "float64", "double": "float64", "float64": "float64",
    "fp16": "float16", "half": "float16", "float16": "float16",
    "bf16": "bfloat16", "bfloat16": "bfloat16",
    "int8": "int8", "uint8": "uint8", "int32": "int32", "int": "int32", "int64": "int64",
}  # fmt: skip
"""What a user may write -> torch's name; ``half``, ``double`` and ``float`` are what nccl-tests calls them."""

FLOATING = frozenset({"float32", "float64", "float16", "bfloat16"})

MODES: tuple[Mode, ...] = ("blocking", "async", "coalesced", "grouped")
PATTERNS = ("uni", "bi", "ring")
PAIR_SIZES = (4, 1 << 20)
MATMUL_ROWS = (256, 512, 1024, 2048)


@record
class CommRequest:
    """What to measure, names as the user wrote them, sizes in bytes.

    modes: (mode, calls in flight). env: variable -> values to sweep. places: in place or not; None: the form that torch
    has. A collective without an in-place form is measured out of place. pacing: None: chosen by backend.
    """

    ops: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("fp32",)
    reduce_ops: tuple[str, ...] = ("sum",)
    places: tuple[bool, ...] | None = None
    modes: tuple[tuple[Mode, int], ...] = (("blocking", 1),)
    patterns: tuple[str, ...] = ("ring",)
    root: int = 0
    worlds: tuple[int, ...] = (2,)
    pacing: Pacing | None = None
    env: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    network: str | None = None
    threads_per_rank: int | Literal["auto"] = "auto"
    extra: tuple[CommKind, ...] = ()
    """Beside the sweeps: pairs, matmul, overlap."""


@record
class PlannedComm:
    """A sweep before it runs. unsupported: why it cannot run here."""

    spec: CommSpec
    unsupported: str | None = None
    skipped: str | None = None
    sections: tuple[str, ...] = ()


def op_names(text: str) -> tuple[str, ...]:
    """Return the names of ``all``, or those separated by commas. Raises UsageError with did-you-mean."""
    names = COLLECTIVES.names()
    if text.strip() == "all":
        return names
    wanted = tuple(dict.fromkeys(part.strip().replace("-", "_") for part in text.split(",") if part.strip()))
    for name in wanted:
        if name not in names:
            raise UsageError(unknown("collective", name, names), fix="`--ops all` measures every one")
    if not wanted:
        raise UsageError("--ops names no collective", fix=f"choose from {', '.join(names)}, or all")
    return wanted


def dtype_name(text: str) -> str:
    """Return torch's name for ``fp32``, ``bf16``, ``half`` ... Raises UsageError."""
    try:
        return DTYPES[text.strip().lower()]
    except KeyError:
        raise UsageError(unknown("type", text, DTYPES)) from None


def parse_mode(text: str) -> tuple[Mode, int]:
    """Read ``blocking`` or ``async:4``: mode and calls in flight (4 where none is given). Raises UsageError."""
    name, _, number = text.strip().partition(":")
    mode = next((m for m in MODES if m == name), None)
    if mode is None:
        raise UsageError(unknown("mode", name, MODES), fix="write blocking, async:K, coalesced:K or grouped:K")
    if mode == "blocking":
        if number not in ("", "1"):
            raise UsageError(f"{text!r}: blocking calls are made one by one", fix=f"write async:{number}")
        return mode, 1
    if number and not (number.isdigit() and int(number) > 0):
        raise UsageError(f"{text!r}: {number!r} is not a number of calls", fix=f"write {mode}:4")
    return mode, int(number or 4)


def parse_env(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read ``NCCL_ALGO=Ring,Tree``: a variable and the values to sweep. Raises UsageError."""
    swept = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {text!r} is not NAME=VALUE[,VALUE...]")
        swept[name] = tuple(dict.fromkeys(values.split(",")))
    return swept


def plan_comm(request: CommRequest, *, machine: Machine, device: Device, backend: Backend) -> tuple[PlannedComm, ...]:
    """Plan the sweeps in order: world by world, collective by collective. Raises UsageError for names that do not exist."""
    for name in request.reduce_ops:
        if name not in REDUCE_OPS:
            raise UsageError(unknown("reduce operation", name, REDUCE_OPS))
    for name in request.patterns:
        if name not in PATTERNS:
            raise UsageError(unknown("pattern", name, PATTERNS))
    planned: dict[str, PlannedComm] = {}
    for world, env in product(request.worlds, _environment_choices(request.env)):
        for spec in _comm_specs(request, world, env, device, backend):
            planned.setdefault(
                spec.cell_id, PlannedComm(spec=spec, unsupported=senseless(spec) or _why_refused(spec, machine))
            )
    return tuple(planned.values())


def _environment_choices(env: Mapping[str, tuple[str, ...]]) -> list[dict[str, str]]:
    return [dict(zip(env, values, strict=True)) for values in product(*env.values())]


def _comm_specs(
    request: CommRequest, world: int, env: dict[str, str], device: Device, backend: Backend
) -> Iterator[CommSpec]:
    """Yield the specs of every kind, operation and way that was asked for."""

    def spec(kind: CommKind, op: str, dtype: str, sizes: tuple[int, ...], **more: object) -> CommSpec:
        """Return one spec; fields that are not given are the usual ones."""
        fields: dict[str, object] = {
            "reduce_op": None, "in_place": False, "mode": "blocking", "in_flight": 1, "pattern": None, "root": 0,
            "pacing": request.pacing or ("barrier" if backend == "gloo" else "back_to_back"), **more,
        }  # fmt: skip
        return named(
            CommSpec(
                cell_id="", kind=kind, op=op, dtype=dtype, sizes_bytes=sizes, world_size=world, device=device,
                backend=backend, threads_per_rank=request.threads_per_rank, env=env, network=network,
                **fields,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    network = canonical_network(request.network)
    dtypes = [dtype_name(text) for text in request.dtypes]
    for op, dtype in product(request.ops, dtypes):
        collective = COLLECTIVES.load(op)
        if not collective.has_payload and dtype != dtypes[0]:
            continue
        for settings in _calling_ways(request, collective):
            sizes = request.sizes_bytes if collective.has_payload else (0,)
            yield spec("collective", op, dtype, sizes, **settings)
            if "overlap" in request.extra and collective.has_payload:
                yield spec("overlap", op, dtype, sizes, **settings)
    if "pairs" in request.extra:
        yield spec("pairs", "send_recv", dtypes[0], PAIR_SIZES, pattern="uni")
    if "matmul" in request.extra:
        for dtype in dtypes:
            sizes = tuple(rows * rows * DTYPE_BYTES[dtype] for rows in MATMUL_ROWS)
            yield spec("matmul", "matmul", dtype, sizes)


def _calling_ways(request: CommRequest, collective: Collective) -> list[dict[str, object]]:
    """Return every way of calling ``collective`` that was asked for."""
    if not collective.has_payload:
        return [{}]
    reductions: tuple[str | None, ...] = request.reduce_ops if collective.reduces else (None,)
    patterns: tuple[str | None, ...] = request.patterns if collective.patterns else (None,)
    places = (collective.in_place and not collective.out_of_place,) if request.places is None else request.places
    return [
        {
            "reduce_op": reduce_op, "in_place": place, "mode": mode, "in_flight": in_flight, "pattern": pattern,
            "root": request.root if collective.rooted else 0,
        }
        for reduce_op, place, (mode, in_flight), pattern in product(reductions, places, request.modes, patterns)
    ]  # fmt: skip


def senseless(spec: CommSpec) -> str | None:
    """Say why a combination that was asked for exists nowhere."""
    if spec.reduce_op == "avg" and spec.dtype not in FLOATING:
        return f"avg of {spec.dtype}: integers have no average that is an integer"
    if spec.kind == "matmul" and spec.dtype not in FLOATING:
        return f"matrix products of {spec.dtype}: only floating-point types are measured"
    if spec.kind == "overlap" and spec.mode != "blocking":
        return "overlap is measured with blocking calls"
    if spec.kind in ("collective", "overlap") and spec.in_place and not COLLECTIVES.load(spec.op).in_place:
        return f"{spec.op} has no in-place form"
    if spec.root >= spec.world_size:
        return f"root {spec.root}: there {'is' if spec.world_size == 1 else 'are'} {counted(spec.world_size, 'rank')}"
    return None


def _why_refused(spec: CommSpec, machine: Machine) -> str | None:
    """Say why the machine cannot run a spec; None: it can."""
    world = spec.world_size
    if (reason := network_misfit(spec, machine)) or machine.joined_world_size is not None:
        return reason
    if spec.device == "cuda" and spec.backend == "nccl" and world > machine.num_gpus:
        where = "this machine has" if machine.slots is None else "the hosts have"
        return f"{counted(world, 'rank')} need {counted(world, 'GPU')}, {where} {machine.num_gpus}"
    if spec.kind == "pairs" and world < 2:
        return "messages between pairs need 2 ranks or more"
    if spec.mode == "grouped" and spec.op != "send_recv":
        return f"only point-to-point calls can be grouped, {spec.op} can be coalesced"
    return None


LEAST_RANK_BYTES = 100 << 20
"""Memory of its own that a rank takes at the least: an interpreter with torch and a process group (Linux, torch 2.13)."""


@record
class CommPlan:
    """Sweeps on this machine, ready to run."""

    cells: tuple[PlannedComm, ...]
    environment: EnvironmentRecord
    device: Device
    backend: Backend


def make_comm_plan(
    request: CommRequest, *, launch: LaunchSettings, worlds: Sequence[int] | None, hosts: HostWorld | None = None
) -> CommPlan:
    """Expand ``request`` here. worlds: None: all GPUs, or 2 ranks on the CPU; in a started world, its size; on ``hosts``,
    as many as they take.

    Raises UsageError, and MissingError for a device or backend that is not there.
    """
    environment, machine = here_or_there(hosts)
    device, backend = choose_device(launch, machine)
    if hosts is not None:
        worlds = worlds or (sum(hosts.slots(device)),)
    if worlds is None:
        here = max(1, machine.num_gpus) if device == "cuda" else 2
        worlds = (machine.joined_world_size or here,)
    if machine.joined_world_size is None and hosts is None:
        _require_memory(max(worlds), environment)
    cells = plan_comm(replace(request, worlds=tuple(worlds)), machine=machine, device=device, backend=backend)
    reasons = dict.fromkeys(senseless(cell.spec) for cell in cells)
    if None not in reasons:
        raise UsageError(
            "nothing is left to measure",
            why="; ".join(reason for reason in reasons if reason),
            fix="add another --ops, --dtype or --reduce-op"
            if any(cell.spec.root < cell.spec.world_size for cell in cells)
            else f"choose a --root below {max(cell.spec.world_size for cell in cells)}, or more --ranks",
        )
    return CommPlan(cells=cells, environment=environment, device=device, backend=backend)


def _require_memory(ranks: int, environment: EnvironmentRecord) -> None:
    """Raise UsageError where so many processes cannot fit: the machine would swap, or kill some of them."""
    needed, free = ranks * LEAST_RANK_BYTES, environment.memory_available_bytes
    if needed > free:
        raise UsageError(
            f"{ranks} ranks do not fit in this machine's memory",
            why=f"they take {format_bytes_binary(needed)} at least before the first message, "
            f"{format_bytes_binary(free)} is free",
            fix="fewer --ranks",
        )


def derive_comm_rows(layout: RunLayout) -> tuple[CommRow, ...]:
    """Write results.jsonl from what lies in the run folder; return its rows."""
    cells = read_comm_cells(layout)
    environment = read_if_there(layout.environment, EnvironmentRecord)

    def peak(cell: CommSpec, hosts: int) -> float | None:
        if environment is None:
            return None
        rate = slowest_bits_per_s(cell.network)
        return link_peak(environment, device=cell.device, hosts=hosts, network_bits_per_s=rate)

    rows = build_comm_rows(layout, cells, peak_of=peak)
    write_comm_rows(layout, rows)
    return rows
