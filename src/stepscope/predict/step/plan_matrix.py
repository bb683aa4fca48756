"""The matrix file with which ``stepscope bench`` measures planned layouts."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.errors import UsageError
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.layout_text import layout_text
from stepscope.predict.step.model import ModelShape
from stepscope.strategies import REGISTRY

CELLS = 3
_PRECISION = {"fp16": "amp_fp16", "fp8": "bf16"}


def cell_of(layout: Layout) -> tuple[str, str]:
    """(the cell that runs the layout, as keys of YAML, "") or ("", why there is none)."""
    extra = [name for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    m, found = layout.micro_batches, ""
    how = f"accumulation: {m}"
    if len(extra) > 1 or extra in (["cp"], ["ep"]):
        return "", f"bench has no strategy with {' and '.join(extra)}"
    if extra == ["tp"]:
        found = "tensor_parallel" if layout.zero == 3 or layout.dp == 1 else ""
        how += f", mesh: {{dp: {layout.dp}, tp: {layout.tp}}}"
        how += ", strategy_options: {sequence_parallel: true}" if layout.sequence_parallel else ""
    elif extra == ["pp"]:
        found = "pipeline" if layout.zero == 0 or layout.dp == 1 else ""
        options = f"schedule: {layout.schedule}, micro_batches: {m}, chunks: {layout.vpp}"
        how = f"mesh: {{pp: {layout.pp}, dp: {layout.dp}}}, strategy_options: {{{options}}}"
    elif layout.shard_group and layout.shard_group < layout.dp:
        found = "hsdp"
        how += f", mesh: {{dp_replicate: {layout.dp // layout.shard_group}, dp_shard: {layout.shard_group}}}"
    else:
        found = ("ddp", "zero1", "", "fsdp2")[layout.zero] if layout.dp > 1 else "single"
    if found in REGISTRY.names():
        if extra and layout.dp > 1 and "dp" not in REGISTRY.load(found).dimensions:
            return "", f"{found} has no data parallelism beside it"
        return f"strategy: {found}, world_size: {layout.gpus}, {how}", ""
    what = " with ".join([*extra, f"zero={layout.zero}"])
    return "", f"this version has no strategy {found}" if found else f"bench has no {what}"


def matrix_yaml(model: ModelShape, layouts: Sequence[Layout]) -> str:
    """The first three of ``layouts`` that bench can run, a cell each; the best that it cannot run as comments
    with the reason.

    The workload ``gpt`` has the model's layers, width, heads and MLP; it is a plain GPT block, so a gated MLP is given as a
    wider one with as many parameters. Raises UsageError where bench can run none.
    """
    first = layouts[0]
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
            f"# {model.name} as a GPT of the same layers, width and parameters of a block.",
            "version: 1",
            "base:",
            "  workload: gpt",
            f"  model: {{d_model: {model.hidden}, n_heads: {model.heads}, num_layers: {model.layers},",
            f"    dim_feedforward: {model.ffn * model.matrices // 2}, max_seq_len: {first.seq_len},",
            f"    vocab_size: {model.vocab}}}",
            "  dataset: synthetic",
            "  optimizer: adamw",
            "  steps: auto",
            f"  precision: {_PRECISION.get(first.precision, first.precision)}",
            f"  global_batch: {first.global_batch}",
            "include:",
            *(f"  # {each}" for each in skipped[:CELLS]),
            *cells,
            "launch: {device: cuda}",
            "",
        ]
    )
