"""Traces of tensor x pipeline x data parallel jobs with one slow rank, or none, and what they take with and without it.

    grid = Grid(tensor=2, stages=4, replicas=2, schedule="1f1b", micro_batches=8, slow={5: 1.8}, seed=3)
    write_grid(grid, folder)           # rank-0.json ...: kernels with the arguments that torch records, one file a rank
    length_us(grid), length_us(replace(grid, slow={}))

Ranks are numbered as Megatron does: tensor first, then data, then pipeline. Every rank runs a program of computations,
messages and collectives; the clock below shares no code with stepscope.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Program = list[tuple[Any, ...]]
WIRE_US, TENSOR_US, GRADIENT_US, NORM_US, UPDATE_US = 20.0, 30.0, 300.0, 25.0, 200.0
COMPUTE, UP, DOWN, TENSOR, DATA, NORM = 7, 20, 21, 24, 28, 31


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One job. slow: by rank, how many times as long its computations take. noise: of each computation, relative."""

    tensor: int = 1
    stages: int = 1
    replicas: int = 1
    schedule: str = "1f1b"  # gpipe | 1f1b | interleaved
    micro_batches: int = 8
    chunks: int = 2  # of an interleaved rank
    steps: int = 4
    forward_us: float = 400.0
    slow: Mapping[int, float] = field(default_factory=dict)
    head_us: Mapping[int, float] = field(default_factory=dict)  # before the first work of each step, by rank
    noise: float = 0.01
    seed: int = 0
    norm: bool = True
    peers_on_both: bool = False

    @property
    def ranks(self) -> int:
        return self.tensor * self.stages * self.replicas

    def rank(self, t: int, d: int, p: int) -> int:
        return (p * self.replicas + d) * self.tensor + t

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tensor, rank // self.tensor % self.replicas, rank // self.tensor // self.replicas

    def group(self, kind: str, rank: int) -> tuple[str, tuple[int, ...]]:
        t, d, p = self.place(rank)
        members = {
            "TENSOR_MODEL_PARALLEL_GROUP": [self.rank(i, d, p) for i in range(self.tensor)],
            "PIPELINE_MODEL_PARALLEL_GROUP": [self.rank(t, d, i) for i in range(self.stages)],
            "DATA_PARALLEL_GROUP": [self.rank(t, i, p) for i in range(self.replicas)],
            "MODEL_PARALLEL_GROUP": sorted(self.rank(i, d, j) for i in range(self.tensor) for j in range(self.stages)),
        }[kind]
        return kind, tuple(members)

    @cached_property
    def events(self) -> dict[int, list[dict[str, Any]]]:
        return _Clock(self).run()


def length_us(grid: Grid) -> float:
    """From the first kernel's begin to the last one's end."""
    kernels = [e for rank in grid.events.values() for e in rank if e["cat"] == "kernel"]
    return max(e["ts"] + e["dur"] for e in kernels) - min(e["ts"] for e in kernels)


def write_grid(grid: Grid, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, events in grid.events.items():
        document = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": grid.ranks},
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "traceEvents": events,
        }
        (folder / f"rank-{rank}.json").write_text(json.dumps(document))
    return folder


def _order(grid: Grid, stage: int) -> Iterator[tuple[str, int, int]]:
    """What a stage computes in its order: (F or B, micro-batch, chunk)."""
    micro, stages = grid.micro_batches, grid.stages
    if grid.schedule == "gpipe":
        forward = [("F", i, 0) for i in range(micro)]
        backward = [("B", i, 0) for i in range(micro)]
        ahead = micro
    elif grid.schedule == "1f1b":
        forward = [("F", i, 0) for i in range(micro)]
        backward = [("B", i, 0) for i in range(micro)]
        ahead = min(stages - 1 - stage, micro)
    else:  # interleaved: groups of as many micro-batches as stages go through one chunk after another
        rounds = [range(at, at + stages) for at in range(0, micro, stages)]
        forward = [("F", i, c) for group in rounds for c in range(grid.chunks) for i in group]
        backward = [("B", i, c) for group in rounds for c in reversed(range(grid.chunks)) for i in group]
        ahead = min(2 * (stages - 1 - stage) + (grid.chunks - 1) * stages, len(forward))
    yield from forward[:ahead]
    for at in range(len(forward) - ahead):
        yield forward[ahead + at]
        yield backward[at]
    yield from backward[len(forward) - ahead :]


def _program(grid: Grid, rank: int, step: int) -> Program:
    _, _, p = grid.place(rank)
    program: Program = [("step", step)]
    chunks = grid.chunks if grid.schedule == "interleaved" and grid.stages > 1 else 1
    last = grid.stages * chunks - 1
    for kind, micro, chunk in _order(grid, p) if grid.stages > 1 else _alone(grid):
        layer = chunk * grid.stages + p
        source = layer - 1 if kind == "F" else layer + 1
        target = layer + 1 if kind == "F" else layer - 1
        if 0 <= source <= last:
            program.append(("recv", source % grid.stages, (step, kind, micro, layer)))
        us = grid.forward_us * (1 if kind == "F" else 2) / chunks
        for half in range(2):
            program.append(("compute", us / 2))
            if grid.tensor > 1:
                key = (step, kind, micro, layer, half)
                program.append(("meet", "allreduce", "TENSOR_MODEL_PARALLEL_GROUP", key, TENSOR_US, TENSOR))
        if 0 <= target <= last:
            program.append(("send", target % grid.stages, (step, kind, micro, target)))
    if grid.replicas > 1:
        program.append(("meet", "_reduce_scatter_base", "DATA_PARALLEL_GROUP", (step,), GRADIENT_US, DATA))
    if grid.norm and grid.tensor * grid.stages > 1:
        program.append(("meet", "allreduce", "MODEL_PARALLEL_GROUP", (step, "norm"), NORM_US, NORM))
    return [*program, ("compute", UPDATE_US), ("end", step)]


