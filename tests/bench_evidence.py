"""Cells of `bench` made by hand, with the samples of all their ranks: what a rule must find in them is chosen here."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests import fake_runs

from stepscope.predict.specs import specs_of
from stepscope.records.cell import CellSpec, CellStatus
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.prediction import BackwardProfile, ReadyGradient
from stepscope.records.samples import CellResult, RankSamples, SamplesHeader, StepSample
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import CellEvidence, Evidence, Source
from stepscope.results.joining import derived
from stepscope.results.runs import labelled, run_of

MS = 1_000_000
PHASES = {"data_wait": 1.0, "forward": 30.0, "backward_compute": 60.0, "optimizer": 5.0, "other": 1.0}

Own = Callable[[int, int, dict[str, float]], None]
"""Changes the phases (ms) of one rank in one step: ``own(rank, step, phases)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One cell: its run and everything its ranks left."""

    run: TrainingRun
    result: CellResult


def made(
    cell_id: str,
    *,
    phases: Mapping[str, float] | None = None,
    comm_ms: float = 3.0,
    steps: int = 40,
    jitter: float = 0.01,
    own: Own | None = None,
    profile: BackwardProfile | None = None,
    known: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = (),
    summary: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Made:
    """A finished cell of :func:`fake_runs.spec`. phases: ms of what ranks do on their own (default: 97 ms in all).

    comm_ms: exposed communication of the rank that comes last; the others wait for it beside. jitter: of forward and
    backward, by rank and step. own: changes one rank's phases in one step. hosts: of the ranks (all ``node-a``).
    """
    cell = fake_runs.spec(cell_id, **spec)
    ranks = _steps(cell, {**PHASES, **(phases or {})}, comm_ms, steps, jitter, own)
    result = CellResult(
        spec=cell,
        status=CellStatus(cell_id=cell_id, status="ok", group_id="g1"),
        samples=tuple(RankSamples(header=_header(cell, r), steps=tuple(each)) for r, each in enumerate(ranks)),
        summaries=tuple(
            fake_runs.rank_summary(
                cell, r, backward=profile, **({"host": hosts[r]} if hosts else {}), **(summary or {})
            )
            for r in range(cell.world_size)
        ),
    )
    return Made(run=replace(run_of(result), **(known or {})), result=result)


def failed(cell_id: str, status: str, error: str, *, known: Mapping[str, Any] | None = None, **spec: Any) -> Made:
    """A cell without a result."""
    cell = fake_runs.spec(cell_id, **spec)
    result = CellResult(
        spec=cell,
        status=CellStatus(cell_id=cell_id, status=status, reason=error),  # type: ignore[arg-type]
        samples=(),
        summaries=(),
    )
    return Made(run=replace(run_of(result), **(known or {})), result=result)


def bench(*cells: Made, **parts: Any) -> Evidence:
    """Evidence of one run of these cells, and any other ``parts``."""
    runs = labelled([replace(c.run, source="RUN") for c in cells])
    found = tuple(CellEvidence(run=run, result=c.result) for run, c in zip(runs, cells, strict=True))
    return derived(
        Evidence(
            sources=(Source(path=Path("RUN"), kind="bench"),),
            runs=tuple(each.run for each in found),
            cells=found,
            **parts,
        )
    )


def environment(**changes: Any) -> EnvironmentRecord:
    """A machine of 8 usable cores and 16 GiB without GPUs; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "host": "node-a", "os": "Linux", "kernel": "6", "python": "3.13", "cpu_model": "A CPU", "logical_cores": 8,
        "physical_cores": 4, "usable_cores": 8, "memory_bytes": 16 * 2**30, "memory_available_bytes": 12 * 2**30,
        "packages": {}, "variables": {}, "scheduler": None,
    }  # fmt: skip
    return EnvironmentRecord(**(fields | changes))


def profile(cell: CellSpec, *, forward_ms: float = 30, backward_ms: float = 60, rest_ms: float = 5) -> BackwardProfile:
    """Gradients ready at equal distances over the backward pass, the last layer's first."""
    facts = specs_of(cell).facts
    names = [facts.parameters[index].name for index in facts.ready_order]
    return BackwardProfile(
        clock="perf_counter",
        steps=5,
        micro_batch=cell.micro_batch,
        data_wait_ns=0,
        forward_ns=round(forward_ms * MS),
        earlier_backward_ns=0,
        backward_ns=round(backward_ms * MS),
        optimizer_ns=round(rest_ms * MS),
        other_ns=0,
        ready=tuple(
            ReadyGradient(name=name, ready_ns=round(backward_ms * MS * (i + 1) / len(names)))
            for i, name in enumerate(names)
        ),
    )


def _steps(
    cell: CellSpec, phases: Mapping[str, float], comm_ms: float, steps: int, jitter: float, own: Own | None
) -> list[list[StepSample]]:
    rng = random.Random(7)
    ranks: list[list[StepSample]] = [[] for _ in range(cell.world_size)]
    for number in range(steps):
        every = []
        for rank in range(cell.world_size):
            mine = dict(phases)
            for name in ("forward", "backward_compute"):
                mine[name] *= 1 + rng.gauss(0, jitter)
            if own is not None:
                own(rank, number, mine)
            every.append({name: round(ms * MS) for name, ms in mine.items()})
        last = max(sum(mine.values()) for mine in every)
        for rank, mine in enumerate(every):
            spent = sum(mine.values())
            exposed = round(comm_ms * MS) + last - spent
            ranks[rank].append(
                fake_runs.step(
                    number,
                    spent + exposed,
                    exposed_comm_ns=exposed,
                    samples=cell.micro_batch,
                    global_samples=cell.global_batch,
                    **{f"{name}_ns": value for name, value in mine.items() if name != "other"},
                )
            )
    return ranks


def _header(cell: CellSpec, rank: int) -> SamplesHeader:
    return SamplesHeader(
        cell_id=cell.cell_id, rank=rank, world_size=cell.world_size, clock="perf_counter", comm_source="hook"
    )
