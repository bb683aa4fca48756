"""Jobs that shard, pipeline or route: programs for stepscope.examples.training_job with planted faults.

fsdp(units=..., **Sharding, **Plan)                     FSDP2 with its annotations and memory
pipeline()                                              GPipe of micro batches; Plan.slow makes a slow stage
experts(hot={3: 2.5})                                   two exchanges a layer; a hot rank gets and computes more
tensor(pairs=((0, 1), (2, 3)))                          an all-reduce a layer and pass in each tensor-parallel group
folder_of(job, folder)                                  written as traces of all ranks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.trace_builder import gpipe
from tests.trace_evidence import traced

from stepscope.examples.machine import AUTOGRAD, HOST, Operator, SimulatedRank, Waiting
from stepscope.examples.training_job import SimulatedJob, Simulation, backward_layer, forward_layer, simulate
from stepscope.records.trace_summary import RankPass
from stepscope.results.evidence import Evidence
from stepscope.traces.job import analyse_job

BYTES_PER_NS = 100
"""What a gather moves on the emulated network: 100 GB/s."""

LATENCY_NS = 40_000
ITEM = 4
OPERATOR = Operator(name="aten::mm", kernel="ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn")
COPY_OUT = Operator(name="fsdp::split_with_sizes_copy", kernel="split_with_sizes_copy_out_contiguous_no_cast_kernel")


def transfer_ns(elements: int) -> int:
    return LATENCY_NS + elements * ITEM // BYTES_PER_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """A root of ``root`` elements and blocks of ``elements`` each, Plan.layers of them.

    prefetch False: every gather waits for the computation; late_units: those at these places of a pass do. keep: the
    backward pass gathers nothing again. whole: the blocks are part of the root. annotated: as FSDP2 names its units.
    copy_out_ns: kernels that copy a gathered unit on the stream that computes; offload_ns: its copy from host memory.
    """

    elements: int = 16 << 20
    root: int = 1 << 18
    prefetch: bool = True
    late_units: tuple[int, ...] = ()
    keep: bool = False
    whole: bool = False
    annotated: bool = True
    group: str = "dp"
    copy_out_ns: int = 0
    offload_ns: int = 0


def fsdp(*, units: int = 6, **options: Any) -> SimulatedJob:
    """``units`` blocks; the options are fields of Sharding and Plan."""
    mine = Sharding(**{f.name: options.pop(f.name) for f in fields(Sharding) if f.name in options})
    fixed = {"world": 4, "shape": "fsdp2", "layers": units, "memory": True, "gpu_bytes": 80 << 30, "launch_ns": 8_000,
             "forward": (OPERATOR,), "backward": (OPERATOR,)}  # fmt: skip
    made = Simulation(**(fixed | options))
    groups = {mine.group: tuple(range(made.world))}
    return simulate(made, programs={"fsdp2": partial(_fsdp, sharding=mine)}, groups=groups)


def _fsdp(machine: SimulatedRank, plan: Simulation, late: int, *, sharding: Sharding) -> Waiting:
    def called(op: str, unit: str, *, early: bool = False) -> Any:
        begin, size = machine.host, sharding.elements if unit else sharding.root
        machine.copy(sharding.offload_ns if unit and op == "all_gather" else 0)
        number = yield from machine.collective(
            op, sharding.group, elements=size, transfer_ns=transfer_ns(size), early=early
        )
        label = "FSDP::all_gather" if op == "all_gather" else "FSDP::post_backward_reduce"
        if sharding.annotated:
            machine.annotate(f"{label} ({unit})" if unit else label, begin)
        return number

    yield from machine.wait(sharding.group, (yield from called("all_gather", "")))
    for backward in (False, True):
        machine.thread = AUTOGRAD if backward else HOST
        layers = [f"layers.{i}" for i in range(plan.layers)]
        order = layers[::-1] if backward else layers
        gathers = not sharding.whole and not (backward and sharding.keep)
        gathered = (yield from called("all_gather", order[0])) if gathers else 0
        for place, unit in enumerate(order):
            if gathers:
                yield from machine.wait(sharding.group, gathered)
            if gathers and sharding.copy_out_ns:
                begin = machine.host
                machine.compute(COPY_OUT, sharding.copy_out_ns)
                if sharding.annotated:
                    machine.annotate(f"FSDP::all_gather_copy_out ({unit})", begin)
            following = order[place + 1] if gathers and place < plan.layers - 1 else ""
            ahead = sharding.prefetch and place + 1 not in sharding.late_units
            if following and ahead:
                gathered = yield from called("all_gather", following, early=True)
            if backward:
                backward_layer(machine, plan, plan.layers - 1 - place, late)
                if not sharding.whole:
                    yield from called("reduce_scatter", unit)
            else:
                forward_layer(machine, plan, place)
            if following and not ahead:
                gathered = yield from called("all_gather", following)
    last = yield from called("reduce_scatter", "")
    machine.thread = HOST
    yield from machine.wait(sharding.group, last)


def pipeline(**plan: Any) -> SimulatedJob:
    """GPipe; ``layers`` counts micro batches."""
    made = Simulation(**({"world": 4, "shape": "stages", "layers": 8, "transfer_ns": 20_000} | plan))
    groups = {f"pp{r}": (r, r + 1) for r in range(made.world - 1)}
    return simulate(made, programs={"stages": gpipe}, groups=groups)


def experts(*, hot: Mapping[int, float] | None = None, group: str = "ep", **plan: Any) -> SimulatedJob:
    """Attention, an exchange, experts, an exchange back; ``hot``: rank -> how many times the tokens of the others."""
    made = Simulation(**({"world": 4, "shape": "experts", "layers": 4, "transfer_ns": 60_000} | plan))
    program = partial(_experts, hot=dict(hot or {}), group=group)
    return simulate(made, programs={"experts": program}, groups={group: tuple(range(made.world))})


def _experts(machine: SimulatedRank, plan: Simulation, late: int, *, hot: Mapping[int, float], group: str) -> Waiting:
    share = hot.get(machine.rank, 1.0)

    def exchange() -> Any:
        yield from machine.wait(
            group, (yield from machine.collective("all_to_all_v", group, elements=round(plan.elements * share)))
        )

    for backward in (False, True):
        for layer in reversed(range(plan.layers)) if backward else range(plan.layers):
            took = plan.backward_ns if backward else plan.forward_ns
            if backward:
                backward_layer(machine, plan, layer, late)
            else:
                forward_layer(machine, plan, layer)
            yield from exchange()
            machine.compute((plan.backward if backward else plan.forward)[0], round(took * share))
            yield from exchange()


def tensor(
    *, pairs: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3)), gradient_ns: int = 100_000, kind: str = "tp", **plan: Any
) -> SimulatedJob:
    """An all-reduce a layer and pass in each tensor-parallel group; at the end, gradients among ranks of equal place.

    Plan.transfer_ns: of a layer's all-reduce; gradient_ns: of the gradients', which are as large.
    """
    made = Simulation(**({"world": 4, "shape": "tensor", "layers": 4} | plan))
    groups = {f"{kind}{i}": ranks for i, ranks in enumerate(pairs)}
    groups |= {f"dp{i}": ranks for i, ranks in enumerate(zip(*pairs, strict=True)) if len(ranks) > 1}
    program = partial(_tensor, gradient_ns=gradient_ns, kind=kind)
    return simulate(made, programs={"tensor": program}, groups=groups)


def _tensor(machine: SimulatedRank, plan: Simulation, late: int, *, gradient_ns: int, kind: str) -> Waiting:
    mine = [name for name, ranks in machine.groups.items() if machine.rank in ranks]
    tp = next(name for name in mine if name.startswith(kind))
    for backward in (False, True):
        machine.thread = AUTOGRAD if backward else HOST
        for layer in reversed(range(plan.layers)) if backward else range(plan.layers):
            if backward:
                backward_layer(machine, plan, layer, late)
            else:
                forward_layer(machine, plan, layer)
            yield from machine.wait(tp, (yield from machine.collective("all_reduce", tp)))
    machine.thread = HOST
    for dp in (name for name in mine if name.startswith("dp")):
        number = yield from machine.collective("all_reduce", dp, transfer_ns=gradient_ns)
        yield from machine.wait(dp, number)


def on_hosts(evidence: Evidence, *hosts: str, device: str | None = None) -> Evidence:
    """The same with rank i on hosts[i]."""
    summary = evidence.traces[0].summary
    ranks = tuple(
        replace(p, facts=replace(p.facts, host=host, device_name=device))
        for p, host in zip(summary.ranks, hosts, strict=True)
    )
    return traced(replace(summary, ranks=ranks))


def traces_of(job: SimulatedJob, folder: Path) -> Evidence:
    """The job's traces as evidence."""
    return traced(analyse_job(folder_of(job, folder / "traces")))


def used_by(evidence: Evidence, *, frameworks: tuple[str, ...]) -> Evidence:
    """The same of a job that uses these frameworks, its units wrapped by the first."""

    def changed(each: RankPass) -> RankPass:
        units = replace(each.units, wrapper=frameworks[0]) if each.units is not None else None
        return replace(each, facts=replace(each.facts, frameworks=frameworks), units=units)

    summary = evidence.traces[0].summary
    return traced(replace(summary, ranks=tuple(map(changed, summary.ranks))))


def folder_of(job: SimulatedJob, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for rank in range(job.plan.world):
        (folder / f"rank-{rank}.json").write_text(job.rank_text(rank))
    return folder
