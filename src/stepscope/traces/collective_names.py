"""What a collective is called: arguments, launching operators and kernel names of all generations -> op, dtype, S."""

from __future__ import annotations

import re

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_collectives import CollectiveGroup
from stepscope.traces.events import CollectiveArgs

TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "barrier"})
"""Collectives that all ranks leave together: the only ones to split into transfer and waiting."""

SYNONYMS: dict[str, str] = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "allreduce_sparse": "all_reduce",
    "allgather": "all_gather", "allgather_base": "all_gather", "all_gather_base": "all_gather",
    "allgather_coalesced": "all_gather", "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_base": "reduce_scatter", "reducescatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all", "all_to_all_single": "all_to_all",
    "all_to_allv": "all_to_all_v", "alltoallv": "all_to_all_v", "all_to_all_v": "all_to_all_v",
    "broadcast_oop": "broadcast", "reduce_oop": "reduce", "monitored_barrier": "barrier",
    "send": "send_recv", "recv": "send_recv", "recv_any_source": "send_recv", "sendrecv": "send_recv",
}  # fmt: skip
"""Spelling without outer underscores -> op; c10d, ProcessGroupNCCL and gloo use all of them."""

OPS = frozenset(SYNONYMS.values()) | {"broadcast", "reduce", "gather", "scatter"}

_KERNELS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), op)
    for pattern, op in (
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?reduce|cross_device_reduce", "all_reduce"),
        (r"all_?gather", "all_gather"),
        (r"all_?to_?all", "all_to_all"),
        (r"send_?recv", "send_recv"),
        (r"broadcast", "broadcast"),
        (r"deep_ep::.*(dispatch|combine)", "all_to_all_v"),
        (r"^(nccl|rccl|msccl)\w*Kernel_Reduce_", "reduce"),
    )
)
_KERNEL_DTYPE = re.compile(
    r"_(?:Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv|Avg)_(\w+?)(?:_(?:RING|TREE|COLLNET|NVLS|PAT|LL)\w*)?$"
)

_DTYPES: dict[str, tuple[str, int]] = {}
for _name, _size, _spellings in (
    ("float64", 8, "double f64 float64"),
    ("float32", 4, "float f32 float32"),
    ("float16", 2, "half f16 c10::half float16"),
    ("bfloat16", 2, "bfloat16 bf16 c10::bfloat16 __nv_bfloat16 rccl_bfloat16 hip_bfloat16"),
    ("int64", 8, "long long_int i64 int64 int64_t"),
    ("uint64", 8, "u64 uint64_t uint64 unsigned_long unsigned_long_int"),
    ("int32", 4, "int i32 int32 int32_t"),
    ("uint32", 4, "u32 uint32_t uint32 unsigned_int"),
    ("int16", 2, "short short_int int16"),
    ("int8", 1, "char i8 int8 int8_t signed_char"),
    ("uint8", 1, "byte u8 uint8 uint8_t unsigned_char"),
    ("bool", 1, "bool"),
    ("float8_e4m3", 1, "float8_e4m3fn float8_e4m3fnuz f8e4m3 c10::float8_e4m3fn c10::float8_e4m3fnuz"),
    ("float8_e5m2", 1, "float8_e5m2 float8_e5m2fnuz f8e5m2 c10::float8_e5m2 c10::float8_e5m2fnuz"),
    ("complex64", 8, "complexfloat c10::complex<float>"),
    ("complex128", 16, "complexdouble c10::complex<double>"),
):
    for _spelling in _spellings.split():
        _DTYPES[_spelling] = (_name, _size)

DTYPE_BYTES = dict(_DTYPES.values())
"""torch's name of a dtype without the prefix -> bytes per element."""


def op_named(name: str) -> str | None:
    """The op of one spelling (``_allgather_base``, ``c10d::allreduce_``, ``gloo:send``); None if it is none."""
    bare = name.rsplit(":", 1)[-1].strip("_ ").lower()
    op = SYNONYMS.get(bare, bare)
    if op in OPS:
        return op
    first = bare.split(" ", 1)[0]  # NCCL's point-to-point: "send 0->1", "nccl:recv 1<-0"
    return SYNONYMS.get(first) if first in ("send", "recv") else None


def direction_of(name: str) -> str | None:
    """send or recv, for the two halves of a point-to-point message."""
    first = name.rsplit(":", 1)[-1].strip("_ ").lower().split(" ", 1)[0]
    return first if first in ("send", "recv") else "recv" if first == "recv_any_source" else None


def op_of_kernel(name: str) -> str:
    """The op that a kernel's name tells; ``unknown`` for generic kernels (RCCL's ncclDevKernel_Generic)."""
    bare = name.split("(", 1)[0]
    return next((op for pattern, op in _KERNELS if pattern.search(bare)), "unknown")


def dtype_of_kernel(name: str) -> str | None:
    """dtype in a reducing kernel's name. Copying kernels always say int8_t and so tell nothing."""
    bare = name.split("(", 1)[0]
    if op_of_kernel(name) not in ("all_reduce", "reduce_scatter", "reduce"):
        return None
    found = _KERNEL_DTYPE.search(bare)
    return dtype_named(found[1]) if found else None


def dtype_named(name: str) -> str | None:
    """torch's name for a spelling of c10d (Float), of recorded inputs (c10::BFloat16) or of NCCL (bf16)."""
    known = _DTYPES.get(name.strip().lower().replace(" ", "_"))
    return known[0] if known else None


def elements_of(op: str, args: CollectiveArgs) -> int | None:
    """Elements of S: of the whole buffer where ranks hold parts of it, else of the tensor."""
    known = [n for n in (args.in_elements, args.out_elements) if n is not None]
    if not known:
        return None
    return known[0] if op in ("all_reduce", "broadcast", "reduce") else max(known)


def ranks_by_shapes(op: str, part_and_whole: tuple[int | None, int | None]) -> int | None:
    """Size of the group that the elements of a call's two buffers (in any order) imply: whole / part where ranks hold equal
    parts of one buffer. None for other ops, and where the two do not divide or are alike.
    """
    if op not in ("all_gather", "reduce_scatter") or None in part_and_whole:
        return None
    part, whole = sorted(n for n in part_and_whole if n is not None)
    return whole // part if 0 < part < whole and whole % part == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one collective is, as one rank's trace tells it; fields as in ``RankCollective``."""

    op: str
    op_source: str
    kernel: str
    dtype: str | None
    size_bytes: int | None
    group: CollectiveGroup | None
    group_size: int | None = None
    sequence: int | None = None
    comms_id: int | None = None
    direction: str | None = None
    peers: tuple[int, int] | None = None
    stream: int | None = None
