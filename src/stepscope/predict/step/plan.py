"""Which layout is best: a search that drops what cannot be, cannot fit, or is beaten in every respect.

The best ones become a matrix file with which ``stepscope bench`` measures them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import grouped
from stepscope.predict.step.alternatives import cause_of
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Cluster, Layout, Recompute, errors, layout_text
from stepscope.predict.step.memory import stage_memory
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.stages import StepSetup, stages_of
from stepscope.predict.step.step import StepPrediction, predict_step

LONG_SEQUENCE = 16384
"""Tokens from which on context parallelism is looked at."""
EQUAL = 1.005
"""Ratio of two steps up to which they are the same."""
REFINED = 12
"""Best layouts whose pipelines are simulated in the end."""


@record
class UsualLayout:
    """A layout that somebody would try first. prediction: its best form, None where it cannot be; why: it loses."""

    name: str
    prediction: StepPrediction | None
    why: str


@record
class LayoutSearch:
    """What a search came to. best: layouts that fit, fastest first. priced: how many were; dropped: families of layouts
    without a price, as they cannot be or do not fit in their smallest form."""

    best: tuple[StepPrediction, ...]
    alternatives: tuple[UsualLayout, ...]
    priced: int
    dropped: int


def plan(
    model: ModelShape,
    cluster: Cluster,
    base: Layout,
    pinned: frozenset[str] = frozenset(),
    calibration: StepCalibration | None = None,
) -> LayoutSearch:
    """Search layouts of ``base`` (batch, sequence, precision and the fields in ``pinned`` stay) on all GPUs of ``cluster``.

    Raises UsageError where no layout is possible at all.
    """
    c = calibration or StepCalibration()
    fitting: list[StepPrediction] = []
    tight: list[StepPrediction] = []
    priced = dropped = 0
    for family in _layout_families(model, cluster, base, pinned):
        if not _least_fits(model, cluster, family, c, pinned):
            dropped += 1
            continue
        for prediction in _family_members(model, cluster, family, c, pinned):
            priced += 1
            if prediction.fits:
                fitting.append(prediction)
            elif prediction.tight:
                tight.append(prediction)
    if not priced and not dropped:
        raise UsageError(
            f"no layout of {model.name} on {cluster.gpus} GPUs keeps what --layout says",
            why=_pinned_obstacle(model, cluster, base, pinned),
        )
    fitting = fitting or tight
    fitting.sort(key=lambda p: p.step_s)
    best = [
        predict_step(model, cluster, p.layout, c) if p.layout.pp > 1 else p for p in _best_of_alike(fitting)[:REFINED]
    ]
    best.sort(key=lambda p: p.step_s)
    others = tuple(_usual_layouts(model, cluster, base, best[0], c)) if best else ()
    return LayoutSearch(best=tuple(best), alternatives=others, priced=priced, dropped=dropped)


def _pinned_obstacle(model: ModelShape, cluster: Cluster, base: Layout, pinned: frozenset[str]) -> str:
    """Say what forbids the pinned fields, all others being 1."""
    free: dict[str, Any] = {name: 1 for name in ("tp", "pp", "cp", "ep", "vpp", "micro_batch") if name not in pinned}
    layout = replace(base, **free)
    split = layout.tp * layout.pp * layout.cp
    if cluster.gpus % split:
        return f"{cluster.gpus} GPUs are not a multiple of tp {layout.tp} x pp {layout.pp} x cp {layout.cp}"
    if "dp" not in pinned:
        layout = replace(layout, dp=cluster.gpus // split)
    problems = errors(model, cluster, layout)
    return "; ".join(problems) or "no size of the fields that it leaves open fits the others"


def _divisors_of(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _pinned_or_sizes(base: Layout, pinned: frozenset[str], name: str, sizes: list[int]) -> list[int]:
    return [getattr(base, name)] if name in pinned else sizes


def _layout_families(model: ModelShape, cluster: Cluster, base: Layout, pinned: frozenset[str]) -> Iterator[Layout]:
    """Yield layouts with the smallest micro-batch, only those without errors. Each choice narrows the next one."""
    gpus = cluster.gpus
    tps = [n for n in _divisors_of(gpus) if n <= min(cluster.domain, model.heads) and model.heads % n == 0]
    for tp in _pinned_or_sizes(base, pinned, "tp", tps):
        pps = [n for n in _divisors_of(gpus // tp) if n <= model.layers]
        for pp in _pinned_or_sizes(base, pinned, "pp", pps):
            cps = [n for n in (1, 2, 4, 8, 16) if base.seq_len >= LONG_SEQUENCE or n == 1]
            for cp in _pinned_or_sizes(base, pinned, "cp", cps):
                if gpus % (tp * pp * cp):
                    continue
                dp = gpus // (tp * pp * cp)
                if base.global_batch % dp or ("dp" in pinned and dp != base.dp):
                    continue
                micro = base.micro_batch if "micro_batch" in pinned else 1
                layout = replace(base, dp=dp, tp=tp, pp=pp, cp=cp, micro_batch=micro)
                yield from _finer_layouts(model, cluster, layout, pinned)


def _finer_layouts(model: ModelShape, cluster: Cluster, layout: Layout, pinned: frozenset[str]) -> Iterator[Layout]:
    """Vary experts, sharing of states and chunks. ZeRO-3, which gathers for every micro-batch of a pipeline, is not looked
    at in one unless asked."""
    eps = [n for n in _divisors_of(model.experts) if layout.dp * layout.cp % n == 0] if model.experts else [1]
    zeros = [0] if layout.dp * layout.cp == 1 else [1, 3] if layout.pp == 1 else [1]
    even = model.layers if model.layers % layout.pp == 0 else model.layers + 2  # embedding and output count as layers
    chunks = [1] if layout.pp == 1 or even % layout.pp else [1, *_three_of(_divisors_of(even // layout.pp)[1:])]
    for ep in _pinned_or_sizes(layout, pinned, "ep", eps):
        for zero in _pinned_or_sizes(layout, pinned, "zero", zeros):
            for vpp in _pinned_or_sizes(layout, pinned, "vpp", chunks):
                schedule = layout.schedule
                if "schedule" not in pinned:
                    schedule = "interleaved" if vpp > 1 else "1f1b"
                for shards in _shard_groups(cluster, layout, zero, pinned):
                    finer = replace(layout, ep=ep, zero=zero, vpp=vpp, schedule=schedule, shard_group=shards)
                    if not errors(model, cluster, finer):
                        yield finer


def _shard_groups(cluster: Cluster, layout: Layout, zero: int, pinned: frozenset[str]) -> list[int | None]:
    """All data-parallel ranks, and with FSDP those of a node alone (HSDP)."""
    if "shard_group" in pinned:
        return [layout.shard_group]
    ranks, near = layout.dp * layout.cp, cluster.domain // layout.tp
    return [None, near] if zero == 3 and 1 < near < ranks and ranks % near == 0 else [None]


def _three_of(numbers: list[int]) -> list[int]:
    """The smallest, the middle and the largest."""
    return sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]}) if numbers else []


def _least_fits(
    model: ModelShape, cluster: Cluster, layout: Layout, c: StepCalibration, pinned: frozenset[str]
) -> bool:
    """Return whether the layout's smallest form fits, without a reserve: one sequence, everything recomputed."""
    smallest = layout if "recompute" in pinned else replace(layout, recompute="full")
    setup = StepSetup(model, cluster, smallest, c)
    stages = enumerate(stages_of(setup))
    return all(stage_memory(setup, stage, index).total <= cluster.gpu.total_bytes for index, stage in stages)