def _alone(grid: Grid) -> Iterator[tuple[str, int, int]]:
    for micro in range(grid.micro_batches):
        yield from (("F", micro, 0), ("B", micro, 0))


class _Clock:
    """Runs the programs of all ranks, each until it waits for another."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.programs = {
            r: [action for step in range(grid.steps) for action in _program(grid, r, step)] for r in range(grid.ranks)
        }
        self.random = {r: random.Random(f"{grid.seed}:{r}") for r in range(grid.ranks)}
        self.now = dict.fromkeys(range(grid.ranks), 1_000.0)
        self.events: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.entered: dict[Any, dict[int, float]] = defaultdict(dict)
        self.sent: dict[Any, float] = {}
        self.begun = dict.fromkeys(range(grid.ranks), 0.0)

    def run(self) -> dict[int, list[dict[str, Any]]]:
        moved = True
        while moved:
            moved = False
            for rank, program in self.programs.items():
                while program and self._act(rank, program[0]):
                    program.pop(0)
                    moved = True
        assert not any(self.programs.values()), "the schedule waits for itself"
        return dict(self.events)

    def _act(self, rank: int, action: tuple[Any, ...]) -> bool:
        kind = action[0]
        if kind == "step":
            self.begun[rank] = self.now[rank] - 5
            self.now[rank] += self.grid.head_us.get(rank, 0.0)
        elif kind == "end":
            self._span(rank, f"ProfilerStep#{action[1]}", "user_annotation", self.begun[rank], self.now[rank] - 6)
            self.now[rank] += 5
        elif kind == "compute":
            us = action[1] * self.grid.slow.get(rank, 1.0) * (1 + self.random[rank].gauss(0, self.grid.noise))
            self._kernel(rank, "sm90_xmma_gemm_bf16bf16_bf16f32", self.now[rank], self.now[rank] + us, COMPUTE)
            self.now[rank] += us + 1
        elif kind == "send":
            end = self.now[rank] + WIRE_US
            self.sent[self._key(rank, action[2])] = end
            self._message(rank, "send", self._neighbour(rank, action[1]), self.now[rank], end)
        elif kind == "recv":
            arrived = self.sent.get(self._key(rank, action[2]))
            if arrived is None:
                return False
            end = max(self.now[rank] + WIRE_US, arrived)
            self._message(rank, "recv", self._neighbour(rank, action[1]), self.now[rank], end)
            self.now[rank] = end + 1
        else:
            return self._meet(rank, *action[1:])
        return True

    def _meet(self, rank: int, op: str, group: str, key: Any, us: float, stream: int) -> bool:
        _, members = self.grid.group(group, rank)
        entered = self.entered[group, members, key]
        entered.setdefault(rank, self.now[rank])
        if len(entered) < len(members):
            return False
        end = max(entered.values()) + us
        self._kernel(rank, "ncclDevKernel_Sum_bf16_RING_LL", entered[rank], end, stream, self._args(rank, op, group))
        self.now[rank] = end + 1
        return True

    def _key(self, rank: int, key: Any) -> Any:
        t, d, _ = self.grid.place(rank)
        return t, d, key

    def _neighbour(self, rank: int, stage: int) -> int:
        t, d, _ = self.grid.place(rank)
        return self.grid.rank(t, d, stage)

    def _args(self, rank: int, op: str, group: str) -> dict[str, Any]:
        name, members = self.grid.group(group, rank)
        return {
            "Collective name": op, "In msg nelems": 4_194_304, "Out msg nelems": 4_194_304, "Group size": len(members),
            "dtype": "BFloat16", "Process Group Name": f"{name}{members[0]}", "Process Group Description": name,
            "Process Group Ranks": str(list(members)),
        }  # fmt: skip

    def _message(self, rank: int, side: str, peer: int, start: float, end: float) -> None:
        args = self._args(rank, side, "PIPELINE_MODEL_PARALLEL_GROUP")
        _, members = self.grid.group("PIPELINE_MODEL_PARALLEL_GROUP", rank)
        args["Dst Rank" if side == "send" else "Src Rank"] = members.index(peer)
        if self.grid.peers_on_both:
            args |= {"Dst Rank": peer if side == "send" else rank, "Src Rank": rank if side == "send" else peer}
        stream = (UP if peer > rank else DOWN) + (0 if side == "send" else 2)
        self._kernel(rank, "ncclDevKernel_SendRecv", start, end, stream, args)

    def _kernel(
        self, rank: int, name: str, start: float, end: float, stream: int, args: Mapping[str, Any] | None = None
    ) -> None:
        correlation = len(self.events[rank]) + 1
        launched = {"correlation": correlation}
        self._span(rank, "cudaLaunchKernel", "cuda_runtime", start - 4, start - 1, launched)
        self._span(rank, name, "kernel", start, end, {"stream": stream, "device": 0, **launched, **(args or {})})

    def _span(
        self, rank: int, name: str, category: str, start: float, end: float, args: Mapping[str, Any] | None = None
    ) -> None:
        stream = (args or {}).get("stream")
        self.events[rank].append(
            {
                "ph": "X", "cat": category, "name": name, "ts": round(start, 3), "dur": round(end - start, 3),
                "pid": 0 if stream is not None else 100 + rank, "tid": stream if stream is not None else 100 + rank,
                "args": dict(args or {}),
            }
        )  # fmt: skip
