"""What a dry run records: the user's own script, run on this machine as some ranks of a world that is not there.

``dryrun.json``: one :class:`DryRun`. ``.stepscope/world-WWWWWW-rank-RRRRRR.json``: one :class:`DryRank` each, written by
``hook/stepscope_dry``, which runs in the script's process; ``.stepscope/failure-WWWWWW-rank-RRRRRR.json``: why a rank has
none (:class:`DryFailure`). Nothing in them was timed: what a step takes is ``predict/dry``'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.calibration import Calibration

MemoryKind = Literal["parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "temporary"]
MEMORY_KINDS: tuple[MemoryKind, ...] = (
    "parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "temporary",
)  # fmt: skip
"""What a byte of a rank is held for. activations: saved by the forward pass for the backward pass. gathered: whole
parameters of a sharded model, and gradients on their way to their shards. buffers: of modules, buckets of DDP, batches."""


@record
class DryOperator:
    """Calls of one operator, at one place, on tensors of these shapes: equal calls are one row.

    op: ``aten.mm.default``. shapes, dtypes: of its tensor arguments; out_shapes, out_dtypes: of its results. flop: of one
    call, by torch's FlopCounterMode. read_bytes, written_bytes: of one call; 0 for views, which run no kernel.
    causal: attention that looks back only, whose FLOP are counted whole all the same.
    phase: key of records/parts.py. recomputed: a forward pass again, within the backward pass. module: path in the model
    with numbers as ``*``; of a backward operator that of its forward. place: ``train.py:88``, the user's own line.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    out_shapes: tuple[tuple[int, ...], ...]
    out_dtypes: tuple[str, ...]
    flop: int
    read_bytes: int
    written_bytes: int
    phase: str
    recomputed: bool = False
    module: str | None = None
    place: str | None = None
    causal: bool = False


@record
class DryCall:
    """One collective of the step. size_bytes: S in the nccl-tests sense. group: index into ``DryRank.groups``.

    at: operators of ``DryRank.order`` before the host calls it; after: those of the computing stream that must be done
    before it begins, by streams and events as the script uses them; None: all of ``at``. waited: operators before which the
    computing stream waits for it; None: only the end of the step does. peer: rank at the other end of a message. carries:
    what its bytes are, where that is seen:
    wrappers send ``parameters`` and ``gradients`` beside computation, the model's own code sends ``activations``.
    """

    op: str
    size_bytes: int
    dtype: str
    group: int
    at: int
    waited: int | None
    phase: str
    recomputed: bool = False
    module: str | None = None
    place: str | None = None
    peer: int | None = None
    carries: Literal["parameters", "gradients", "activations"] | None = None
    after: int | None = None


@record
class DryGroup:
    """Ranks that call collectives together. axis: mesh dimension as the script names it; ``world``; None: neither."""

    ranks: tuple[int, ...]
    axis: str | None = None


@record
class DryHeld:
    """Storages that are alive at the peak: count of equal ones, bytes of all of them."""

    kind: MemoryKind
    size_bytes: int
    count: int
    shape: tuple[int, ...]
    dtype: str
    module: str | None = None
    place: str | None = None


@record
class DryMemory:
    """Bytes by kind (order of MEMORY_KINDS) over the step. at: operators before; samples[i]: bytes at at[i], at changes
    that matter; samples[0]: as the step begins. peak, peak_at: the largest sum. at_peak: what is alive there, largest
    first; storages below 1 MiB as one row of a kind, without shape. peak_rounded: the peak with each storage in units of 512
    bytes, as the allocator of a GPU gives them out."""

    at: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    peak: tuple[int, ...]
    peak_at: int
    peak_op: str | None
    peak_place: str | None
    at_peak: tuple[DryHeld, ...] = ()
    peak_rounded: int = 0

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak)