def _family_members(
    model: ModelShape, cluster: Cluster, layout: Layout, c: StepCalibration, pinned: frozenset[str]
) -> Iterator[StepPrediction]:
    """Yield micro-batches from small to large until one does not fit, with recomputation only where that needs it."""
    kinds: list[Recompute] = ["none", "full"] if layout.flash else ["none", "selective", "full"]
    for recompute in [layout.recompute] if "recompute" in pinned else kinds:
        micro = layout.micro_batch
        while layout.global_batch % (layout.dp * micro) == 0:
            changed = replace(layout, recompute=recompute, micro_batch=micro)
            prediction = predict_step(model, cluster, changed, c, simulated=False)
            yield prediction
            if not prediction.fits or "micro_batch" in pinned:
                break
            micro *= 2


def _best_of_alike(predictions: list[StepPrediction]) -> list[StepPrediction]:
    """Keep the best of those alike but for micro-batch, recomputation and chunks, of equal ones that with fewest chunks."""
    alike_but = attrgetter(*(f"layout.{name}" for name in ("tp", "pp", "cp", "ep", "zero", "shard_group")))
    return [
        min((p for p in alike if p.step_s <= EQUAL * alike[0].step_s), key=lambda p: (p.layout.vpp, p.step_s))
        for alike in grouped(predictions, alike_but).values()
    ]


