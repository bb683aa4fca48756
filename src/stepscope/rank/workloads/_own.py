"""From ``python:MODULE:FUNCTION`` to a task: what the user's function returns, in the terms of the train loop.

The function returns an ``nn.Module``; or a mapping, an object or a tuple with ``module`` and, where the defaults do not do,
``batch(size, generator) -> (inputs, targets)``, ``loss(outputs, targets)`` and ``optimizer(parameters)``. ``inputs`` is a
tensor, a tuple of arguments or a mapping of keyword arguments. ``loss`` is the mean over the batch, as torch's losses are.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stepscope.core.errors import UsageError
from stepscope.core.words import did_you_mean
from stepscope.rank.nest import samples_in
from stepscope.rank.workloads._common import Build, Task
from stepscope.records.plan import InputNeeds
from stepscope.workloads import Arguments, own_names

PARTS = ("module", "batch", "loss", "optimizer")


def function_of(key: str) -> Callable[..., Any]:
    """The user's function. Errors in the user's own code pass through; UsageError for a module or function not there."""
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
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    near = did_you_mean(name, functions)
    raise UsageError(
        f"{module_name} has no function {name!r}" if found is None else f"{name!r} of {module_name} is not a function",
        why=f"the module is {getattr(module, '__file__', None) or 'built in'}",
        fix=f"did you mean {near!r}?" if near else "name a function that returns the model",
    )


def parts_of(key: str, returned: object) -> dict[str, Any]:
    """module, batch, loss and optimizer, those that there are, of what the user's function returned. Raises UsageError."""
    if isinstance(returned, nn.Module):
        return {"module": returned}
    if isinstance(returned, tuple):
        found = dict(zip(PARTS, returned, strict=False))
        strange = ["a fifth value"] if len(returned) > len(PARTS) else []
    elif isinstance(returned, Mapping):
        found = dict(returned)
        strange = [repr(name) for name in returned if name not in PARTS]
    else:
        found, strange = {name: getattr(returned, name, None) for name in PARTS}, []
    found = {name: value for name, value in found.items() if value is not None}
    if not isinstance(found.get("module"), nn.Module):
        shown = type(found.get("module", returned)).__name__
        raise UsageError(
            f"{key} returned {shown}, not a torch module",
            fix="return an nn.Module, or a dict with module and optionally batch, loss and optimizer",
        )
    strange += [f"a {name} that is not a function" for name in PARTS[1:] if name in found and not callable(found[name])]
    if strange:
        raise UsageError(f"{key} returned {', '.join(strange)}", fix=f"the parts are {', '.join(PARTS)}")
    return found


def own_build(key: str) -> Build:
    """What the registry of implementations gives for a user's model."""

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
    """The module on a batch's inputs: a mapping is keyword arguments, a tuple or list is arguments."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def logits_of(output: Any) -> Tensor:
    """The scores in what a module returned: itself, or the ``logits`` of a Hugging Face output."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise UsageError(
            f"the module returned a {type(output).__name__}, and the model has no loss function",
            fix="return a loss(outputs, targets), the mean over the batch",
        )
    return found


def default_loss(output: Any, target: Tensor) -> Tensor:
    """The output's own ``loss`` (Hugging Face), else cross-entropy with a class for each sample, position or pixel.

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
    """Random classes that :func:`default_loss` takes with such scores. draw(classes, shape)."""
    shape = tuple(logits.shape)
    return draw(shape[-1], shape[:-1]) if len(shape) <= 3 else draw(shape[1], (shape[0], *shape[2:]))
