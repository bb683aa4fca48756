"""Time of a collective on NCCL or RCCL from the hardware's specification alone."""

from __future__ import annotations

from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.words import unknown
from stepscope.machine.peaks import Accelerator, find
from stepscope.machine.peaks.lookup import family
from stepscope.predict.collectives import constants
from stepscope.predict.collectives.algorithms import ALGORITHMS
from stepscope.predict.collectives.costs import AlgorithmCost, Alternative, Predicted, collective, interval
from stepscope.predict.collectives.machine import Caller, Fabric, Place, find_fabric, launched_by_one, place

OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter",
    "send_recv", "barrier",
)  # fmt: skip
CALLERS: tuple[Caller, ...] = ("nccl-tests", "torch")

_SAME_NAME = {"sendrecv": "send_recv", "alltoall": "all_to_all"}
_BARRIER_BYTES = 4
_ITEMSIZE = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1,
    "float8": 1,
}  # fmt: skip
_SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}


def predict_collective(
    op: str,
    size_bytes: int,
    *,
    n_gpus: int,
    gpu: str | Accelerator,
    gpus_per_node: int | None = None,
    inter_node: str | Fabric | None = None,
    adapters_per_node: int | None = None,
    dtype: str = "float32",
    algorithm: str | None = None,
    sharp: bool = False,
    caller: Caller = "nccl-tests",
) -> Predicted:
    """Time of one call, with the algorithm that the library would choose, the others, and an 80% interval.

    size_bytes: S in the nccl-tests sense. gpu: a name or key of the accelerator table. inter_node: key of
    :data:`fabrics.FABRICS`; None: InfiniBand with the adapters usual for the GPU, and a note. algorithm: only this one
    (what NCCL_ALGO does). sharp: the network reduces (SHARP). caller: ``nccl-tests``: calls queued back to back;
    ``torch``: each call waited for. Raises UsageError for unknown names and counts that cannot be.
    """
    op = known_op(op)
    if size_bytes < 0:
        raise UsageError(f"a size of {size_bytes} bytes", fix="give 0 or more")
    if caller not in CALLERS:
        raise UsageError(unknown("caller", caller, CALLERS))
    item = itemsize(dtype)
    where = place(
        known_gpu(gpu),
        n_gpus=n_gpus,
        gpus_per_node=gpus_per_node,
        fabric=find_fabric(inter_node, gpu_key=known_gpu(gpu).key) if isinstance(inter_node, str) else inter_node,
        adapters_per_node=adapters_per_node,
        sharp=sharp,
        caller=caller,
    )
    if n_gpus == 1:
        return _one_rank_prediction(op)
    spec = collective(op)
    notes = list(where.notes)
    size = _BARRIER_BYTES if op == "barrier" else size_bytes
    run_as = "all_reduce" if op == "barrier" else op
    if op == "barrier":
        notes.append("torch's NCCL barrier is an all-reduce of one element")
    elif size % item:
        notes.append(f"{size} bytes are not a whole number of {dtype} elements")
    everything = candidates(run_as, size, where)
    offered = [c for c in everything if c.offered]
    if algorithm is not None:
        offered = _costs_of_algorithm(algorithm, everything, op)
    chosen = min(offered, key=lambda c: c.chosen_by_us)
    extra = call_us(where)
    time_ns = (chosen.time_us + extra) * 1e3
    if algorithm is None:
        notes += _faster_hint(chosen, offered)
    low, high = interval(op, where, chosen, extra_us=extra)
    others = sorted((c for c in everything if c is not chosen), key=lambda c: c.time_us)
    return Predicted(
        time_ns=time_ns,
        low_ns=time_ns * low,
        high_ns=time_ns * high,
        algorithm=chosen.algorithm,
        protocol=chosen.protocol,
        why=_why_chosen(chosen, offered, where, forced=algorithm is not None),
        notes=tuple(notes),
        busbw_bytes_per_s=size_bytes / (time_ns / 1e9) * spec.bus_factor(n_gpus)
        if spec.has_payload and size_bytes
        else None,
        alternatives=tuple(
            Alternative(
                algorithm=c.algorithm, protocol=c.protocol, time_ns=(c.time_us + extra) * 1e3, offered=c.offered
            )
            for c in others
        ),
    )


