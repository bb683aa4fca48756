"""What every workload declares, and the layers that specs are put together from.

A spec lists its model's layers in the order of use (and of registration: the implementations keep the two equal); names and
shapes of the parameters, the order in which backward makes them ready and the forward FLOP all follow from that list.

``python:MODULE:FUNCTION``: the spec of a user's own model, whose sizes and FLOP are measured (rank/own).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, NoReturn

from pydantic import ConfigDict, Field, model_validator

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry
from stepscope.records.options import OptionsModel
from stepscope.records.plan import (
    DTYPE_BYTES,
    OWN_INPUT,
    CutModule,
    InputNeeds,
    ModelFacts,
    ParallelPlan,
    ParameterFact,
    PieceFact,
)


@record
class Workload:
    """A model family's spec.

    needs(options): what its input looks like when the dataset leaves it open (features, classes, sequence, vocabulary).
    facts(options, data, dtype): exact parameters and FLOP for inputs of shape ``data`` and parameters of ``dtype``.
    label(options): short name of this very model for tables, such as ``mlp small``.
    losses: ``ce`` and/or ``mse``, the default first.
    """

    key: str
    summary: str
    options: type[OptionsModel]
    needs: Callable[[Any], InputNeeds]
    facts: Callable[[Any, InputNeeds, str], ModelFacts]
    label: Callable[[Any], str]
    losses: tuple[str, ...] = ("ce",)


@record
class Layer:
    """The parameters of one layer, and what it costs.

    name: of its module. parameters: (name, shape) in registration order.
    ready, ready_autocast: positions in ``parameters`` in the order in which backward makes the gradients ready.
    flops: forward FLOP per sample, 2 per multiply-add of its matrix products; additions of biases, activations,
        norms and table look-ups are not counted.
    positions: vectors per sample that it is applied to.
    cut: how tensor parallelism divides it (styles of :class:`CutModule`); None: not at all.
    tied: the parameter of another layer that it uses as its weight.
    """

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    ready: tuple[int, ...]
    ready_autocast: tuple[int, ...]
    flops: int = 0
    positions: int = 1
    cut: str | None = None
    tied: str | None = None

    @property
    def uses(self) -> tuple[str, ...]:
        """Names of its parameters, its own and the tied one."""
        return (*(name for name, _ in self.parameters), *((self.tied,) if self.tied else ()))


def linear(
    name: str,
    inputs: int,
    outputs: int,
    *,
    bias: bool = True,
    positions: int = 1,
    cut: str | None = None,
    tied: str | None = None,
) -> Layer:
    """``nn.Linear`` applied to ``positions`` vectors per sample. tied: without a bias, and with another's weight."""
    flops = 2 * inputs * outputs * positions
    if tied is not None:
        return Layer(
            name=name, parameters=(), ready=(), ready_autocast=(), flops=flops, positions=positions, cut=cut, tied=tied
        )
    weight = (f"{name}.weight", (outputs, inputs))
    # Addmm hands the bias its gradient at once and the weight through one more node, its transpose. Under autocast
    # both pass a cast first, and the weight's is the later one on the tape, so backward reaches it earlier.
    return Layer(
        name=name,
        parameters=(weight, (f"{name}.bias", (outputs,))) if bias else (weight,),
        ready=(1, 0) if bias else (0,),
        ready_autocast=(0, 1) if bias else (0,),
        flops=flops,
        positions=positions,
        cut=cut,
    )


def norm(name: str, width: int, *, positions: int = 1, cut: str | None = None) -> Layer:
    """``nn.LayerNorm`` over ``width`` values."""
    parameters = ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))
    return Layer(name=name, parameters=parameters, ready=(0, 1), ready_autocast=(0, 1), positions=positions, cut=cut)