@record
class DryAction:
    """One computation of a pipeline's stage for one micro-batch. kind: F, B (a whole backward pass), I (of the input alone)
    or W (of the weights alone). at, until: operators of the step before it begins and before it ends; what lies between two
    actions is the schedule's own."""

    kind: Literal["F", "B", "I", "W"]
    stage: int
    micro_batch: int
    at: int
    until: int


@record
class DryPipeline:
    """What a rank does of a pipeline. schedule: torch's class. ranks: of each stage. actions: this rank's, in order."""

    schedule: str
    micro_batches: int
    ranks: tuple[int, ...]
    actions: tuple[DryAction, ...]


@record
class DryNote:
    """What the dry run did in place of the script. code: ``value-read`` (a number was read from a tensor without data, and
    ``text`` answered), ``value-decides`` (likewise in a condition), ``skipped`` (what was not carried out), ``loader``,
    ``compile``, ``spawned``, ``evaluation`` (of the model that is trained), ``one-step`` (there is no second),
    ``alone`` (no process group is made), ``lengths`` (batches differ in shape) ... place: the script's line."""

    code: str
    text: str
    place: str | None = None


@record
class DryRank:
    """The last step of one rank. order: row of ``operators`` of each call, in the order of the host's program.

    micro_steps: backward passes of the step. samples: first dimension of the batches that the model was given in the step,
    summed; tokens: elements of their integer tensors, None without. parameters: elements of the whole model, all ranks
    together; trained: those that an optimizer changes. dtypes: of parameters -> elements. mesh: dimension -> size, as the
    script made it. wrappers: ``ddp``, ``fsdp1``, ``fsdp2``, ``zero1``, ``dtensor``, ``pipeline`` ...; settings: of them
    (bucket_cap_mb, reshard_after_forward ...). compiled: modules given to torch.compile, run without it here. device: what
    the script asked for (cuda). pipeline: where the rank has stages of one.
    """

    rank: int
    world_size: int
    steps: int
    micro_steps: int
    samples: int | None
    tokens: int | None
    parameters: int
    trained: int
    dtypes: Mapping[str, int]
    device: str
    backend: str | None
    optimizer: str | None
    operators: tuple[DryOperator, ...]
    order: tuple[int, ...]
    calls: tuple[DryCall, ...]
    groups: tuple[DryGroup, ...]
    memory: DryMemory
    mesh: Mapping[str, int] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()
    pipeline: DryPipeline | None = None
    notes: tuple[DryNote, ...] = ()


@record
class ProfiledOperator:
    """Calls of one operator on inputs of these shapes (JSON, as the profiler writes them), with what is inside of them."""

    name: str
    shapes: str
    calls: int
    time_ns: int


@record
class DryProfile:
    """What a profile of the same script measured on one rank of the host: ranks of the host are priced by it.

    world_size: of the profiled job. parts: ns of its steps without the
    profiler, less waiting for communication, by key of records/parts.py. network: what collectives cost between the ranks.
    """

    source: str
    world_size: int
    operators: tuple[ProfiledOperator, ...]
    parts: Mapping[str, float]
    network: Calibration
    memory_bytes: int


@record
class DryFailure:
    """Why a world has no step. reason: ``raised``, ``no-step``, ``world``, ``unsupported``, ``needs-data``, ``timeout``,
    ``exit`` (by its own words) ..; place: the script's line."""

    world_size: int
    rank: int
    reason: str
    text: str
    place: str | None = None
    fix: str | None = None


@record
class DryRun:
    """dryrun.json. command: as typed. gpus: worlds asked for; ranks_per_node: None: not stated. failures: worlds without a
    step. gpu, network, adapters: what it is priced on, keys of the hardware tables; gpu is
    None of ranks of the host (DryProfile). changes: what the wrappers were made to
    do otherwise (``bucket``: bytes, ``reshard``)."""

    command: tuple[str, ...]
    folder: str
    argv: tuple[str, ...]
    gpus: tuple[int, ...]
    ranks_per_node: int | None = None
    failures: tuple[DryFailure, ...] = ()
    gpu: str | None = None
    network: str | None = None
    adapters: int | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