def candidates(op: str, size_bytes: int, where: Place) -> list[AlgorithmCost]:
    """Every algorithm and protocol that can carry out ``op`` there."""
    costs = (c for ops, algorithm in ALGORITHMS if op in ops for c in algorithm(op, size_bytes, where))
    return [c for c in costs if c.transfer_us >= 0]


def call_us(where: Place) -> float:
    """Return what comes on top of the library's own time: launches by one process, or a waiting caller."""
    if where.caller == "torch":
        return constants.TORCH_CALL_US
    if launched_by_one(where):
        return constants.LAUNCH_PER_GPU_US * where.ranks
    return 0.0


def known_op(name: str) -> str:
    """The op's key; other tools' spellings are understood. Raises UsageError with did-you-mean."""
    key = name.lower().replace("-", "_")
    key = _SAME_NAME.get(key, key)
    squeezed = {op.replace("_", ""): op for op in OPS}
    key = squeezed.get(key.replace("_", ""), key)
    if key not in OPS:
        raise UsageError(unknown("collective", name, OPS))
    return key


def known_gpu(gpu: str | Accelerator) -> Accelerator:
    """Return the GPU of the table. Raises UsageError for an unknown name."""
    if isinstance(gpu, Accelerator):
        return gpu
    accelerator = find(gpu)
    if isinstance(accelerator, Unavailable):
        more = family(gpu)
        fix = "`stepscope hardware` lists the known ones" if not more else f"say {more[0].key!r}, for example"
        raise UsageError(accelerator.reason, fix=fix)
    return accelerator


def dtype_name(dtype: str) -> str:
    """torch's name of ``dtype``: float32 for fp32. Raises UsageError with did-you-mean."""
    name = _SHORT.get(dtype.lower(), dtype.lower())
    if name not in _ITEMSIZE:
        raise UsageError(unknown("dtype", dtype, (*_ITEMSIZE, *_SHORT)))
    return name


def itemsize(dtype: str) -> int:
    """Bytes of an element. Raises UsageError with did-you-mean."""
    return _ITEMSIZE[dtype_name(dtype)]


def _costs_of_algorithm(algorithm: str, everything: list[AlgorithmCost], op: str) -> list[AlgorithmCost]:
    wanted = algorithm.lower()
    matching = [c for c in everything if c.algorithm.startswith(wanted) or c.name.lower() == wanted]
    if not matching:
        raise UsageError(unknown(f"algorithm of {op} here", algorithm, {c.algorithm for c in everything}))
    return matching


WORTH_TRYING = 0.8
"""Share of the chosen one's time below which another one is pointed out."""


def _faster_hint(chosen: AlgorithmCost, offered: list[AlgorithmCost]) -> list[str]:
    best = min(offered, key=lambda c: c.time_us)
    if best.time_us >= WORTH_TRYING * chosen.time_us:
        return []
    ratio = best.time_us / chosen.time_us
    return [f"{best.name} is predicted at {ratio:.2f}x: worth measuring with NCCL_ALGO and NCCL_PROTO"]


def _one_rank_prediction(op: str) -> Predicted:
    return Predicted(
        time_ns=0.0, low_ns=0.0, high_ns=0.0, algorithm="none", why=f"one rank has no partner; {op} is a copy at most"
    )


def _why_chosen(chosen: AlgorithmCost, offered: list[AlgorithmCost], where: Place, *, forced: bool) -> str:
    """Say what bounds the chosen algorithm, and why it was chosen."""
    share = chosen.latency_us / (chosen.latency_us + chosen.transfer_us)
    if share > 0.7:
        bound = "latency decides"
    elif share < 0.3:
        bound = f"bound by the rate of the {chosen.limit}"
    else:
        bound = f"bound equally by latency and by the rate of the {chosen.limit}"
    parts = [f"{chosen.latency_us:.1f} us latency + {chosen.transfer_us:.1f} us transfer: {bound}"]
    others = sorted((c for c in offered if c is not chosen), key=lambda c: c.chosen_by_us)
    if forced:
        parts.insert(0, "asked for")
    elif others:
        library = where.library.upper()
        ratio = others[0].chosen_by_us / chosen.chosen_by_us
        parts.insert(0, f"{library} chooses it: its own estimate of {others[0].name} is {ratio:.2f}x")
    table = constants.SOURCE if where.library == "nccl" else constants.RCCL_SOURCE
    parts.append(f"constants: {table.split(' (')[0]}")
    return "; ".join(parts)
