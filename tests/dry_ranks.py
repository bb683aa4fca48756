"""Records of dry runs, made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepscope.records.dry_run import MEMORY_KINDS, DryCall, DryGroup, DryHeld, DryMemory, DryOperator, DryRank, DryRun
from stepscope.results.dry_job import DryJob


def product(
    m: int, n: int, k: int, *, phase: str = "forward", dtype: str = "bfloat16", module: str = "net"
) -> DryOperator:
    item = {"bfloat16": 2, "float32": 4, "float8_e4m3fn": 1}[dtype]
    return DryOperator(
        op="aten.mm.default", shapes=((m, k), (k, n)), dtypes=(dtype, dtype), out_shapes=((m, n),), out_dtypes=(dtype,),
        flop=2 * m * n * k, read_bytes=item * (m * k + k * n), written_bytes=item * m * n, phase=phase, module=module,
    )  # fmt: skip


def pointwise(name: str, elements: int, *, inputs: int = 1, phase: str = "forward", module: str = "net") -> DryOperator:
    return DryOperator(
        op=f"aten.{name}.default", shapes=((elements,),) * inputs, dtypes=("bfloat16",) * inputs,
        out_shapes=((elements,),), out_dtypes=("bfloat16",), flop=0, read_bytes=2 * inputs * elements,
        written_bytes=2 * elements, phase=phase, module=module,
    )  # fmt: skip


VIEW = replace(pointwise("view", 8), read_bytes=0, written_bytes=0)


def dry_rank(
    operators: tuple[DryOperator, ...],
    *,
    calls: tuple[DryCall, ...] = (),
    groups: tuple[tuple[int, ...], ...] = (),
    world: int = 8,
    compiled: tuple[str, ...] = (),
    peak: tuple[int, ...] = (0,) * len(MEMORY_KINDS),
    mesh: dict[str, int] | None = None,
) -> DryRank:
    """One rank that calls these operators in their order; equal ones are one row."""
    rows = tuple(dict.fromkeys(operators))
    return DryRank(
        rank=0, world_size=world, steps=2, micro_steps=1, samples=4, tokens=4096, parameters=1000, trained=1000,
        dtypes={"float32": 1000}, device="cuda", backend="nccl", optimizer="AdamW", operators=rows,
        order=tuple(rows.index(row) for row in operators), calls=calls,
        groups=tuple(DryGroup(ranks=ranks) for ranks in groups), compiled=compiled, mesh=mesh or {},
        memory=DryMemory(at=(), samples=(), peak=peak, peak_at=0, peak_op=None, peak_place="train.py:9"),
    )  # fmt: skip


GB = 10**9
VOCABULARY = 32000
LOGITS = DryHeld(
    kind="activations", size_bytes=8 * GB, count=1, shape=(65536, VOCABULARY), dtype="float32", place="train.py:88"
)
ADAM = replace(pointwise("_foreach_mul_", 1 << 28, phase="optimizer"), module=None)


def peak(**kinds: int) -> tuple[int, ...]:
    return tuple(kinds.get(kind, 0) for kind in MEMORY_KINDS)


def a_rank(world: int, *, activations: int = 20 * GB, size_bytes: int = 1 << 28) -> DryRank:
    """A step of two products and a reduction of gradients, with an optimizer of many passes over its state."""
    wide = product(16384, VOCABULARY, 16384, module="head")
    operators: tuple[DryOperator, ...] = (
        product(16384, 16384, 16384),
        wide,
        product(16384, 16384, 16384, phase="backward"),
    )
    call = DryCall(op="all_reduce", size_bytes=size_bytes, dtype="float32", group=0, at=3, waited=3, phase="backward")
    rank = dry_rank(
        (*operators, *([ADAM] * 60)), world=world, calls=(call,), groups=(tuple(range(world)),),
        peak=peak(parameters=GB, optimizer=2 * GB, activations=activations),
    )  # fmt: skip
    samples = (peak(parameters=GB, optimizer=2 * GB), rank.memory.peak)
    memory = DryMemory(
        at=(0, 2), samples=samples, peak=rank.memory.peak, peak_at=2, peak_op="aten.mm.default",
        peak_place="train.py:88", at_peak=(LOGITS,),
    )  # fmt: skip
    return replace(rank, memory=memory, wrappers=("ddp",))


def a_job(*worlds: int) -> DryJob:
    """The dry run of a script on these numbers of H100."""
    run = DryRun(
        command=("torchrun", "train.py"), folder="/job", argv=(), gpus=worlds, ranks_per_node=8, gpu="h100-sxm",
        network="infiniband-ndr",
    )  # fmt: skip
    return DryJob(folder=Path("dry"), run=run, ranks=tuple(map(a_rank, worlds)))
