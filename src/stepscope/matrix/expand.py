"""From a matrix and a machine to the cells to run: device and batches resolved, ids given, specs attached.

Pure: nothing is started and nothing is written. The digest of the data comes from a function that the caller brings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import counted
from stepscope.matrix.catalog import FAMILIES, facts_of
from stepscope.matrix.checked import CellDraft, Matrix
from stepscope.matrix.keys import CellSettings
from stepscope.matrix.machine import Backend, Device, Machine, canonical_network, choose_device, network_misfit
from stepscope.predict.specs import memory_plan, setting_of
from stepscope.records import injection, mesh
from stepscope.records.cell import Cell, CellSpec
from stepscope.records.codec import to_builtins
from stepscope.records.comm import CommSpec
from stepscope.records.options import OptionsModel
from stepscope.records.plan import CommOp, MeasuredModel, MemoryPlan, ModelFacts, Setting
from stepscope.records.precision import refuse
from stepscope.strategies import Strategy, all_of

C = TypeVar("C", CellSpec, CommSpec)

HASH_DIGITS = 10


def identity(spec: Cell) -> dict[str, Any]:
    """Return the fields that make two cells the same cell: all of the spec but its id. Independent of the order of keys."""
    document: dict[str, Any] = to_builtins(spec)
    document.pop("cell_id")
    for added in ("facts", "mesh", "inject"):  # ids from before there were such fields stay
        if not document.get(added, True):
            document.pop(added)
    if document.get("activation_checkpointing") == "none":
        document.pop("activation_checkpointing")
    if document.get("model", {}).get("tied") is False:
        document["model"] = {name: value for name, value in document["model"].items() if name != "tied"}
    return document


def cell_id(spec: Cell) -> str:
    """Return ``WORKLOAD-STRATEGY-wWORLD-HASH``, or ``OP-DTYPE-wWORLD-HASH`` for a sweep.

    The hash covers the identity as canonical JSON (SHA-256, 40 bits).
    """
    canonical = json.dumps(identity(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]
    workload = "" if isinstance(spec, CommSpec) else spec.workload.removeprefix("python:").replace(":", ".")
    what = f"{spec.op}-{spec.dtype}" if isinstance(spec, CommSpec) else f"{workload}-{spec.strategy}"
    return f"{what}-w{spec.world_size}-{digest}"


def named(spec: C) -> C:
    """Return ``spec`` with its id filled in."""
    return dataclasses.replace(spec, cell_id=cell_id(spec))


ModelOf = Callable[[CellDraft], MeasuredModel | None]
"""A draft to its model as measured; None where the workload's spec has its sizes."""

DigestOf = Callable[[str, OptionsModel], str]
"""Dataset name and its options to the identity of its content. May raise DataError."""

TINY_FLOPS_PER_MICRO_STEP = 10**8
"""Below this many training FLOP per rank and micro-step, float16 on a CPU (about 1 GFLOP/s) still takes under 0.1 s,
so that such a cell can test the arithmetic. No timing of it means anything."""

CAP = "bucket_cap_mb"


@record
class PlannedCell:
    """A cell and what is known about it before it runs.

    facts, comm_plan, memory_plan: the model, the collectives and the memory of a step that its strategy declares (none when
        unsupported).
    sections: of the matrix that it is in. unsupported: why it cannot run here. skipped: why it need not run (it realises
        the same buckets as another cell).
    """

    spec: CellSpec
    facts: ModelFacts | None
    comm_plan: tuple[CommOp, ...]
    memory_plan: MemoryPlan | None = None
    unsupported: str | None = None
    skipped: str | None = None
    sections: tuple[str, ...] = ()

    @property
    def runnable(self) -> bool:
        return self.unsupported is None and self.skipped is None


