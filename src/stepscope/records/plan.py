"""What a model is and what a strategy declares about it. No torch: facts and specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from stepscope.core.dataclass import record
from stepscope.records import mesh

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1,
    "int64": 8, "uint64": 8, "int32": 4, "uint32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""torch's name of a dtype without the prefix -> bytes per element."""


@record
class ParameterFact:
    """One trainable tensor: its name in the module, number of elements and storage type.

    shape: None when unknown; low-rank compression cannot be planned without it.
    """

    name: str
    numel: int
    dtype: str
    shape: tuple[int, ...] | None = None

    @property
    def size_bytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]


@record
class CutModule:
    """A module that tensor parallelism changes, applied to ``positions`` vectors of a sample.

    style: ``column`` (outputs divided), ``row`` (inputs divided, outputs summed), ``table`` (rows of a look-up table
    divided, outputs summed), ``head`` (column whose outputs are scores), ``norm`` (whole; with sequence parallelism
    applied to a share of the positions). tied: the parameter of another module that is its weight.
    """

    name: str
    style: str
    positions: int
    tied: str | None = None


@record
class ParallelPlan:
    """How a model is divided over a tensor-parallel group. Modules that are not named are whole on every rank.

    modules: in the order of use. heads: attention heads, dealt out whole; None: no attention.
    split_at: the module at whose input positions may be divided over the group; None: they may not be.
    divided_activations: bytes a sample of each kind of ``ModelFacts.activations`` (mode ``none``) that are divided.
    """

    modules: tuple[CutModule, ...]
    heads: int | None = None
    split_at: str | None = None
    divided_activations: Mapping[str, int] = field(default_factory=dict)


@record
class PieceFact:
    """A part of a model that can be a pipeline stage by itself.

    parameters: names; a tied one is in each piece that uses it. output_numel: elements that it hands to the next piece, per
    sample. autocast: whether they are in autocast's dtype under autocast. activations: as those of the model, of which they
    are a part. batch: of those without recomputation, by kind, what is of the batch
    itself, of which micro-batches are views.
    """

    parameters: tuple[str, ...]
    output_numel: int
    forward_flops_per_sample: int
    autocast: bool = False
    activations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)


@record
class ModelFacts:
    """A model as the planner needs it.

    parameters: in registration order, as ``module.named_parameters()`` lists them.
    ready_order: indices into ``parameters`` in the order in which backward makes their gradients ready.
    ready_order_autocast: the same under autocast, which puts each weight before its bias; None: not known.
    forward_flops_per_sample: 2 FLOP per multiply-add; training = 3 x forward.
    activations: bytes a sample that autograd keeps from the forward pass by kind, for each mode of recomputation that saves
        something (``none``: all of it); empty where the workload has no formula. recomputed_flops_per_sample: by mode.
    pieces: in the order of use, together the whole model; empty: it cannot be cut into stages.
    optimizer_bytes: state that the optimizer of a user's model keeps on one rank, measured; None: torch's optimizers.
    tensor_parallel: None where the workload declares none.
    """

    parameters: tuple[ParameterFact, ...]
    ready_order: tuple[int, ...]
    forward_flops_per_sample: int
    ready_order_autocast: tuple[int, ...] | None = None
    activations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    recomputed_flops_per_sample: Mapping[str, int] = field(default_factory=dict)
    pieces: tuple[PieceFact, ...] = ()
    optimizer_bytes: int | None = None
    tensor_parallel: ParallelPlan | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        """Paths of the modules that the model is naturally cut into (``blocks.3``): the members of its lists of modules."""
        parts = [parameter.name.split(".")[:-1] for parameter in self.parameters]
        at = [next((i for i, part in enumerate(path) if part.isdigit()), None) for path in parts]
        return tuple(dict.fromkeys(".".join(p[: i + 1]) for p, i in zip(parts, at, strict=True) if i is not None))

    @property
    def num_parameters(self) -> int:
        return sum(p.numel for p in self.parameters)

    @property
    def gradient_bytes(self) -> int:
        return sum(p.size_bytes for p in self.parameters)

    @property
    def train_flops_per_sample(self) -> int:
        return 3 * self.forward_flops_per_sample


@record
class CommOp:
    """One collective call that a strategy makes in an optimizer step.

    op: as in ``collectives/``, or ``send``, ``recv``. numel, dtype: of the whole buffer: the output of an all_gather, the
    input of any other; size_bytes is the payload S in the nccl-tests sense.
    phase: ``forward``, ``backward`` (it may overlap with backward), ``after_backward`` (it cannot), ``optimizer``.
    group: the mesh dimension whose ranks make it (``dp``: all of the default mesh; ``world``).
    blocking: on the critical path by construction, because the step waits for it at once.
    members: names of the parameters that it carries, or whose gradients (may be empty).
    module: path of the module whose activations it carries; empty for parameters and gradients.
    """

    op: str
    numel: int
    dtype: str
    phase: str
    members: tuple[str, ...] = ()
    group: str = "dp"
    blocking: bool = False
    module: str = ""

    @property
    def size_bytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]


@record
class MemoryPlan:
    """Bytes that one rank holds for the training state and, at the end of a forward pass, for the backward pass.

    gathered_bytes: of the communication's, whole parameters of a sharded model from the end of the forward pass to backward.
    activations: by kind; None where there is no formula.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    communication_bytes: int
    gathered_bytes: int = 0
    activations: Mapping[str, int] | None = None

    @property
    def total_bytes(self) -> int:
        """The training state, without activations."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.communication_bytes


@record
class Setting:
    """Where a cell would run: what a strategy or workload needs to know to accept or refuse it."""

    device: str  # cpu | cuda
    backend: str  # gloo | nccl
    world_size: int
    precision: str
    optimizer: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    momentum: float = 0.0  # of sgd: decides whether it keeps a buffer per parameter
    accumulation: int = 1
    micro_batch: int = 1  # samples of a data shard in a micro-step: activations travel in some strategies
    warmup_steps: int | None = None  # None: found by measurement
    activation_checkpointing: str = "none"
    clip: bool = False  # whether the gradients' norm is clipped

    def size(self, dimension: str) -> int:
        """Ranks along a mesh dimension, 1 where there is none; ``world``: all ranks."""
        return mesh.size(self.mesh, self.world_size, dimension)


OWN_INPUT = "own"
"""The kind of input of a user's model: whatever its own batches hold."""


@record
class InputNeeds:
    """What a workload eats. kind: ``features`` (float vector, class), ``tokens`` (ids, class) or ``lm`` (ids, next ids),
    ``own`` (batches of a user's model)."""

    kind: str
    num_features: int | None = None
    num_classes: int | None = None
    seq_len: int | None = None
    vocab_size: int | None = None


@record
class MeasuredModel:
    """A user's model as the probe found it, or why it cannot be trained.

    facts: None when ``error`` (what, why, fix) says why. digest: of the source of its module and of the user's modules that
    it imports. optimizer: whether it brings one.
    """

    facts: ModelFacts | None = None
    digest: str = ""
    optimizer: bool = False
    error: tuple[str, str | None, str | None] | None = None


@record
class ModelQuestion:
    """One variant of a user's model to measure: arguments of its function, how it is fed, how it computes."""

    model: Mapping[str, object]
    dataset_options: Mapping[str, object]
    precision: str
    optimizer: str


@record
class ModelQuestions:
    """What ``python -m stepscope.rank --measure`` reads."""

    workload: str
    device: str
    questions: tuple[ModelQuestion, ...]


@record
class MeasuredModels:
    """Its answers, in the order of the questions."""

    models: tuple[MeasuredModel, ...]
