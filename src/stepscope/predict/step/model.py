"""A transformer as its dimensions, by name, from a file, or as given, and what follows: parameters and FLOP."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import unknown
from stepscope.store.columns import COUNTS, MISSING
from stepscope.store.columns import number as number_in

Convention = Literal["causal", "non-causal", "no attention"]
CONVENTIONS: tuple[Convention, ...] = ("causal", "non-causal", "no attention")


@record
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks of the two compressions, dimensions of a head."""

    q_rank: int
    kv_rank: int
    rope_dim: int
    value_dim: int


@record
class ModelShape:
    """Dimensions of a transformer.

    ffn: width of a dense MLP; gated: three matrices instead of two. positions: rows of a learned position table.
    window: attention span of every other layer (0: all layers see everything). experts > 0: mixture of experts; each
    token visits top_k experts of width moe_ffn and ``shared`` more; the first dense_layers layers have a dense MLP.
    head_dim: of queries and keys. source: where the dimensions are published.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    tied: bool
    causal: bool = True
    positions: int = 0
    window: int = 0
    experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    shared: int = 0
    dense_layers: int = 0
    latent: LatentAttention | None = None
    source: str = ""

    @property
    def matrices(self) -> int:
        """Matrices of one MLP."""
        return 3 if self.gated else 2

    @property
    def attention_width(self) -> int:
        """d of the attention term: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Width of the attention's output: heads x dimension of a value."""
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def attention_params(self) -> int:
        """Attention's parameters in one layer."""
        if self.latent:
            a = self.latent
            nope = self.head_dim - a.rope_dim
            query = self.hidden * a.q_rank + a.q_rank * self.attention_width
            compressed = self.hidden * (a.kv_rank + a.rope_dim)
            return query + compressed + a.kv_rank * self.heads * (nope + a.value_dim) + self.value_width * self.hidden
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp_params(self) -> int:
        """Parameters of one dense MLP."""
        return self.matrices * self.hidden * self.ffn

    @property
    def expert_params(self) -> int:
        """Parameters of one expert."""
        return self.matrices * self.hidden * self.moe_ffn

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab * self.hidden

    def layer_params(self, *, moe: bool, active: bool = False) -> int:
        """Return the parameters of one layer with its norms. active: the experts that one token visits instead of all."""
        common = self.attention_params + 2 * self.hidden
        if not moe:
            return common + self.mlp_params
        visited = self.top_k if active else self.experts
        return common + self.hidden * self.experts + (visited + self.shared) * self.expert_params

    def _of_layers(self, *, active: bool) -> int:
        dense = self.layers - self.moe_layers
        return dense * self.layer_params(moe=False) + self.moe_layers * self.layer_params(moe=True, active=active)

    @property
    def params(self) -> int:
        """All parameters; a tied embedding counts once."""
        heads = 1 if self.tied else 2
        return (
            self._of_layers(active=False) + heads * self.embedding_params + self.positions * self.hidden + self.hidden
        )

    @property
    def active_params(self) -> int:
        """Parameters that one token visits."""
        return self.params - self._of_layers(active=False) + self._of_layers(active=True)

    @property
    def matmul_params(self) -> int:
        """Active parameters without the input embedding: each costs 6 FLOP a token."""
        return self._of_layers(active=True) + self.embedding_params

    def attention_flop(self, seq_len: int, *, causal: bool) -> float:
        """Training FLOP per token of the scores and their weighted sum, all layers: 12 L d s, half of it if causal."""
        width = (self.attention_width + self.value_width) / 2
        spans = [float(seq_len)] * self.layers
        if self.window and self.window < seq_len:
            spans[::2] = [float(self.window) * (2 if causal else 1)] * len(spans[::2])
        return 12 * width * sum(spans) * (0.5 if causal else 1.0)

    def flop_per_token(self, seq_len: int, convention: Convention, *, all_params: bool = False) -> float:
        """Model FLOP of one token of a training step (forward and backward, no recomputation).

        6 N + attention; N: matmul_params, or with ``all_params`` the input embedding too. causal: 6 L d s; non-causal:
        12 L d s (PaLM, arXiv 2204.02311 appendix B).
        """
        n = self.active_params if all_params else self.matmul_params
        if convention == "no attention":
            return 6.0 * n
        return 6.0 * n + self.attention_flop(seq_len, causal=convention == "causal")


_TIMES = {"": 1.0, "%": 1.0, **COUNTS, "t": 1e12}
_MOST_WHOLE = 10**12
"""Of a count; beyond, a slip."""


def number(row: Mapping[str, str], column: str) -> float | None:
    """``250k`` is 250000, ``1,024`` is 1024, ``40%`` is 40; None where nothing is stated.

    Raises UsageError for anything else that is no finite number.
    """
    text = (row.get(column) or "").strip().lower()
    if text in (*MISSING, "nan"):
        return None
    parsed = number_in(text)
    if parsed is None or parsed[1] not in _TIMES:
        raise UsageError(f"{column}: a value that is not a number", why=text[:40])
    return parsed[0] * _TIMES[parsed[1]]


def whole(row: Mapping[str, str], column: str, *, least: int = 1) -> int | None:
    """Read a count, ``least`` or more."""
    value = number(row, column)
    if value is None:
        return None
    if value != round(value) or not least <= value <= _MOST_WHOLE:
        raise UsageError(f"{column} is not a whole number of {least} or more", why=f"{value:g}")
    return round(value)