def expand(
    matrix: Matrix,
    *,
    machine: Machine,
    digest_of: DigestOf,
    model_of: ModelOf = lambda _: None,
) -> tuple[PlannedCell, ...]:
    """Return the cells of ``matrix`` on ``machine``: one-rank cells first, otherwise in file order; equal cells counted
    once.

    Raises MissingError when the matrix asks for a device or backend that is not there, DataError from ``digest_of``.
    """
    device, backend = choose_device(matrix.launch, machine)
    planned: dict[str, PlannedCell] = {}
    for draft in matrix.cells:
        digest = digest_of(draft.settings.dataset, draft.dataset_options)
        model = model_of(draft)
        spec = resolve(draft, matrix, device=device, backend=backend, digest=digest, model=model)
        if spec.cell_id not in planned:
            planned[spec.cell_id] = (
                PlannedCell(spec=spec, facts=None, comm_plan=(), unsupported=error_of(model).line)
                if model and model.error
                else _planned_cell(spec, draft, matrix, machine)
            )
        planned_cell = planned[spec.cell_id]
        planned[spec.cell_id] = replace(
            planned_cell, sections=tuple(dict.fromkeys((*planned_cell.sections, *draft.sections)))
        )
    cells = sorted(planned.values(), key=lambda cell: cell.spec.world_size > 1)  # stable
    return _buckets_once(cells) if matrix.equal_buckets == "once" else tuple(cells)


def error_of(model: MeasuredModel) -> UsageError:
    """Say why the model cannot be trained."""
    what, why, fix = model.error or ("", None, None)
    return UsageError(what, why=why, fix=fix)


def resolve(
    draft: CellDraft,
    matrix: Matrix,
    *,
    device: Device,
    backend: Backend,
    digest: str,
    model: MeasuredModel | None = None,
) -> CellSpec:
    """Return the full spec of a cell, with its id. A model that brings no optimizer is trained with SGD."""
    s = draft.settings
    own = model is not None and not model.optimizer and s.optimizer == "own"
    settings = {name: getattr(s, name) for name in CellSettings.model_fields if name in _OF_CELL}
    resolved: dict[str, Any] = {
        "cell_id": "", "model": _plain_options(draft.model), "dataset_options": _plain_options(draft.dataset_options),
        "strategy_options": _plain_options(draft.strategy_options), "data_digest": digest if model is None else model.digest,
        "micro_batch": draft.micro_batch, "global_batch": draft.global_batch,
        "batch_rule": "micro_batch" if s.micro_batch is not None else "global_batch",
        "optimizer": "sgd" if own else s.optimizer, "loss": draft.loss, "device": device, "backend": backend,
        "threads_per_rank": matrix.launch.threads_per_rank, "env": dict(draft.env),
        "network": canonical_network(s.network), "mesh": mesh.canonical(s.mesh or {}),
        "inject": injection.canonical(s.inject), "facts": None if model is None else model.facts,
    }  # fmt: skip
    return named(CellSpec(**{**settings, **resolved}))


_OF_CELL = frozenset(field.name for field in dataclasses.fields(CellSpec))


def _plain_options(options: OptionsModel) -> dict[str, Any]:
    """Return options as they come back from a file: tuples are lists."""
    plain: dict[str, Any] = json.loads(json.dumps(options.as_dict()))
    return plain


def _planned_cell(spec: CellSpec, draft: CellDraft, matrix: Matrix, machine: Machine) -> PlannedCell:
    """Return a cell with its plan, or why it cannot run here."""
    facts = spec.facts or facts_of(
        spec.workload, draft.model, spec.dataset, draft.dataset_options, precision=spec.precision
    )
    strategy = FAMILIES["strategy_options"].load(spec.strategy)
    setting = setting_of(spec, warmup_steps=matrix.measure.warmup_steps)
    reason = all_of(
        _refused_by_machine(spec, machine, oversubscribe=matrix.launch.oversubscribe),
        _refused_by_precision(spec, facts, machine),
        _refused_by_torch(spec, strategy, machine),
        _refused_faults(spec, strategy),
        _refused_by_strategy(spec, strategy, facts, setting, draft.strategy_options),
    )
    plan = strategy.comm_plan(facts, setting, draft.strategy_options) if reason is None else ()
    memory = memory_plan(strategy, facts, setting, draft.strategy_options) if reason is None else None
    return PlannedCell(spec=spec, facts=facts, comm_plan=plan, memory_plan=memory, unsupported=reason)


def _refused_by_machine(spec: CellSpec, machine: Machine, *, oversubscribe: bool) -> str | None:
    """Say why the machine cannot run a cell; None: it can."""
    world = spec.world_size
    if (reason := network_misfit(spec, machine)) or machine.joined_world_size is not None:
        return reason  # ranks that exist are perhaps on several machines: each checks its own device
    if spec.device == "cuda" and world > machine.num_gpus:
        need = "needs" if world == 1 else "need"
        where = "this machine has" if machine.slots is None else "the hosts have"
        return f"{counted(world, 'rank')} {need} {counted(world, 'GPU')}, {where} {machine.num_gpus}"
    if spec.device == "cpu" and not oversubscribe and world > max(2, machine.usable_cores):
        return (
            f"{counted(world, 'rank')} on {counted(machine.usable_cores, 'usable core')} would time the scheduler "
            "(launch.oversubscribe is false)"
        )
    return None


