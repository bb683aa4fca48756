"""``python -m stepscope.rank --measure QUESTIONS ANSWERS``: a user's model built and trained for one step, in one process.

Says its parameters, the order in which gradients become ready, FLOP, and what stands in the way, before any rank starts.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import stepscope
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.words import counted
from stepscope.datasets.batches import Options
from stepscope.rank.loading import maker
from stepscope.rank.mesh import reset
from stepscope.rank.precision import Numerics, mapped
from stepscope.rank.workloads import REGISTRY as MODULES
from stepscope.rank.workloads import Task
from stepscope.records import codec
from stepscope.records.plan import (
    DTYPE_BYTES,
    OWN_INPUT,
    InputNeeds,
    MeasuredModel,
    MeasuredModels,
    ModelFacts,
    ModelQuestion,
    ModelQuestions,
    ParameterFact,
)  # fmt: skip
from stepscope.store.reader import read_bytes
from stepscope.store.writer import writing
from stepscope.workloads import Arguments, own_names

SAMPLES = 2
"""Samples of the measured step: the fewest that normalisation over the batch takes."""


def main(asked: Path, answers: Path) -> int:
    """Answer every question of the file; what is wrong with the user's model is an answer, too."""
    asking = codec.decode(read_bytes(asked), ModelQuestions, source=str(asked))
    device = torch.device("cuda", 0) if asking.device == "cuda" else torch.device("cpu")
    models = tuple(_measured_or_error(asking.workload, question, device) for question in asking.questions)
    with writing(answers):
        answers.write_bytes(codec.encode_document(codec.plain(MeasuredModels(models=models))))
    return 0


def _measured_or_error(workload: str, question: ModelQuestion, device: torch.device) -> MeasuredModel:
    try:
        return measure(workload, question, device)
    except StepscopeError as error:
        return MeasuredModel(error=(error.what, error.why, error.fix))


def measure(workload: str, question: ModelQuestion, device: torch.device) -> MeasuredModel:
    """Measure one variant of the model. Raises UsageError for whatever is wrong with it."""
    reset(device, seed=1, threads=torch.get_num_threads(), cudnn_benchmark=False)
    with _users_code(f"{workload} cannot be built"):
        build = MODULES.load(workload)
        task = build(Arguments.model_validate(dict(question.model)), InputNeeds(kind=OWN_INPUT), "own")
    numerics = Numerics(question.precision, device)
    try:
        module = numerics.prepare(task.module)
        with _users_code(f"no batch for {workload} can be made"):
            make = maker(task, Options.model_validate(dict(question.dataset_options)), numerics)
            inputs, targets = mapped(lambda t: t.to(device), make(SAMPLES, torch.Generator().manual_seed(1)))
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise UsageError(f"{workload} has no parameters to train", fix="check requires_grad of its parameters")
        with _users_code(f"{workload} cannot be trained on its batches"):
            order, flops = _one_step(task, numerics, (inputs, targets), trained)
        own = question.optimizer == "own" and task.optimizer is not None
        with _users_code(f"the optimizer of {workload} does not work"):
            state = _state_bytes(task, numerics, [p for _, p in trained]) if own else None
    finally:
        numerics.close()
    facts = ModelFacts(
        parameters=tuple(_parameter_fact(name, p) for name, p in trained),
        ready_order=order,
        forward_flops_per_sample=round(flops / SAMPLES),
        optimizer_bytes=state,
    )
    return MeasuredModel(facts=facts, digest=source_digest(workload), optimizer=own)