def _usual_layouts(
    model: ModelShape, cluster: Cluster, base: Layout, best: StepPrediction, c: StepCalibration
) -> Iterator[UsualLayout]:
    """Yield what people try first, each in its fastest form that fits."""
    node, gpus = min(cluster.domain, 8, cluster.gpus), cluster.gpus
    obvious: dict[str, dict[str, Any]] = {
        "DDP": {"dp": gpus},
        "FSDP": {"dp": gpus, "zero": 3},
        f"tp={node}, zero=1": {"dp": gpus // node, "tp": node, "zero": 1},
        f"tp={node}, FSDP": {"dp": gpus // node, "tp": node, "zero": 3},
    }
    if gpus > node:
        obvious[f"tp={node}, pp={gpus // node}"] = {"tp": node, "pp": gpus // node}
    for name, fields in obvious.items():
        family = replace(base, **{**_PLAIN, **fields})
        wrong = errors(model, cluster, family)
        if wrong:
            yield UsualLayout(name=name, prediction=None, why=f"cannot be: {wrong[0]}")
            continue
        predictions = list(_family_members(model, cluster, family, c, frozenset()))
        fitting = [p for p in predictions if p.fits] or [p for p in predictions if p.tight]
        if fitting:
            fastest = min(fitting, key=lambda p: p.step_s)
            if fastest.layout != best.layout:
                yield UsualLayout(name=name, prediction=fastest, why=slower_because(fastest, best))
            continue
        used, has = min(p.memory.total for p in predictions) / 1e9, cluster.gpu.total_bytes / 1e9
        why = f"does not fit even with mbs=1 and full recomputation: {used:,.0f} of {has:,.0f} GB"
        yield UsualLayout(name=name, prediction=None, why=why)


_PLAIN: dict[str, Any] = {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "zero": 0, "micro_batch": 1}


def slower_because(one: StepPrediction, best: StepPrediction) -> str:
    """Say by how much it is slower, the cause where that is much, and the two parts of the step that grew most."""
    share = one.step_s / best.step_s - 1
    more = {name: value - best.budget.parts[name] for name, value in one.budget.parts.items()}
    worst = sorted((name for name in more if more[name] > 0.01 * best.step_s), key=lambda name: -more[name])[:2]
    parts = ", ".join(f"{name} +{more[name] / best.step_s:.0%}" for name in worst)
    cause = cause_of(one, best)
    return f"{share:.0%} slower" + (f": {cause}" if cause else "") + (f" ({parts} of the best step)" if parts else "")


CELLS = 3
_PRECISION = {"fp16": "amp_fp16", "bf16": "bf16", "fp32": "fp32"}
_OPTIMIZER = {"adam": "adamw", "sgd": "sgd"}


def require_measurable(model: ModelShape, layout: Layout) -> None:
    """Raises UsageError for a model, or a setting that all layouts share, of which bench would measure another job."""
    why = None
    if model.experts:
        why = f"it has {model.experts} experts a layer, and bench's gpt has a dense MLP"
    elif model.latent is not None:
        why = "its attention has latent keys and values, which bench's gpt has not"
    elif not model.causal:
        why = "its attention looks both ways, and that of bench's gpt looks back only"
    elif layout.precision not in _PRECISION:
        why = f"bench has no {layout.precision}"
    if why is not None:
        raise UsageError(
            f"--matrix: bench cannot measure {model.name} as planned",
            why=why,
            fix="leave --matrix out: the plan is priced alone",
        )


def cell_of(layout: Layout) -> tuple[str, str]:
    """Return (the cell that runs the layout, as keys of YAML, "") or ("", why there is none)."""
    from stepscope.strategies import REGISTRY

    extra = [name for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    m, strategy = layout.micro_batches, ""
    how = f"accumulation: {m}"
    if len(extra) > 1 or extra in (["cp"], ["ep"]):
        return "", f"bench has no strategy with {' and '.join(extra)}"
    if layout.recompute == "half":
        return "", "bench has no recomputation of every second matrix product"
    if extra and layout.shard_group and layout.shard_group < layout.dp:
        return "", f"bench has no {extra[0]} with groups that share states (hsdp)"
    if extra == ["pp"] and layout.recompute != "none" and layout.schedule in ("zero_bubble", "zbv"):
        return "", f"bench has no {layout.schedule} with recomputation"
    if extra == ["tp"]:
        strategy = "tensor_parallel" if layout.zero == 3 or layout.dp == 1 else ""
        how += f", mesh: {{dp: {layout.dp}, tp: {layout.tp}}}"
        how += ", strategy_options: {sequence_parallel: true}" if layout.sequence_parallel else ""
    elif extra == ["pp"]:
        strategy = "pipeline" if layout.zero == 0 or layout.dp == 1 else ""
        options = f"schedule: {layout.schedule}, micro_batches: {m}, chunks: {layout.vpp}"
        how = f"mesh: {{pp: {layout.pp}, dp: {layout.dp}}}, strategy_options: {{{options}}}"
    elif layout.zero == 3 and layout.shard_group and layout.shard_group < layout.dp:
        strategy = "hsdp"
        how += f", mesh: {{dp_replicate: {layout.dp // layout.shard_group}, dp_shard: {layout.shard_group}}}"
    else:
        strategy = ("ddp", "zero1", "", "fsdp2")[layout.zero] if layout.dp > 1 else "single"
        how += (
            ", strategy_options: {reshard_after_forward: false}" if strategy == "fsdp2" and not layout.reshard else ""
        )
    how += f", activation_checkpointing: {layout.recompute}" if layout.recompute != "none" else ""
    if strategy in REGISTRY.names():
        if extra and layout.dp > 1 and "dp" not in REGISTRY.load(strategy).dimensions:
            return "", f"{strategy} has no data parallelism beside it"
        return f"strategy: {strategy}, world_size: {layout.gpus}, {how}", ""
    what = " with ".join([*extra, f"zero={layout.zero}"])
    return "", f"this version has no strategy {strategy}" if strategy else f"bench has no {what}"


def _unlike_gpt(model: ModelShape) -> list[str]:
    """Say what of the model bench's gpt does not have, and what stands in its place."""
    differences = ["a gated MLP is a plain one of as many parameters"] if model.gated else []
    if model.kv_heads != model.heads:
        differences.append(f"{model.kv_heads} key and value heads are {model.heads}")
    if model.attention_width != model.hidden:
        differences.append(f"heads of {model.head_dim} are of {model.hidden // model.heads}")
    if model.window:
        differences.append(f"a window of {model.window} tokens is the whole sequence")
    return differences


def matrix_yaml(model: ModelShape, layouts: Sequence[Layout]) -> str:
    """Write the first three of ``layouts`` that bench can run, a cell each; the best that it cannot run as comments, with
    why.

    The workload ``gpt`` has the model's layers, width, heads and MLP; it is a plain GPT block, and what stands in for
    another one is a comment. Raises UsageError where bench can run none, or would measure another job.
    """
    first = layouts[0]
    require_measurable(model, first)
    cells, skipped = [], []
    for layout in layouts:
        cell, why = cell_of(layout)
        if not cell:
            skipped.append(f"{layout_text(layout)}: {why}")
            continue
        cells.append(f"  - {{{cell}}}  # {layout_text(layout)}")
        if len(cells) == CELLS:
            break
    if not cells:
        raise UsageError("bench can run none of the planned layouts", why="; ".join(skipped[:CELLS]))
    return "\n".join(
        [
            f"# {model.name} as a GPT of the same layers and width.",
            *(f"# not the same: {difference}" for difference in _unlike_gpt(model)),
            "version: 1",
            "base:",
            "  workload: gpt",
            f"  model: {{d_model: {model.hidden}, n_heads: {model.heads}, num_layers: {model.layers},",
            f"    dim_feedforward: {model.ffn * model.matrices // 2}, max_seq_len: {first.seq_len},",
            f"    vocab_size: {model.vocab}, tied: {str(model.tied).lower()}}}",
            "  dataset: synthetic",
            f"  optimizer: {_OPTIMIZER[first.optimizer]}",
            "  steps: auto",
            f"  precision: {_PRECISION[first.precision]}",
            f"  global_batch: {first.global_batch}",
            "include:",
            *(f"  # {line}" for line in skipped[:CELLS]),
            *cells,
            "launch: {device: cuda}",
            "",
        ]
    )
