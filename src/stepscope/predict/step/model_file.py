"""A model's dimensions from a file: this package's own keys, or those of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.suggest import unknown
from stepscope.predict.step.model import LatentAttention, ModelShape
from stepscope.predict.step.named_models import find_model

_HF = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "tied": ("tie_word_embeddings",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "moe_ffn": ("moe_intermediate_size",),
    "shared": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
}
_UNGATED = ("gpt2", "gpt_neox", "mpt", "bert", "opt", "nemotron", "falcon", "gptj")
_TIED = ("gpt2", "mpt", "bert", "opt")
"""Model types of Hugging Face whose MLP has two matrices, and which share the embedding unless the file says otherwise."""

_OWN = {field.name for field in fields(ModelShape)} - {"latent"}
_NEEDED = ("layers", "hidden", "heads", "ffn", "vocab")


def model_of(text: str) -> ModelShape:
    """A named model, or the one in the file ``text``. Raises UsageError, DataError."""
    path = Path(text)
    if path.suffix.lower() in (".yaml", ".yml", ".json") or path.exists():
        return read_model(path)
    return find_model(text)


def read_model(path: Path) -> ModelShape:
    """Raises DataError that names the file and everything that is missing or strange."""
    from stepscope.config.yaml_loader import read_yaml

    document = read_yaml(path)
    if document.problems:
        raise DataError(f"{path} describes no model", why="; ".join(str(problem) for problem in document.problems))
    found = document.value
    if not isinstance(found, Mapping):
        raise DataError(f"{path} holds no model", why="it is not a mapping of names to values")
    given = _from_hf(found) if any(name in found for names in _HF.values() for name in names) else dict(found)
    return _shape(given, path)


def _from_hf(found: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(found.get("model_type", ""))
    given = {key: found[name] for key, names in _HF.items() for name in names if found.get(name) is not None}
    given.setdefault("tied", kind.startswith(_TIED))
    given["gated"] = not kind.startswith(_UNGATED)
    if "hidden" in given and kind.startswith(("gpt2", "mpt")):
        given.setdefault("ffn", int(given["hidden"]) * int(found.get("expansion_ratio", 4)))
    if given.get("experts"):
        given.setdefault("moe_ffn", given.get("ffn"))
    if kind.startswith(("gpt2", "bert", "opt")):
        given["positions"] = found.get("n_positions", found.get("max_position_embeddings", 0))
        given["causal"] = not kind.startswith("bert")
    if found.get("kv_lora_rank"):
        ranks = {"q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank", "rope_dim": "qk_rope_head_dim"}
        given["latent"] = LatentAttention(
            **{key: int(found[name]) for key, name in ranks.items()}, value_dim=int(found["v_head_dim"])
        )
        given["head_dim"] = int(found["qk_rope_head_dim"]) + int(found["qk_nope_head_dim"])
    return given


def _shape(given: dict[str, Any], path: Path) -> ModelShape:
    problems = [f"{key} is missing" for key in _NEEDED if given.get(key) is None]
    problems += [unknown("key", str(key), sorted(_OWN)) for key in given if key not in _OWN | {"latent"}]
    flags = {"gated", "tied", "causal"}
    for key, value in given.items():
        if key in _OWN - flags - {"name", "source"} and (
            isinstance(value, bool) or not isinstance(value, int) or value < 0
        ):
            problems.append(f"{key} is {value!r}, not a whole number")
        if key in flags and not isinstance(value, bool):
            problems.append(f"{key} is {value!r}, not true or false")
    if problems:
        raise DataError(f"{path} describes no model", why="; ".join(problems))
    heads, hidden = given["heads"], given["hidden"]
    if "head_dim" not in given and (not heads or hidden % heads):
        raise DataError(f"{path}: {heads} heads do not divide a hidden size of {hidden}", fix="give head_dim")
    filled = {
        "name": path.stem, "kv_heads": heads, "head_dim": hidden // max(heads, 1), "gated": True, "tied": False,
        "source": str(path), **given,
    }  # fmt: skip
    if filled.get("experts") and not (filled.get("top_k") and filled.get("moe_ffn")):
        raise DataError(f"{path}: {filled['experts']} experts need top_k and moe_ffn")
    return ModelShape(**filled)