def table(name: str, rows: int, width: int, *, positions: int = 1, cut: str | None = None) -> Layer:
    """``nn.Embedding``: a look-up table of ``rows`` vectors."""
    parameters = ((f"{name}.weight", (rows, width)),)
    return Layer(name=name, parameters=parameters, ready=(0,), ready_autocast=(0,), positions=positions, cut=cut)


def in_pairs(layers: int) -> list[str | None]:
    """Return how tensor parallelism cuts linear layers in a row: in pairs, so that nothing travels inside one."""
    return ["column", "row"] * (layers // 2) + [None] * (layers % 2)


def piece(
    layers: Sequence[Layer],
    output_numel: int,
    *,
    kept: Mapping[str, Mapping[str, int]],
    extra_flops: int = 0,
    autocast: bool = False,
    batch: Mapping[str, int] | None = None,
) -> PieceFact:
    """``layers`` as a part of a model that can be a pipeline stage. kept: as of :func:`model_facts`, of this part; batch: by
    kind, elements of that which are of the batch itself."""
    return PieceFact(
        parameters=tuple(name for layer in layers for name in layer.uses),
        output_numel=output_numel,
        forward_flops_per_sample=sum(layer.flops for layer in layers) + extra_flops,
        autocast=autocast,
        activations=kept,
        batch=batch or {},
    )


def model_facts(
    layers: Iterable[Layer],
    *,
    dtype: str,
    extra_flops: int = 0,
    heads: int | None = None,
    split_at: str | None = None,
    pieces: Iterable[PieceFact] = (),
    kept: Mapping[str, Mapping[str, int]] | None = None,
    scores: int = 0,
    recomputed: Mapping[str, int] | None = None,
    divided: Mapping[str, int] | None = None,
) -> ModelFacts:
    """Facts of a model that uses ``layers`` one after the other.

    extra_flops: forward FLOP per sample of matrix products without parameters (attention). heads, split_at: of
    :class:`ParallelPlan`. pieces: it can be cut into, elements in place of bytes of activations, without the scores.
    kept: mode of recomputation -> kind -> elements per sample that autograd keeps, beside the ``scores`` of the loss,
    in float32 at least. recomputed: mode -> forward FLOP per sample that are done again. divided: elements per sample of
    each kind that tensor parallelism divides.
    """
    parameters: list[ParameterFact] = []
    ready: list[int] = []
    ready_autocast: list[int] = []
    flops = extra_flops
    cuts: list[CutModule] = []
    for layer in layers:
        first = len(parameters)
        parameters += [ParameterFact(name=n, numel=prod(s), dtype=dtype, shape=s) for n, s in layer.parameters]
        # built front to back, used back to front
        ready[:0] = [first + i for i in layer.ready]
        ready_autocast[:0] = [first + i for i in layer.ready_autocast]
        flops += layer.flops
        if layer.cut is not None:
            cuts.append(CutModule(name=layer.name, style=layer.cut, positions=layer.positions, tied=layer.tied))
    size = DTYPE_BYTES[dtype]

    def in_bytes(
        kept: Mapping[str, Mapping[str, int]], end: Mapping[str, int] | None = None
    ) -> dict[str, dict[str, int]]:
        return {mode: {kind: n * size for kind, n in kinds.items()} | dict(end or {}) for mode, kinds in kept.items()}

    last = {"scores": scores * max(4, size)}
    whole = list(pieces)
    parts = [
        replace(
            p,
            activations=in_bytes(p.activations, last if number == len(whole) else None),
            batch={kind: n * size for kind, n in p.batch.items()},
        )
        for number, p in enumerate(whole, 1)
    ]
    return ModelFacts(
        parameters=tuple(parameters),
        ready_order=tuple(ready),
        ready_order_autocast=tuple(ready_autocast),
        forward_flops_per_sample=flops,
        tensor_parallel=ParallelPlan(
            modules=tuple(cuts),
            heads=heads,
            split_at=split_at,
            divided_activations={kind: n * size for kind, n in (divided or {}).items()},
        )
        if cuts
        else None,
        pieces=tuple(parts),
        activations=in_bytes(kept or {}, last),
        recomputed_flops_per_sample=recomputed or {},
    )


class TransformerOptions(OptionsModel):
    """Options of a model of token ids; a family states its own defaults."""

    d_model: int = Field(default=128, ge=1, description="width of a token's vector")
    n_heads: int = Field(default=4, ge=1, description="attention heads; divides d_model")
    num_layers: int = Field(default=2, ge=1, description="Transformer blocks")
    dim_feedforward: int | None = Field(default=None, ge=1, description="hidden width of a block's MLP; 4 x d_model")
    max_seq_len: int = Field(default=128, ge=1, description="tokens per sample")
    vocab_size: int = Field(default=8192, ge=4, description="rows of the token table")
    dropout: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="above 0, runs on different numbers of ranks are not comparable"
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> TransformerOptions:
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}")
        return self

    @property
    def feedforward(self) -> int:
        """Hidden width of a block's MLP."""
        return self.dim_feedforward or 4 * self.d_model


