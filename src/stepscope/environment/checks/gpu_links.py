"""How the GPUs of this machine are joined."""

from __future__ import annotations

from stepscope.core.errors import Unavailable
from stepscope.core.words import counted
from stepscope.environment.checks._common import (
    Check,
    Outcome,
    listed,
    passed,
    several_gpus,
    skipped,
    warned,
)
from stepscope.environment.topology import Topology, has_nvswitch
from stepscope.hardware.lookup import find
from stepscope.records.environment import EnvironmentRecord


def nvlinks_per_gpu(record: EnvironmentRecord) -> int | None:
    """NVLinks of the GPUs here from the accelerator table; None when mixed or not known."""
    names = {gpu.name for gpu in record.gpus}
    if len(names) != 1:
        return None
    only = find(names.pop())
    if isinstance(only, Unavailable) or only.link is None or not only.link.name.startswith("NVLink"):
        return None
    return only.link.count


def run(record: EnvironmentRecord) -> Outcome:
    topology = several_gpus(record)
    if isinstance(topology, Unavailable):
        return skipped(topology.reason)
    unknown = topology.unknown_pairs()
    if unknown:
        return skipped(f"{counted(len(unknown), 'GPU pair')} not in the matrix: {listed(topology.problems, at_most=1)}")
    fast, pairs = topology.fast_pairs(), topology.gpu_pairs()
    if not fast:
        kinds = sorted({link.label for pair in pairs if (link := topology.link(*pair))})
        return warned(
            f"PCIe only ({listed(kinds)}): every GPU-to-GPU byte shares the host's PCIe lanes",
            fix="expect communication-bound steps; overlap, larger accumulation or BF16 gradients help",
        )
    if len(fast) == len(pairs):
        return _all_joined(record, topology)
    islands = [island for island in topology.nvlink_islands() if len(island) > 1]
    if len(islands) == 1 and len(islands[0]) == len(topology.gpus):
        return passed(f"NVLink on {len(fast)} of {len(pairs)} pairs, and every GPU is reached over it (a cube mesh)")
    return warned(
        f"NVLink only inside {listed('+'.join(island) for island in islands)}; the other pairs go over PCIe",
        fix="keep tensor parallelism inside an island and choose GPU counts that fill whole islands",
    )


def _all_joined(record: EnvironmentRecord, topology: Topology) -> Outcome:
    counts = sorted({link.nvlinks for pair in topology.gpu_pairs() if (link := topology.link(*pair))})
    switch = has_nvswitch(topology, links_per_gpu=nvlinks_per_gpu(record))
    if len(counts) == 1:
        how = {
            True: "through NVSwitch",
            False: "wired directly",
            None: "NVSwitch or wired directly: cannot be told",
        }
        return passed(f"NVLink between all pairs, {counted(counts[0], 'link')} each ({how[switch]})")
    if counts[-1] * (len(topology.gpus) - 1) > (nvlinks_per_gpu(record) or 18):
        return warned(
            f"NVLink between all pairs, but {counts[0]} to {counts[-1]} links: some NVLinks are down",
            fix="look at `nvidia-smi nvlink -s` and dmesg, and have the links repaired",
        )
    return passed(f"NVLink between all pairs, {counts[0]} to {counts[-1]} links (a mesh of unequal strength)")


CHECK = Check(section="links", title="GPU links", run=run, order=0)
