"""What a built workload hands to the train loop, the losses, and the Transformer block that two workloads share.

From ``python:MODULE:FUNCTION`` to a task: what the user's function returns, in the terms of the train loop.

The function returns an ``nn.Module``; or a mapping, an object or a tuple with ``module`` and, where the defaults do not do,
``batch(size, generator) -> (inputs, targets)``, ``loss(outputs, targets)`` and ``optimizer(parameters)``. ``inputs`` is a
tensor, a tuple of arguments or a mapping of keyword arguments. ``loss`` is the mean over the batch, as torch's losses are.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import did_you_mean
from stepscope.rank.precision import samples_in
from stepscope.records.plan import InputNeeds
from stepscope.workloads import Arguments, TransformerOptions, own_names

INIT_STD = 0.02
"""Standard deviation of initial Transformer weights (Radford et al. 2019, GPT-2)."""


@record
class Task:
    """A module and its loss. All functions accept an empty batch (first dimension 0).

    loss_sum(output, target): sum over the batch of each sample's loss; for sequences a sample's loss is its mean
        over positions. Shape [].
    correct(output, target): number of right answers (positions / seq_len for sequences), float tensor, shape []; None
        where answers are neither right nor wrong.
    forward(module, inputs): the module, or its wrapper, on the inputs of a batch.
    size(target): samples of a batch.
    batch(size, generator), optimizer(parameters): what a user's own model brings.
    """

    module: nn.Module
    loss_sum: Callable[[Any, Any], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None = None
    forward: Callable[[nn.Module, Any], Any] = lambda module, inputs: module(inputs)
    size: Callable[[Any], int] = len
    batch: Callable[[int, torch.Generator], Any] | None = None
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None


Build = Callable[[Any, InputNeeds, str], Task]
"""Options, resolved needs, loss (ce | mse | own) to a task."""


def class_task(module: nn.Module, loss: str) -> Task:
    """Return a task with one class per sample: output [n, classes], target [n] (class) or, with ``mse`` only, [n, classes]
    (vector).

    ce: cross-entropy of the outputs as logits. mse: mean over the outputs of the squared distance to the target
    vector, which for a class is its one-hot vector.
    """
    if loss not in _CLASS_LOSSES:
        raise ValueError(f"unknown loss {loss!r}")
    return Task(module=module, loss_sum=_CLASS_LOSSES[loss], correct=_correct_classes)


def sequence_task(module: nn.Module) -> Task:
    """Return a task with one class per position, cross-entropy: output [n, s, classes], target [n, s]."""
    return Task(module=module, loss_sum=_sequence_cross_entropy, correct=_correct_positions)


def _at_least_float32(output: Tensor) -> Tensor:
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(_at_least_float32(output), target.long(), reduction="sum")


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    if not target.is_floating_point():
        target = F.one_hot(target.long(), output.shape[1])
    output = _at_least_float32(output)
    return (output - target.to(output.dtype)).square().mean(dim=1).sum()


def _sequence_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    if not len(target):  # torch cannot flatten scores of no sample that are divided over ranks
        return _cross_entropy(output.transpose(1, 2), target)
    return _cross_entropy(output.flatten(0, 1), target.flatten()) / target.shape[1]


def _correct_classes(output: Tensor, target: Tensor) -> Tensor:
    if target.is_floating_point():
        target = target.argmax(dim=1)
    return (output.argmax(dim=1) == target).sum().float()


def _correct_positions(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(dim=2) == target).sum().float() / target.shape[1]


_CLASS_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ce": _cross_entropy, "mse": _squared_error}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a model that can be a pipeline stage: ``forward`` uses the parameters of ``modules``."""

    modules: tuple[nn.Module, ...]
    forward: Callable[[Tensor], Tensor]


class Cuttable(Protocol):
    """A model that is its pieces, one after the other: as many, in the same order, as its facts list."""

    def pieces(self) -> list[Piece]: ...