def transformer_facts(options: TransformerOptions, head: Layer, *, dtype: str, causal: bool) -> ModelFacts:
    """Facts of token and position tables, pre-norm blocks, a norm and ``head``, on ``max_seq_len`` positions a sample.

    Where the head takes every position by itself, tensor parallelism may divide the positions, and the model can be cut
    between blocks; the tables go with the first one, norm and head with the last.
    """
    width, positions = options.d_model, options.max_seq_len
    everywhere = head.positions == positions
    normed = partial(norm, width=width, positions=positions, cut="norm" if everywhere else None)
    layers = [table("tokens", options.vocab_size, width, positions=positions, cut="table")]
    layers.append(table("positions", positions, width))
    borders = []
    for i in range(options.num_layers):
        at = f"blocks.{i}"
        layers += [
            normed(f"{at}.norm_attention"),
            linear(f"{at}.query_key_value", width, 3 * width, positions=positions, cut="column"),
            linear(f"{at}.attention_out", width, width, positions=positions, cut="row"),
            normed(f"{at}.norm_feedforward"),
            linear(f"{at}.feedforward_in", width, options.feedforward, positions=positions, cut="column"),
            linear(f"{at}.feedforward_out", options.feedforward, width, positions=positions, cut="row"),
        ]
        borders.append(len(layers))
    layers += [normed("norm"), head]
    borders[-1] = len(layers)
    attention = attention_flops(num_layers=1, d_model=width, seq_len=positions, causal=causal)
    ends = _kept_at_the_end(options)
    pieces = [
        piece(
            layers[start:end],
            positions * width,
            kept={mode: _kept_elements(options, mode) + (ends if end == len(layers) else Counter()) for mode in MODES},
            extra_flops=attention,
        )
        for start, end in pairwise([0, *borders])
    ]
    return model_facts(
        layers,
        dtype=dtype,
        extra_flops=options.num_layers * attention,
        heads=options.n_heads,
        split_at="blocks.0" if everywhere else None,
        pieces=pieces if everywhere else (),
        kept={mode: _multiplied(_kept_elements(options, mode), options.num_layers) + ends for mode in MODES}
        if causal
        else None,
        divided=_divided_counts(options) if causal else None,
        scores=options.vocab_size * positions,
        recomputed=_recomputed_flops(options, block_flops=sum(layer.flops for layer in layers[2:7]) + attention),
    )


MODES = ("none", "selective", "full")


