"""FLOP per token as each source counts them, so that its own MFU or TFLOP/s can be recomputed from its speed.

The text of the column ``flops_convention`` decides; what a source does beside its text is listed with the source. No model
of time is in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from benchmarks.validate.grade import Answer, Goal, Question, graded
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.run_fit import FAILED, Material
from stepscope.predict.step.run_rows import TrainingRow

_SEQ_IN_FLAGS = re.compile(r"seq_len_(\d+)_stated_only")
_LAST_TAG = re.compile(r"tags v[\d.]+?\.\.v(\d+(?:\.\d+)*)")
_CONTAINER = re.compile(r"(\d\d)\.(\d\d)(?:\.\d+)? NeMo Container")
_GQA_SINCE = (25, 4, 1)
"""NVIDIA/dgxc-benchmarking counts as many key-value heads as heads for Nemotron in tags before v25.04.01."""
_WINDOW_SINCE = (26, 6)
"""Megatron-Bridge counts GPT-OSS with two matrices per expert and full attention before container 26.06."""

Count = Callable[[TrainingRow, ModelShape, int], float]


def recomputed(row: TrainingRow) -> tuple[float, float] | str:
    """(recomputed, printed): both FLOP/s per GPU, from the row's speed and from its TFLOP/s or MFU; or why not."""
    if not row.convention:
        return "names no convention"
    if row.tokens_per_s is None:
        return "no speed printed"
    printed = row.flop_rate
    if printed is None and row.peak is not None:
        share = row.mfu if row.mfu is not None else row.hfu
        printed = None if share is None else share * row.peak
    if not printed:
        return "neither TFLOP/s nor MFU with its peak printed"
    flop = flop_per_token(row)
    return flop if isinstance(flop, str) else (flop * row.tokens_per_s, printed)


def flop_per_token(row: TrainingRow) -> float | str:
    """In the convention that the row names; or why it cannot be counted."""
    text = row.convention.replace(" ", "")
    seq_len = row.seq_len or next((int(found[1]) for found in [_SEQ_IN_FLAGS.search(row.flags)] if found), None)
    if text.startswith("8*N*tokens"):
        return _eight_n(row)
    count = next((count for pattern, count in _CONVENTIONS if re.match(pattern, text)), None)
    if count is None:
        return f"unknown convention: {row.convention}"
    if row.shape is None:
        return "model dimensions not stated"
    if seq_len is None:
        return "sequence length not stated"
    return count(row, row.shape, seq_len)


def _eight_n(row: TrainingRow) -> float | str:
    """BigScience: 6 N and a second forward pass; N without the embedding where the dimensions are printed."""
    if row.shape is not None:
        return 8.0 * 12 * row.shape.layers * row.shape.hidden**2
    return 8.0 * row.params if row.params else "number of parameters not stated"


def _hardware(_row: TrainingRow, model: ModelShape, s: int) -> float:
    """Megatron-LM (arXiv 2104.04473, eq. 3), full recomputation: 96 L h^2 (1 + s / 6h + V / 16 L h) per token."""
    layers, h = model.layers, model.hidden
    return 96.0 * layers * h * h * (1 + s / (6 * h) + model.vocab / (16 * layers * h))


def _hardware_matrices(row: TrainingRow, model: ModelShape, s: int) -> float:
    """Forward twice: 4/3 of the model's. InternEvo's code is Megatron-LM's formula."""
    if "sc21" in row.flags:
        return _hardware(row, model, s)
    return 4 / 3 * model.flop_per_token(s, "non-causal", all_params="Nmm" not in row.convention)