MOST_LAYERS = 10_000
_LATENT = re.compile(r"MLA \(q_lora (\d+), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)\)")


def _number_after(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def published_shape(row: Mapping[str, str]) -> ModelShape | None:
    """Read a shape from a row of models.csv; None where a dimension is missing."""
    layers, hidden, heads = whole(row, "layers"), whole(row, "hidden"), whole(row, "heads")
    ffn, vocab = whole(row, "ffn"), whole(row, "vocab")
    name = (row.get("model_key") or "").strip()
    if not (name and layers and hidden and heads and ffn and vocab) or layers > MOST_LAYERS or heads > hidden:
        return None
    attention, notes = row.get("attention") or "", row.get("notes") or ""
    match, latent, head_dim = _LATENT.search(attention), None, whole(row, "head_dim") or hidden // heads
    more = {field: whole(row, column, least=0) or 0 for column, field in _MORE.items()}
    if more["experts"] and not (more["top_k"] and more["moe_ffn"]):
        return None
    if match:
        q, kv, nope, rope, value = (int(part) for part in match.groups())
        latent, head_dim = LatentAttention(q_rank=q, kv_rank=kv, rope_dim=rope, value_dim=value), nope + rope
    return ModelShape(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=whole(row, "kv_heads") or heads,
        head_dim=head_dim, ffn=ffn, gated=row.get("gated_mlp") == "1", vocab=vocab,
        tied=row.get("tied_embeddings") == "1", causal="bidirectional" not in attention,
        window=_number_after(r"sliding window (\d+)", notes), shared=_number_after(r"(\d+) shared expert", notes),
        dense_layers=_number_after(r"first (\d+) layers", notes), latent=latent, source=row.get("source") or "", **more,
    )  # fmt: skip


_MORE = {"n_experts": "experts", "experts_per_token": "top_k", "moe_ffn": "moe_ffn", "positions": "positions"}
with Path(__file__).with_name("models.csv").open(encoding="utf-8", newline="") as _table:
    MODELS: tuple[ModelShape, ...] = tuple(filter(None, map(published_shape, csv.DictReader(_table))))
"""Dense and expert models as published, in the layout of the shared measurements."""

_BY_NAME = {model.name: model for model in MODELS}
_ALIASES = {
    "llama3.1-8b": "llama3-8b", "llama3.1-70b": "llama3-70b", "llama3.1-405b": "llama3-405b", "llama1-7b": "llama-7b",
    "llama1-13b": "llama-13b", "llama1-33b": "llama-33b", "llama1-65b": "llama-65b", "llama3.3-70b": "llama3-70b",
    "gpt3-6.7b": "gpt-6.7b", "gpt3-13b": "gpt-13b", "gpt3-175b": "gpt-175b", "gpt3": "gpt-175b",
    "turing-530b": "megatron-530b", "grok-1": "grok1-314b",
}  # fmt: skip


def find_model(name: str) -> ModelShape:
    """The model called ``name``. Unknown: UsageError with did-you-mean."""
    key = name.strip().lower().replace("_", "-").replace("llama-2-", "llama2-").replace("llama-3-", "llama3-")
    key = _ALIASES.get(key, key)
    if key not in _BY_NAME:
        raise UsageError(
            unknown("model", name, (*_BY_NAME, *_ALIASES)), fix="name one of them, or a YAML file or config.json"
        )
    return _BY_NAME[key]


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
    """Read a model from a file. Raises DataError that names the file and everything that is missing or strange."""
    from stepscope.store.yaml_loader import read_yaml

    document = read_yaml(path)
    if document.problems:
        raise DataError(f"{path} describes no model", why="; ".join(str(problem) for problem in document.problems))
    content = document.value
    if not isinstance(content, Mapping):
        raise DataError(f"{path} holds no model", why="it is not a mapping of names to values")
    given = _from_hf(content) if any(name in content for names in _HF.values() for name in names) else dict(content)
    return _model_shape(given, path)


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a Hugging Face configuration under our names."""
    kind = str(config.get("model_type", ""))
    given = {key: config[name] for key, names in _HF.items() for name in names if config.get(name) is not None}
    given.setdefault("tied", kind.startswith(_TIED))
    given["gated"] = not kind.startswith(_UNGATED)
    if "hidden" in given and kind.startswith(("gpt2", "mpt")):
        given.setdefault("ffn", int(given["hidden"]) * int(config.get("expansion_ratio", 4)))
    if given.get("experts"):
        given.setdefault("moe_ffn", given.get("ffn"))
    if kind.startswith(("gpt2", "bert", "opt")):
        given["positions"] = config.get("n_positions", config.get("max_position_embeddings", 0))
        given["causal"] = not kind.startswith("bert")
    if config.get("kv_lora_rank"):
        ranks = {"q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank", "rope_dim": "qk_rope_head_dim"}
        given["latent"] = LatentAttention(
            **{key: int(config[name]) for key, name in ranks.items()}, value_dim=int(config["v_head_dim"])
        )
        given["head_dim"] = int(config["qk_rope_head_dim"]) + int(config["qk_nope_head_dim"])
    return given


def _model_shape(given: dict[str, Any], path: Path) -> ModelShape:
    """Return the shape that these keys describe. Raises UsageError for missing, unknown or impossible ones."""
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