def _parameter_fact(name: str, parameter: nn.Parameter) -> ParameterFact:
    dtype = str(parameter.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise UsageError(f"parameter {name} is {dtype}", fix=f"stepscope reduces {', '.join(DTYPE_BYTES)}")
    return ParameterFact(name=name, numel=parameter.numel(), dtype=dtype, shape=tuple(parameter.shape))


def _one_step(
    task: Task, numerics: Numerics, batch: tuple[Any, Any], trained: list[tuple[str, nn.Parameter]]
) -> tuple[tuple[int, ...], int]:
    """Return (parameters in the order in which backward made them ready, FLOP of the forward pass)."""
    order: list[int] = []
    hooks = [
        p.register_post_accumulate_grad_hook(partial(_note_order, order, index))  # type: ignore[no-untyped-call]
        for index, (_, p) in enumerate(trained)
    ]
    x, y = numerics.inputs(*batch)
    with numerics.autocast():
        with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
            output = task.forward(task.module, x)
        loss: Any = task.loss_sum(output, y)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        shown = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UsageError(f"loss(outputs, targets) returned {shown}", fix="return one number that can be differentiated")
    numerics.backward(loss)
    for hook in hooks:
        hook.remove()
    if idle := [name for i, (name, _) in enumerate(trained) if i not in set(order)]:
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        raise UsageError(
            f"{counted(len(idle), 'parameter')} got no gradient: {', '.join(idle[:3])}{more}",
            why="every rank would wait for a gradient that never becomes ready",
            fix="use them in forward, or set requires_grad = False",
        )
    return tuple(order), int(counter.get_total_flops())


def _note_order(order: list[int], index: int, _: Tensor) -> None:
    order.append(index)


def _state_bytes(task: Task, numerics: Numerics, parameters: list[nn.Parameter]) -> int:
    """Count the bytes of the optimizer's tensors after a step; counters of one number are left out."""
    assert task.optimizer is not None
    optimizer: Any = task.optimizer(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"optimizer(parameters) returned a {type(optimizer).__name__}", fix="return a torch.optim.Optimizer"
        )
    numerics.step(optimizer)
    tensors = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor) and t.dim()]
    return sum(t.numel() * t.element_size() for t in tensors)


def _attention_flop(query: Any, key: Any, value: Any, *more: Any, out_val: Any = None, **named: Any) -> int:  # noqa: ARG001
    """Count the FLOP of QK^T and PV; half of it when causal, as in ``workloads._common.attention_flops``."""
    full: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    causal = named.get("is_causal", any(argument is True for argument in more[:3]))
    return full // 2 if causal else full


_ATTENTION = {
    getattr(torch.ops.aten, name): _attention_flop
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    )
    if hasattr(torch.ops.aten, name)
}  # fmt: skip


def source_digest(workload: str) -> str:
    """Return the digest of the module's file, and of every imported file below the current folder that belongs to no
    installed package."""
    here, module = Path.cwd().resolve(), own_names(workload)[0]
    installed = Path(sysconfig.get_paths()["purelib"]).resolve()
    digest = hashlib.sha256()
    for name, imported in sorted(sys.modules.items()):
        file = getattr(imported, "__file__", None)
        if file is None or name == "__main__" or name.partition(".")[0] == "stepscope":
            continue
        path = Path(file).resolve()
        ours = path.is_relative_to(here) and not path.is_relative_to(installed) and "site-packages" not in path.parts
        if (ours or name == module) and path.is_file():
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Guard the user's code: whatever it raises becomes a UsageError with the line that raised it."""
    try:
        yield
    except StepscopeError:
        raise
    except (Exception, SystemExit) as error:
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise UsageError(what, why=text, fix=_error_place(error)) from error


def _error_place(error: BaseException) -> str | None:
    """Return ``models.py:12, in cnn: return Net(3)``: the last line of the user's own, else the last line of all."""
    if isinstance(error, SyntaxError):
        return f"look at {error.filename}:{error.lineno}"
    ours = str(Path(stepscope.__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((ours, "<"))]
    here = os.getcwd()  # noqa: PTH109
    own = [f for f in frames if f.filename.startswith(here) and "site-packages" not in f.filename]
    if not frames:
        return None
    last = (own or frames)[-1]
    line = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    return f"look at {os.path.relpath(last.filename) if own else last.filename}:{last.lineno}, in {last.name}: {line}"