def _kept_elements(options: TransformerOptions, mode: str) -> Counter[str]:
    """Count what autograd keeps of a block with GELU, elements per sample, by kind, with this mode of recomputation.

    A norm keeps its input and two statistics a position, attention its three inputs and a sum for each head and position
    (its output is the input of the next layer). ``full`` keeps the inputs of blocks, ``selective`` also what the matrix
    products and attention gave.
    """
    width, hidden = options.d_model, options.feedforward
    kinds = {
        "none": {
            "inputs of norms": 2 * (width + 2),
            "inputs of linear layers": 3 * width + hidden,
            "attention": 3 * width + options.n_heads,
            "activation functions": hidden,
        },
        "selective": {
            "inputs of blocks": width,
            "outputs of matrix products": 5 * width + hidden,
            "attention": width + options.n_heads,
        },
        "full": {"inputs of blocks": width},
    }
    return _multiplied(Counter(kinds[mode]), options.max_seq_len)


def _kept_at_the_end(options: TransformerOptions) -> Counter[str]:
    """Count what autograd keeps of the last norm and the head, elements per sample, by kind."""
    width = options.d_model
    return _multiplied(Counter({"inputs of norms": width + 2, "inputs of linear layers": width}), options.max_seq_len)


def _multiplied(kinds: Counter[str], factor: int) -> Counter[str]:
    return Counter({kind: n * factor for kind, n in kinds.items()})


def _divided_counts(options: TransformerOptions) -> dict[str, int]:
    """Count what ranks of a tensor-parallel group keep shares of: heads, the hidden layer, and what goes into the layers
    whose inputs are divided. Elements per sample."""
    width, hidden, all_positions = options.d_model, options.feedforward, options.num_layers * options.max_seq_len
    return {
        "inputs of linear layers": (width + hidden) * all_positions,
        "attention": (3 * width + options.n_heads) * all_positions,
        "activation functions": hidden * all_positions,
    }


def _recomputed_flops(options: TransformerOptions, *, block_flops: int) -> dict[str, int]:
    """Count forward FLOP per sample that are done again; in the selective mode, none that are counted at all.

    block_flops: of a block without its last layer: torch stops as soon as it has what backward needs.
    """
    return {"selective": 0, "full": options.num_layers * block_flops}


def attention_flops(*, num_layers: int, d_model: int, seq_len: int, causal: bool) -> int:
    """Forward FLOP per sample of QK^T and PV: 4 S^2 H per layer, half of it when causal.

    Padding is counted like real tokens, the head count does not matter. Causal: exactly one half, the usual
    convention; the masked triangle has (S + 1) / 2S of the entries.
    """
    full = 4 * seq_len * seq_len * d_model
    return num_layers * (full // 2 if causal else full)


PREFIX = "python:"
IMPLIED = {"dataset": "batches", "optimizer": "own"}
"""Cell keys that such a workload fills where the matrix leaves them open."""

_KEY = re.compile(r"python:([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


class Arguments(OptionsModel):
    """Keyword arguments of the user's function, whatever they are called."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


def own_names(key: str) -> tuple[str, str]:
    """Split ``python:package.module:build`` into (module, function). Raises UsageError."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise UsageError(
            f"{key.removeprefix(PREFIX)!r} does not name a function of a module",
            fix="write MODULE:FUNCTION, such as models:build",
        )
    return match[1], match[2]


def own_workload(key: str) -> Workload:
    """The spec of a user's model. Raises UsageError for a malformed key."""
    module, function = own_names(key)

    def facts(options: Arguments, data: InputNeeds, dtype: str) -> NoReturn:  # noqa: ARG001
        raise UsageError(f"the sizes of {key} are unknown here: they are measured when the plan is made")

    return Workload(
        key=key,
        summary=f"{function}() of {module}",
        options=Arguments,
        needs=lambda _: InputNeeds(kind=OWN_INPUT),
        facts=facts,
        label=lambda _: f"{module.rpartition('.')[2]}.{function}",
        losses=("own",),
    )


class Workloads(Registry[Workload]):
    """The registered workloads, and those of every function that a ``python:`` key names."""

    __slots__ = ()

    def load(self, key: str) -> Workload:
        return own_workload(key) if key.startswith(PREFIX) else Registry.load(self, key)