class LinearStack(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, layers: Iterable[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self._apply_layer(layer, x)
        return x

    def pieces(self) -> list[Piece]:
        return [Piece((layer,), partial(self._apply_layer, layer)) for layer in self.layers]

    def _apply_layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        first = layer is self.layers[0]
        return layer(x.to(cast(nn.Linear, layer).weight.dtype) if first else F.relu(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm Transformer block; [n, s, d_model] -> the same. Registration order is the order of use."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        dim_feedforward: int,
        num_layers: int,
        activation: Callable[[Tensor], Tensor],
        causal: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.attention_out = nn.Linear(d_model, d_model)
        self.norm_feedforward = nn.LayerNorm(d_model)
        self.feedforward_in = nn.Linear(d_model, dim_feedforward)
        self.feedforward_out = nn.Linear(dim_feedforward, d_model)
        self._head_width = d_model // n_heads
        self._activation = activation
        self._causal = causal
        self._dropout = dropout
        init_linear(self.query_key_value)
        init_linear(self.feedforward_in)
        # what adds to the residual stream is scaled down with the number of additions, so depth keeps its variance
        init_linear(self.attention_out, std=INIT_STD / (2 * num_layers) ** 0.5)
        init_linear(self.feedforward_out, std=INIT_STD / (2 * num_layers) ** 0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the block. mask: bool [n, 1, 1, s], True where a position may be attended to."""
        x = x + self._drop(self._attend(self.norm_attention(x), mask))
        hidden = self._activation(self.feedforward_in(self.norm_feedforward(x)))
        return x + self._drop(self.feedforward_out(hidden))

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        # Outputs lie head by head, so that a contiguous share of them is whole heads: as many as are on this rank.
        heads = self.query_key_value(x).unflatten(-1, (-1, 3, self._head_width))  # [n, s, heads, 3, d / heads]
        query, key, value = heads.permute(3, 0, 2, 1, 4).unbind(0)  # each [n, heads, s, d / heads]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self._causal)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self._dropout, self.training) if self._dropout else x


class Transformer(nn.Module):
    """Token and position tables, pre-norm blocks, a norm and a head: what decoder and encoder have in common."""

    def __init__(
        self,
        options: TransformerOptions,
        *,
        outputs: int,
        activation: Callable[[Tensor], Tensor],
        causal: bool,
        head_bias: bool,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocab_size, options.d_model)
        self.positions = nn.Embedding(options.max_seq_len, options.d_model)
        self.blocks = nn.ModuleList(
            Block(
                d_model=options.d_model,
                n_heads=options.n_heads,
                dim_feedforward=options.feedforward,
                num_layers=options.num_layers,
                activation=activation,
                causal=causal,
                dropout=options.dropout,
            )
            for _ in range(options.num_layers)
        )
        self.norm = nn.LayerNorm(options.d_model)
        self.head = nn.Linear(options.d_model, outputs, bias=head_bias)
        nn.init.normal_(self.tokens.weight, std=INIT_STD)
        nn.init.normal_(self.positions.weight, std=INIT_STD)
        init_linear(self.head)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]  # type: ignore[no-any-return]

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Turn ids [n, s] into normed states [n, s, d_model]. mask: see :class:`Block`."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)  # type: ignore[no-any-return]


def init_linear(layer: nn.Linear, *, std: float = INIT_STD) -> None:
    """Draw normal weights from torch's default generator, and set the bias to zero."""
    nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


PARTS = ("module", "batch", "loss", "optimizer")


def function_of(key: str) -> Callable[..., Any]:
    """Return the user's function. Errors in the user's own code pass through; UsageError for a module or function not
    there."""
    module_name, name = own_names(key)
    here = os.getcwd()  # noqa: PTH109
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if missing != module_name and not module_name.startswith(f"{missing}."):
            raise  # found, and it imports something that is not there
        raise UsageError(
            f"there is no Python module {missing!r} for {key}",
            why=f"the current folder, {here}, and the Python path were searched",
            fix="run stepscope in the folder that contains the module, or add that folder to PYTHONPATH",
        ) from None
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    near = did_you_mean(name, functions)
    raise UsageError(
        f"{module_name} has no function {name!r}"
        if function is None
        else f"{name!r} of {module_name} is not a function",
        why=f"the module is {getattr(module, '__file__', None) or 'built in'}",
        fix=f"did you mean {near!r}?" if near else "name a function that returns the model",
    )


def parts_of(key: str, returned: object) -> dict[str, Any]:
    """Return module, batch, loss and optimizer, those that there are, of what the user's function returned. Raises
    UsageError."""
    if isinstance(returned, nn.Module):
        return {"module": returned}
    if isinstance(returned, tuple):
        parts = dict(zip(PARTS, returned, strict=False))
        strange = ["a fifth value"] if len(returned) > len(PARTS) else []
    elif isinstance(returned, Mapping):
        parts = dict(returned)
        strange = [repr(name) for name in returned if name not in PARTS]
    else:
        parts, strange = {name: getattr(returned, name, None) for name in PARTS}, []
    parts = {name: value for name, value in parts.items() if value is not None}
    if not isinstance(parts.get("module"), nn.Module):
        shown = type(parts.get("module", returned)).__name__
        raise UsageError(
            f"{key} returned {shown}, not a torch module",
            fix="return an nn.Module, or a dict with module and optionally batch, loss and optimizer",
        )
    strange += [f"a {name} that is not a function" for name in PARTS[1:] if name in parts and not callable(parts[name])]
    if strange:
        raise UsageError(f"{key} returned {', '.join(strange)}", fix=f"the parts are {', '.join(PARTS)}")
    return parts


def own_build(key: str) -> Build:
    """Return what the registry of implementations gives for a user's model."""

    def build(options: Arguments, needs: InputNeeds, loss: str) -> Task:  # noqa: ARG001 - it brings its own
        parts = parts_of(key, function_of(key)(**options.as_dict()))
        mean = parts.get("loss", default_loss)
        return Task(
            module=parts["module"].train(),
            loss_sum=lambda output, target: mean(output, target) * samples_in(target),
            forward=forward,
            size=samples_in,
            batch=parts.get("batch"),
            optimizer=parts.get("optimizer"),
        )

    return build


def forward(module: nn.Module, inputs: Any) -> Any:
    """Call the module on a batch's inputs: a mapping is keyword arguments, a tuple or list is arguments."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def logits_of(output: Any) -> Tensor:
    """Return the scores in what a module returned: itself, or the ``logits`` of a Hugging Face output."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise UsageError(
            f"the module returned a {type(output).__name__}, and the model has no loss function",
            fix="return a loss(outputs, targets), the mean over the batch",
        )
    return logits


def default_loss(output: Any, target: Tensor) -> Tensor:
    """Return the output's own ``loss`` (Hugging Face), else cross-entropy with a class for each sample, position or pixel.

    Scores are [n, classes], [n, positions, classes] or [n, classes, height, width].
    """
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    logits = logits_of(output).float()
    return (
        F.cross_entropy(logits.flatten(0, 1), target.flatten())
        if logits.dim() == 3
        else F.cross_entropy(logits, target)
    )


def class_targets(logits: Tensor, draw: Callable[[int, tuple[int, ...]], Tensor]) -> Tensor:
    """Draw random classes that :func:`default_loss` takes with such scores. draw(classes, shape)."""
    shape = tuple(logits.shape)
    return draw(shape[-1], shape[:-1]) if len(shape) <= 3 else draw(shape[1], (shape[0], *shape[2:]))
