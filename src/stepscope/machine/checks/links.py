"""Checks of what joins the GPUs."""

from __future__ import annotations

from stepscope.core.errors import Unavailable
from stepscope.core.words import counted, listed
from stepscope.machine.judging import (
    Outcome,
    check,
    no_gpu_reason,
    passed,
    several_gpus,
    skipped,
    switched_on,
    variable,
    warned,
)
from stepscope.machine.peaks.lookup import find
from stepscope.machine.topology import Topology, has_nvswitch
from stepscope.records.environment import EnvironmentRecord


def nvlinks_per_gpu(record: EnvironmentRecord) -> int | None:
    """Return the NVLinks of each GPU here from the accelerator table; None when mixed or not known."""
    names = {gpu.name for gpu in record.gpus}
    if len(names) != 1:
        return None
    only = find(names.pop())
    if isinstance(only, Unavailable) or only.link is None or not only.link.name.startswith("NVLink"):
        return None
    return only.link.count


@check("links", "GPU links")
def gpu_links(record: EnvironmentRecord) -> Outcome:
    """How the GPUs of this machine are joined."""
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
    """Say how all GPUs are joined by NVLink."""
    counts = sorted({link.nvlinks for pair in topology.gpu_pairs() if (link := topology.link(*pair))})
    switch = has_nvswitch(topology, links_per_gpu=nvlinks_per_gpu(record))
    if len(counts) == 1:
        how = {True: "through NVSwitch", False: "wired directly", None: "NVSwitch or direct links: unknown"}
        return passed(f"NVLink between all pairs, {counted(counts[0], 'link')} each ({how[switch]})")
    if counts[-1] * (len(topology.gpus) - 1) > (nvlinks_per_gpu(record) or 18):
        return warned(
            f"NVLink between all pairs, but {counts[0]} to {counts[-1]} links: some NVLinks are down",
            fix="check `nvidia-smi nvlink -s` and dmesg, and have the links repaired",
        )
    return passed(f"NVLink between all pairs, {counts[0]} to {counts[-1]} links (a mesh of unequal strength)")


@check("links", "socket crossing")
def socket_crossing(record: EnvironmentRecord) -> Outcome:
    """GPU pairs whose traffic crosses the socket interconnect."""
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


SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_DISABLE", "NCCL_CUMEM_DISABLE")
LEVELS = ("NCCL_P2P_LEVEL",)


@check("links", "NCCL fast paths")
def p2p_disabled(record: EnvironmentRecord) -> Outcome:
    """NCCL is not told to avoid the fast paths inside the machine."""
    off = [name for name in SWITCHES if switched_on(variable(record, name))]
    if variable(record, "NCCL_NVLS_ENABLE") == "0":
        off.append("NCCL_NVLS_ENABLE=0")
    off += [name for name in LEVELS if (variable(record, name) or "").upper() in ("0", "LOC")]
    if off:
        return warned(f"turned off by {listed(off)}", fix=f"unset {' '.join(o.partition('=')[0] for o in off)}")
    return passed("no variable turns P2P, shared memory or NVLS off")


@check("links", "peer access")
def peer_access(record: EnvironmentRecord) -> Outcome:
    """GPUs can read each other's memory directly (P2P)."""
    if record.torch is None:
        return skipped("torch does not respond")
    count = record.torch.device_count
    if count < 2:
        return skipped("one GPU" if count else no_gpu_reason(record))
    without = record.torch.no_peer_access
    pairs = count * (count - 1) // 2
    if without:
        return warned(
            f"{len(without)} of {pairs} pairs have none ({listed(f'{a}-{b}' for a, b in without)}): "
            "NCCL copies through host memory",
            fix="normal for GeForce cards; else turn off ACS and the IOMMU in the BIOS",
        )
    return passed("between all pairs")
