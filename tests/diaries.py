"""Folders of profiled jobs made by hand: step diaries as the hook writes them, exact, with planted events, or drawn at
random; the record of the job; windows of built traces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.trace_builder import build, write_job

from stepscope.records.profile import COLUMNS, FIRST, NO_DELAY, PROFILED, RECORD, SAMPLE_COLUMNS, HookedRank
from stepscope.results.profiled_job import ProfiledJob, read_profiled_job
from stepscope.stats.step_table import StepTable
from stepscope.store import writer
from stepscope.store.diary import DTYPE, SAMPLE_DTYPE
from stepscope.store.layout import ProfileLayout

MS = 1e6
START_UNIX_NS = 1_763_000_000_000_000_000
EVERY, EVALUATION_MS = 25, 100.0
WINDOW = (41, 48)
"""First and last profiled step of ``planted``."""


def write_diary(
    root: Path,
    columns: Mapping[str, Sequence[float]],
    *,
    rank: int = 0,
    world_size: int = 1,
    attempt: int = 0,
    flags: Sequence[int] | int = 0,
    delay: float | Sequence[float] | None = None,
    micro_steps: int = 1,
    events: Sequence[Mapping[str, Any]] = (),
    end: Mapping[str, Any] | None = None,
    **header: Any,
) -> Path:
    """diary-, events- and end- files of one process below ``root/.stepscope``. columns: ms of each step; left out: NaN.

    delay: share without a processor, of each step or of all. whole_ns is the sum of the others (without CPU times) where it
    is left out.
    """
    folder = root / ".stepscope"
    folder.mkdir(parents=True, exist_ok=True)
    steps = len(next(iter(columns.values())))
    given = {f"{name}_ns": np.asarray(values, float) * 1e6 for name, values in columns.items()}
    if "whole_ns" not in given:
        given["whole_ns"] = np.nansum([v for k, v in given.items() if not k.endswith("cpu_ns")], axis=0)
    shares = np.array([np.nan if each is None else each for each in np.broadcast_to(np.array(delay), steps)], float)
    rows = np.empty(steps, dtype=DTYPE)
    for column in COLUMNS:
        rows[column] = given.get(column, np.nan)
    rows["delay"] = np.where(np.isnan(shares), NO_DELAY, np.round(np.nan_to_num(shares) * (NO_DELAY - 1)))
    rows["micro_steps"], rows["flags"] = micro_steps, flags
    same = {"rank": rank, "world_size": world_size, "host": "node0", "pid": 100 + rank, "restart": 0}
    format_ = {"record": RECORD.format(len(COLUMNS)), "columns": COLUMNS}
    head = {**same, "start_unix_ns": START_UNIX_NS, **format_, **header}
    name = f"{rank:05d}-{attempt}"
    path = folder / f"diary-{name}.bin"
    path.write_bytes(json.dumps({"schema": "stepscope.diary/1", **head}).encode() + b"\n" + rows.tobytes())
    if events:
        (folder / f"events-{name}.jsonl").write_text("".join(json.dumps(dict(e)) + "\n" for e in events))
    if end is not None:
        document = {**same, "kind": "exit", "steps": steps, "at_unix_ns": START_UNIX_NS, **end}
        (folder / f"end-{name}.json").write_text(json.dumps(document))
    return path


def write_samples(
    diary: Path, resident: Sequence[float], *, steps_per_s: float = 20.0, every_s: float = 1.0, **columns: Any
) -> Path:
    """samples- file beside ``diary``: one every ``every_s`` from 0.3 s on. columns: of SAMPLE_COLUMNS; left out: NaN."""
    at_s = 0.3 + every_s * np.arange(len(resident))
    rows = np.empty(len(resident), dtype=SAMPLE_DTYPE)
    rows["unix_s"], rows["step"] = START_UNIX_NS / 1e9 + at_s, np.floor(at_s * steps_per_s)
    for name, unless in {"resident": resident, "shared": 0.0, **dict.fromkeys(SAMPLE_COLUMNS[4:], np.nan)}.items():
        rows[name] = columns.get(name, unless)
    path = ProfileLayout.samples_of(diary)
    path.write_bytes(rows.tobytes())
    return path


COMPUTES: Mapping[str, float] = MappingProxyType({
    "sm_clock_hz": 1.7e9, "memory_clock_hz": 2.6e9, "power_w": 650.0, "power_limit_w": 700.0, "temperature_c": 60.0,
    "throttle_reasons": 0, "busy_fraction": 0.99, "memory_used_bytes": 50 * 2.0**30, "ecc_corrected": 0.0,
    "ecc_uncorrected": 0.0, "pcie_replays": 0.0, "nvlink_errors": 0.0,
})  # fmt: skip
"""Of a GPU of 80 GiB and 1.98 GHz at most."""


def write_gpu(root: Path, columns: Mapping[str, Any], *, rank: int, steps: int, name: str = "H100") -> None:
    """devices- file of a rank: ``COMPUTES`` but for ``columns``, over so many steps."""
    write_hardware(
        root, f"devices-{rank:05d}-0", {**COMPUTES, **columns}, rank=rank, steps=steps,
        name=name, bus_id=f"0000:{rank:02x}:00.0", uuid=f"GPU-{rank}", sm_clock_max_hz=1.98e9, memory_bytes=80 * 2.0**30,
    )  # fmt: skip


def write_load(
    root: Path, *, rank: int = 0, steps: int, cpus: Sequence[int] = (0, 1), samples: int = 40, **columns: float
) -> None:
    """load- file of a rank, over so many steps: seconds a second of each column; left out: 0, of stepscope unknown."""
    unless = dict.fromkeys(("busy_s", "process_s", "workers_s", "stepscope_s", "data_s", "data_cpu_s"), 0.0)
    write_hardware(
        root, f"load-{rank:05d}-0", {**unless, "stepscope_s": np.nan, **columns}, rank=rank, steps=steps,
        samples=samples, name="load", cpus=list(cpus),
    )  # fmt: skip


def write_facts(root: Path, facts: Mapping[str, Any], *, rank: int = 0, world_size: int = 1) -> None:
    """rank- file with what the hook found of the job."""
    hooked = HookedRank(
        rank=rank, world_size=world_size, host="node0", pid=100 + rank, restart=0, python="3.11.7", torch="2.13.0",
        local_rank=str(rank), facts=facts,
    )  # fmt: skip
    layout = ProfileLayout(root)
    layout.control.mkdir(parents=True, exist_ok=True)
    writer.write_record(layout.control / f"rank-{rank:05d}.json", hooked)


def write_hardware(
    root: Path, stem: str, columns: Mapping[str, Any], *, rank: int, steps: int, samples: int = 40, **source: Any
) -> None:
    """STEM.bin with one source: a sample a second over so many steps."""
    rows = np.empty(samples, [("unix_s", "<f8"), ("step", "<u4"), ("values", "<f4", (len(columns),))])
    rows["unix_s"] = START_UNIX_NS / 1e9 + np.arange(samples)
    rows["step"] = np.arange(samples) * steps // samples
    rows["values"] = np.stack([np.broadcast_to(each, samples) for each in columns.values()], axis=1)
    same = {"rank": rank, "world_size": 4, "host": "node0", "pid": 1, "restart": 0}
    head = {**same, "columns": list(columns), stem.partition("-")[0]: [source]}
    (root / ".stepscope" / f"{stem}.bin").write_bytes(json.dumps(head).encode() + b"\n" + rows.tobytes())


def noise_of(
    rng: np.random.Generator, shape: tuple[int, ...], *, spread: float, dependence: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``shape``, steps last: normal with this standard deviation and lag-1 autocorrelation over steps."""
    found = rng.normal(0.0, spread, shape)
    for at in range(1, shape[-1]):
        found[..., at] = dependence * found[..., at - 1] + np.sqrt(1 - dependence**2) * found[..., at]
    return found


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What is slow: factors of the computation of single ranks, of hosts and of rails (local index), by number."""

    ranks: Mapping[int, float] = field(default_factory=dict)
    hosts: Mapping[int, float] = field(default_factory=dict)
    rails: Mapping[int, float] = field(default_factory=dict)

    def factors(self, count: int, per_host: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[ranks]."""
        found = np.ones(count)
        for rank in range(count):
            found[rank] *= self.ranks.get(rank, 1.0) * self.hosts.get(rank // per_host, 1.0)
            found[rank] *= self.rails.get(rank % per_host, 1.0)
        return found


def simulate(
    root: Path,
    *,
    ranks: int,
    steps: int,
    seed: int,
    data_ms: float = 0.2,
    forward_ms: float = 4.0,
    backward_ms: float = 8.0,
    optimizer_ms: float = 1.0,
    transfer_ms: float = 0.5,
    noise: float = 0.03,
    dependence: float = 0.6,
    slow: Mapping[int, float] | Planted = MappingProxyType({}),
    slow_from: int = 0,
    delay: float = 0.01,
    per_host: int | None = None,
    profiled: range = range(0),
    profiler_ms: float | Mapping[int, float] = 0.0,
) -> None:
    """profiled: steps of the window, of which each takes ``profiler_ms`` more in forward, of a rank by its number.

    slow: rank -> factor of its forward and backward, slow_from: after so many steps.

    noise: standard deviation / mean of every part, autocorrelated. per_host: ranks of a host; None: all are on one.

    Without noise a step is data + forward + backward + transfer (of several ranks) + optimizer.
    """
    rng = np.random.default_rng(seed)
    means = np.array([data_ms, forward_ms, backward_ms, optimizer_ms])[:, None, None]
    parts = np.maximum(means * (1 + noise_of(rng, (4, ranks, steps), spread=noise, dependence=dependence)), 0.0)
    planted_here = slow if isinstance(slow, Planted) else Planted(ranks=slow)
    parts[1:3, :, slow_from:] *= planted_here.factors(ranks, per_host or ranks)[:, None]
    flags = np.zeros(steps, int)
    flags[profiled] = PROFILED
    for rank in range(ranks):
        more = profiler_ms[rank] if isinstance(profiler_ms, Mapping) else profiler_ms
        parts[1, rank] += np.where(flags, more, 0.0)
    entered = parts.sum(axis=0)
    transfer = transfer_ms * (1 + noise_of(rng, (steps,), spread=noise, dependence=dependence)) * (ranks > 1)
    comm = entered.max(axis=0) - entered + transfer
    for rank in range(ranks):
        named = dict(zip(("data", "forward", "backward", "optimizer"), parts[:, rank], strict=True))
        columns = {**named, "comm": comm[rank], "cpu": entered[rank] - named["data"]}
        host = f"node{rank // (per_host or ranks)}"
        write_diary(root, columns, rank=rank, world_size=ranks, delay=delay, host=host, flags=flags.tolist())


def own_times(
    rng: np.random.Generator, *, ranks: int, per_host: int, steps: int, slow: Planted, spread: float = 0.05
) -> StepTable:
    """Own times of 12 ms, lognormal with this spread and autocorrelation 0.3; 3 tenths forward, 6 backward, 1 optimizer."""
    noise = np.exp(noise_of(rng, (ranks, steps), spread=spread, dependence=0.3))
    own = 12 * MS * noise * slow.factors(ranks, per_host)[:, None]
    hosts = [f"n{rank // per_host}" for rank in range(ranks)]
    return step_table(own, {"data": 0.0, "forward": 0.3, "backward": 0.6, "optimizer": 0.1}, hosts=hosts)


def step_table(
    own_ns: NDArray[np.float64], shares: Mapping[str, float], *, hosts: Sequence[str] = (), delay: float = 0.0
) -> StepTable:
    """A table of steps without communication, ns [ranks, steps]. shares: of each part. delay: share without a processor."""
    ranks, steps = own_ns.shape
    return StepTable(
        source="diary", clock="host", rank_numbers=tuple(range(ranks)), hosts=tuple(hosts) or ("n0",) * ranks,
        numbers=np.arange(1, steps + 1), rounds=np.zeros(steps, dtype=np.int64), whole_ns=own_ns,
        parts_ns={part: share * own_ns for part, share in shares.items()}, comm_ns=np.zeros_like(own_ns), own_ns=own_ns,
        delay_ns=delay * own_ns,
    )  # fmt: skip


def drawn_slow(
    rng: np.random.Generator, kind: str, *, ranks: int, per_host: int, factor: float
) -> tuple[Planted, set[tuple[str, str | int | None]]]:
    """One slow thing at random, ``clean`` none, and what is to be said of it (``Slow.about``)."""
    if kind == "clean":
        return Planted(), set()
    at = int(rng.integers({"rank": ranks, "host": ranks // per_host, "rail": per_host}[kind]))
    return Planted(**{f"{kind}s": {at: factor}}), {(kind, f"n{at}" if kind == "host" else at)}


def write_record(folder: Path) -> Path:
    """profile.json of ``folder``, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"command": ["train"], "folder": ".", "host": "node0", "first": None, "argv": []}
    (folder / "profile.json").write_text(json.dumps({"schema": "stepscope.profile/1", **record}))
    return folder


def planted(
    folder: Path, *, ranks: int = 2, steps: int = 200, long_step: int | None = None, long_ms: float = 60.0
) -> Path:
    """A step is 2 ms of data, 8 forward, 16 backward, 1 optimizer, and of several ranks 3 ms of transfer; rank 1 takes 6 ms
    longer in backward and the others wait for it. The first step takes 40 ms more, a profiled one 5.
    """
    numbers = np.arange(1, steps + 1)
    flags = np.where((numbers >= WINDOW[0]) & (numbers <= WINDOW[1]), PROFILED, 0)
    flags[0] = FIRST
    evaluated = numbers % EVERY == 0
    for rank in range(ranks):
        late = 6.0 if rank == 1 else 0.0
        forward = 8.0 + np.where(numbers == 1, 40.0, 0.0) + np.where(flags == PROFILED, 5.0, 0.0)
        if long_step is not None:
            forward = forward + np.where(numbers == long_step, long_ms, 0.0)
        backward = np.full(steps, 16.0 + late)
        columns = {
            "data": np.full(steps, 2.0),
            "forward": forward,
            "backward": backward,
            "optimizer": np.full(steps, 1.0),
            "outside": np.where(evaluated, EVALUATION_MS, 0.0),
            "cpu": forward + backward + 1.0,
        }
        if ranks > 1:
            columns["comm"] = np.full(steps, 3.0 + 6.0 - late)
        write_diary(
            folder,
            columns,
            rank=rank,
            world_size=ranks,
            delay=0.01,
            flags=flags.tolist(),
            events=[
                {"kind": "evaluation", "step": int(n), "at_ns": 0, "ns": int(EVALUATION_MS * MS), "what": "eval()"}
                for n in numbers[evaluated]
            ],
            threads=1,
            cores=2,
        )
    return write_record(folder)


def job(folder: Path) -> ProfiledJob:
    """The job of ``folder``."""
    found = read_profiled_job(folder)
    assert found is not None
    return found


def profile_folder(root: Path, *, windows: int = 1, **plan: Any) -> Path:
    """``plan``: of the traces of every window (tests/trace_builder.py)."""
    layout = ProfileLayout(write_record(root))
    layout.control.mkdir(exist_ok=True)
    for number in range(1, windows + 1):
        write_job(build(**({"shape": "ddp", "layers": 2, "world": 2, "steps": 3} | plan)), layout.traces(number))
    return root