def _refused_by_precision(spec: CellSpec, facts: ModelFacts, machine: Machine) -> str | None:
    """Say why a precision is refused; None: it is not."""
    flops = facts.train_flops_per_sample * spec.micro_batch
    return refuse(
        spec.precision,
        device=spec.device,
        compute_capability=machine.compute_capability,
        tiny=flops <= TINY_FLOPS_PER_MICRO_STEP,
    )


def _refused_by_torch(spec: CellSpec, strategy: Strategy, machine: Machine) -> str | None:
    here, needed = machine.torch_version, strategy.torch
    if here is None or needed is None or _release_numbers(here) >= _release_numbers(needed):
        return None
    return f"{spec.strategy} needs torch {needed} or later, and torch {here} is installed"


def _refused_faults(spec: CellSpec, strategy: Strategy) -> str | None:
    """Say why planted faults are refused: a share is of a rank's own computation, which a sharded strategy's timings hold
    together with its waiting."""
    shares = [a for a in injection.injection_of(spec.inject).amounts if a.share is not None]
    if not shares or not strategy.sharded or spec.strategy == "pipeline":
        return None
    return (
        f"inject {spec.inject}: {spec.strategy} computes and waits in the same phases, so that {shares[0]} of its "
        "computation is unknown: write a time, such as 5ms"
    )


def _release_numbers(version: str) -> tuple[int, ...]:
    """Return (2, 13) of ``2.13.0+cpu``."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _refused_by_strategy(
    spec: CellSpec, strategy: Strategy, facts: ModelFacts, setting: Setting, options: OptionsModel
) -> str | None:
    """Say why a strategy cannot run this model on these ranks; None: it can."""
    if not strategy.collective and spec.world_size > 1:
        return f"{spec.strategy} runs on one rank, not {spec.world_size}"
    if strange := [name for name in spec.mesh if name not in strategy.dimensions]:
        takes = ", ".join(name for name in mesh.DIMENSIONS if name in strategy.dimensions)
        return f"{spec.strategy} has no mesh dimension {strange[0]}: it takes {takes}"
    return all_of(
        f"{spec.strategy} cannot evaluate the test set after an epoch: give steps in place of epochs"
        if spec.epochs is not None and not strategy.evaluates
        else None,
        _refused_recomputation(spec, facts),
        strategy.requires(facts, setting, options),
    )


def _refused_recomputation(spec: CellSpec, facts: ModelFacts) -> str | None:
    """Say why activations cannot be recomputed so; None: they can."""
    mode = spec.activation_checkpointing
    if mode not in ("none", *facts.activations):
        return (
            f"activation_checkpointing {mode} is not available for {spec.workload}, which does not say what it would keep: "
            "gpt does"
        )
    if mode != "none" and "tp" in spec.mesh:
        return (
            "activation_checkpointing would repeat collectives of divided blocks that no plan lists: use none with tp"
        )
    return None


def _buckets_once(cells: Iterable[PlannedCell]) -> tuple[PlannedCell, ...]:
    """Keep the first of cells that differ in bucket_cap_mb alone and realise the same buckets; the others say so."""
    first: dict[str, PlannedCell] = {}
    kept = []
    for cell in cells:
        if not cell.runnable or CAP not in cell.spec.strategy_options or not cell.comm_plan:
            kept.append(cell)
            continue
        same = first.setdefault(_realised_key(cell), cell)
        if same is cell:
            kept.append(cell)
        else:
            kept.append(replace(cell, skipped=f"same buckets as {same.spec.cell_id}"))
    return tuple(kept)


def _realised_key(cell: PlannedCell) -> str:
    """Return a key that is equal for cells that do the same thing: the spec without the cap, with the buckets in its
    place."""
    options = {k: v for k, v in cell.spec.strategy_options.items() if k != CAP}
    alike = named(replace(cell.spec, cell_id="", strategy_options=options))
    return f"{alike.cell_id} {[(op.op, op.numel, op.dtype, op.members) for op in cell.comm_plan]}"
