"""The matrix file with which ``stepscope bench`` measures planned layouts."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.errors import UsageError
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.layout_text import layout_text
from stepscope.predict.step.model import ModelShape
from stepscope.strategies import REGISTRY

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
    """(the cell that runs the layout, as keys of YAML, "") or ("", why there is none)."""
    extra = [name for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    m, found = layout.micro_batches, ""
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
        found = "tensor_parallel" if layout.zero == 3 or layout.dp == 1 else ""
        how += f", mesh: {{dp: {layout.dp}, tp: {layout.tp}}}"
        how += ", strategy_options: {sequence_parallel: true}" if layout.sequence_parallel else ""
    elif extra == ["pp"]:
        found = "pipeline" if layout.zero == 0 or layout.dp == 1 else ""
        options = f"schedule: {layout.schedule}, micro_batches: {m}, chunks: {layout.vpp}"
        how = f"mesh: {{pp: {layout.pp}, dp: {layout.dp}}}, strategy_options: {{{options}}}"
    elif layout.zero == 3 and layout.shard_group and layout.shard_group < layout.dp:
        found = "hsdp"
        how += f", mesh: {{dp_replicate: {layout.dp // layout.shard_group}, dp_shard: {layout.shard_group}}}"
    else:
        found = ("ddp", "zero1", "", "fsdp2")[layout.zero] if layout.dp > 1 else "single"
        how += ", strategy_options: {reshard_after_forward: false}" if found == "fsdp2" and not layout.reshard else ""
    how += f", activation_checkpointing: {layout.recompute}" if layout.recompute != "none" else ""
    if found in REGISTRY.names():
        if extra and layout.dp > 1 and "dp" not in REGISTRY.load(found).dimensions:
            return "", f"{found} has no data parallelism beside it"
        return f"strategy: {found}, world_size: {layout.gpus}, {how}", ""
    what = " with ".join([*extra, f"zero={layout.zero}"])
    return "", f"this version has no strategy {found}" if found else f"bench has no {what}"


def _unlike(model: ModelShape) -> list[str]:
    """What of the model bench's gpt does not have, and what stands in its place."""
    found = ["a gated MLP is a plain one of as many parameters"] if model.gated else []
    if model.kv_heads != model.heads:
        found.append(f"{model.kv_heads} key and value heads are {model.heads}")
    if model.attention_width != model.hidden:
        found.append(f"heads of {model.head_dim} are of {model.hidden // model.heads}")
    if model.window:
        found.append(f"a window of {model.window} tokens is the whole sequence")
    return found


def matrix_yaml(model: ModelShape, layouts: Sequence[Layout]) -> str:
    """The first three of ``layouts`` that bench can run, a cell each; the best that it cannot run as comments
    with the reason.

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
            *(f"# not the same: {each}" for each in _unlike(model)),
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
            *(f"  # {each}" for each in skipped[:CELLS]),
            *cells,
            "launch: {device: cuda}",
            "",
        ]
    )
