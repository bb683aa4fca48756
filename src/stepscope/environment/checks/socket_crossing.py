"""GPU pairs whose traffic crosses the socket interconnect."""

from __future__ import annotations

from stepscope.core.errors import Unavailable
from stepscope.environment.checks._common import Check, Outcome, listed, passed, several_gpus, skipped, warned
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    topology = several_gpus(record)
    if isinstance(topology, Unavailable):
        return skipped(topology.reason)
    crossing, pairs = topology.socket_crossing_pairs(), topology.gpu_pairs()
    if crossing:
        return warned(
            f"{len(crossing)} of {len(pairs)} GPU pairs cross NUMA nodes ({listed('-'.join(p) for p in crossing)})",
            fix="prefer GPUs of one NUMA node for jobs that need only some; bind each rank to its GPU's node",
        )
    if topology.unknown_pairs():
        return skipped("not every pair is in the matrix")
    return passed("no link between GPUs crosses NUMA nodes")


CHECK = Check(section="links", title="socket crossing", run=run, order=1)