def _matrices(row: TrainingRow, model: ModelShape, s: int) -> float:
    """6 Nmm + 12 L d s, or 6 L d s where the text says so."""
    if "finetuning" in row.notes:  # counts no attention
        return 6.0 * _without_norms(model)
    causal = "6*L*d*s" in row.convention.replace("12*L", "")
    model = replace(model, window=0)
    if row.source.startswith("dgxc") and "nemotron" in row.model.lower() and _tag(row) < _GQA_SINCE:
        model = replace(model, kv_heads=model.heads)
    if "gpt-oss" in row.model_key:
        return _gpt_oss(row, s)
    flop = 6.0 * _without_norms(model) + model.attention_flop(s, causal=causal)
    if model.latent and row.source == "megatron-bridge" and "w/o MTP" not in row.model:
        flop += _next_token(model, s, causal=causal)
    return flop


def _next_token(model: ModelShape, s: int, *, causal: bool) -> float:
    """DeepSeek-V3's multi-token prediction: one more layer, a projection of two hidden states, one more output."""
    one = replace(model, layers=1, dense_layers=0)
    projection = 2 * model.hidden**2
    return 6.0 * (_without_norms(one) + projection) + one.attention_flop(s, causal=causal)


def _gpt_oss(row: TrainingRow, s: int) -> float:
    model = row.shape
    assert model is not None
    found = _CONTAINER.search(row.notes)
    if found and (int(found[1]), int(found[2])) < _WINDOW_SINCE:
        model = replace(model, gated=False, window=0)
    return 6.0 * _without_norms(model) + model.attention_flop(s, causal=True)


def _without_norms(model: ModelShape) -> float:
    """Active parameters of matrices that a token passes, without the input embedding."""
    return float(
        model.matmul_params - 2 * model.hidden * model.layers - model.hidden * model.experts * model.moe_layers
    )


def _lora(_row: TrainingRow, model: ModelShape, _s: int) -> float:
    """No gradients of frozen weights: 4 Nmm; both sources leave attention out."""
    return 4.0 * _without_norms(model)


def _all_parameters(row: TrainingRow, model: ModelShape, s: int) -> float:
    """6 N + 12 L d s; N as the row prints it, else with both embeddings; nanotron: a tied one twice where pp > 1."""
    if "tied counted twice" in row.convention and (row.pp or 1) > 1:
        model = replace(model, tied=False)
    n = float(model.active_params)
    if row.params and "tied counted twice" not in row.convention:
        n = row.params
    return 6.0 * n + model.attention_flop(s, causal=False)


def _no_attention(_row: TrainingRow, model: ModelShape, s: int) -> float:
    return model.flop_per_token(s, "no attention", all_params=True)


_CONVENTIONS: tuple[tuple[str, Count], ...] = (
    (r"96\*B|hardwareflops", _hardware),
    (r"8\*N(mm)?\+16\*L", _hardware_matrices),
    (r"4\*N|LoRA", _lora),
    (r"6\*Nmm\+", _matrices),
    (r"(MFU)?6\*N(\(all[^)]*\))?\+12\*L", _all_parameters),
    (r"6\*N\(all\)only", _no_attention),
)


def _tag(row: TrainingRow) -> tuple[int, ...]:
    """Last tag of the repository that prints the row; without one: the newest."""
    found = _LAST_TAG.search(row.notes)
    return tuple(int(part) for part in found[1].split(".")) if found else (99,)


WITHIN = 0.01


def mfu_convention(material: Material) -> Answer:
    rows, skipped = [], Counter(material.unread)
    for row in material.rows:
        if row.failed:
            skipped[FAILED] += 1
            continue
        pair = recomputed(row)
        if isinstance(pair, str):
            skipped[pair] += 1
        else:
            rows.append(graded(row, *pair, fits=False))
    share = {"within_1_percent": sum(row.error <= WITHIN for row in rows) / len(rows)} if rows else {}
    return Answer(rows=tuple(rows), skipped=skipped, extra=share)


MFU_CONVENTION = Question(
    key="mfu-convention", title="MFU recomputed in the source's own convention", unit="FLOP/s per GPU", ask=mfu_convention,
    bars=(Goal(figure="within_1_percent", least=0.95),),
)  # fmt: skip
