"""Folders of traces of hundreds and thousands of ranks, with a planted straggler, made of few simulated ones.

Simulated are a host with the straggler and some without one, of ``PER_HOST`` ranks each, with clocks that differ; every
host of the job shows what one of those showed, under its own ranks. With DDP all ranks meet in the same collectives; on a
mesh those of a host do (tensor parallel), and those of one place on all hosts (data parallel).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from stepscope.examples.jobs import plan
from stepscope.examples.machine import SimulatedRank, Waiting
from stepscope.examples.training_job import (
    Clock,
    Planted,
    SimulatedJob,
    Simulation,
    backward_layer,
    distributed_info,
    forward_layer,
    simulate,
    trace_text,
)

PER_HOST = 8
OFFSETS_NS = (0, 400_000, -2_500_000, 90_000)
"""Of the clocks of the simulated hosts; the first has the straggler."""
SLOW_PLACE, SLOWER = 5, 1.18
LAYERS_STEPS = {"small": (6, 4), "large": (32, 32)}
"""0.2 MB and 10 MB a rank."""
_LISTED = 30
"""Kineto shortens longer lists of ranks."""
_SIZE, _INFO = 970_000, "@info"


def write_set(folder: Path, *, ranks: int, size: str = "small", mesh: bool = False) -> int:
    """One file a rank; the rank that computes longer. ``ranks``: a multiple of PER_HOST, of 4 hosts at least."""
    folder.mkdir(parents=True)
    job = _simulated(*LAYERS_STEPS[size], mesh=mesh)
    texts = {rank: _template(job, rank) for rank in job.events}
    slow_host = ranks // PER_HOST // 2
    for rank in range(ranks):
        host, place = divmod(rank, PER_HOST)
        kind = 0 if host == slow_host else 1 + host % (len(OFFSETS_NS) - 1)
        groups = _groups_of(rank, ranks, mesh=mesh)
        text = texts[kind * PER_HOST + place]
        for number, (name, members) in enumerate(groups.items()):
            text = text.replace(f"@name{number}", name).replace(f"@ranks{number}", _listed(members))
            text = text.replace(str(_SIZE + number), str(len(members)))
        info = distributed_info(rank, ranks, backend="nccl", groups=groups)
        (folder / f"rank{rank}.pt.trace.json").write_text(text.replace(f'"{_INFO}"', json.dumps(info)))
    return slow_host * PER_HOST + SLOW_PLACE


def _groups_of(rank: int, ranks: int, *, mesh: bool) -> dict[str, range]:
    """The groups of a rank, with their members."""
    host, place = divmod(rank, PER_HOST)
    if not mesh:
        return {"0": range(ranks)}
    return {
        f"tp{host}": range(host * PER_HOST, (host + 1) * PER_HOST),
        f"dp{place}": range(place, ranks, PER_HOST),
    }


def _listed(members: range) -> str:
    text = str(list(members[:_LISTED]))
    return text if len(members) <= _LISTED else f"{text[:-1]}, ...]"


def _simulated(layers: int, steps: int, *, mesh: bool) -> SimulatedJob:
    world = PER_HOST * len(OFFSETS_NS)
    clocks = {rank: Clock(offset_ns=OFFSETS_NS[rank // PER_HOST]) for rank in range(world)}
    job = plan(
        world=world,
        bus_gb_per_s=230,
        layers=layers,
        steps=steps,
        slow={SLOW_PLACE: SLOWER},
        clocks=clocks,
        shape="mesh" if mesh else "ddp",
    )
    groups = {name: tuple(of) for rank in range(world) for name, of in _groups_of(rank, world, mesh=mesh).items()}
    return simulate(job, programs={"mesh": _mesh}, groups=groups)


def _mesh(machine: SimulatedRank, job: Simulation, late: int) -> Waiting:
    """Layers divided over the host, which sums after each; gradients reduced over the hosts under the backward pass."""
    within, across = _groups_of(machine.rank, job.world, mesh=True)
    reduced = 0
    for layer in range(job.layers):
        forward_layer(machine, job, layer)
        yield from machine.wait(within, (yield from machine.collective("all_reduce", within)))
    for layer in reversed(range(job.layers)):
        backward_layer(machine, job, layer, late)
        yield from machine.wait(within, (yield from machine.collective("all_reduce", within)))
        reduced = yield from machine.collective("all_reduce", across)
    yield from machine.wait(across, reduced)


def _template(job: SimulatedJob, rank: int) -> str:
    """The text of its file, with marks for what says which ranks it was."""
    numbers = {name: at for at, name in enumerate(_groups_of(rank, job.plan.world, mesh=job.plan.shape == "mesh"))}

    def marked(event: Planted) -> Planted:
        if "Group size" not in event.args:
            return event
        number = numbers[event.args["Process Group Name"]]
        names = {"Process Group Name": f"@name{number}", "Process Group Ranks": f"@ranks{number}"}
        return replace(event, args={**event.args, "Group size": _SIZE + number, **names})

    header = {"deviceProperties": [{"id": 0, "name": job.plan.gpu}], "distributedInfo": _INFO, "record_shapes": 1}
    return trace_text([marked(event) for event in job.events[rank]], header)
