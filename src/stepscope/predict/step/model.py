"""A transformer as its dimensions, by name, from a file, or as given, and what follows: parameters and FLOP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import unknown

Convention = Literal["causal", "non-causal", "no attention"]
CONVENTIONS: tuple[Convention, ...] = ("causal", "non-causal", "no attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks of the two compressions, dimensions of a head."""

    q_rank: int
    kv_rank: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
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


def _model(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, source: str, **more: object
) -> ModelShape:
    fields: dict[str, object] = {"head_dim": hidden // heads, "gated": True, "tied": False, **more}
    return ModelShape(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, vocab=vocab, source=source,
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


_LLAMA1 = "arXiv 2302.13971, table 2; meta-llama config.json"
_LLAMA2 = "arXiv 2307.09288; meta-llama/Llama-2 config.json"
_LLAMA3 = "arXiv 2407.21783, table 3; meta-llama/Llama-3 config.json"
_GPT3 = "arXiv 2005.14165, table 2.1; vocabulary padded to 50304"
_MEGATRON = "arXiv 2205.05198, table 3; vocabulary padded to 51200"
_MPT = "mosaicml/mpt config.json; llm-foundry scripts/train/yamls/pretrain"
_QWEN3 = "arXiv 2505.09388; Qwen/Qwen3 config.json"
_gpt3 = partial(_model, gated=False, tied=True, positions=2048)
_mpt = partial(_model, gated=False, tied=True, positions=2048)

MODELS: tuple[ModelShape, ...] = (
    _gpt3("gpt-125m", 12, 768, 12, 12, 3072, 50304, _GPT3),
    _gpt3("gpt-350m", 24, 1024, 16, 16, 4096, 50304, _GPT3),
    _gpt3("gpt-760m", 24, 1536, 16, 16, 6144, 50304, _GPT3),
    _gpt3("gpt-1.3b", 24, 2048, 16, 16, 8192, 50304, _GPT3),
    _gpt3("gpt-2.7b", 32, 2560, 32, 32, 10240, 50304, _GPT3),
    _gpt3("gpt-6.7b", 32, 4096, 32, 32, 16384, 50304, _GPT3),
    _gpt3("gpt-13b", 40, 5120, 40, 40, 20480, 50304, _GPT3),
    _gpt3("gpt-175b", 96, 12288, 96, 96, 49152, 51200, _MEGATRON),
    _gpt3("megatron-22b", 48, 6144, 64, 64, 24576, 51200, _MEGATRON),
    _gpt3("megatron-530b", 105, 20480, 128, 128, 81920, 51200, _MEGATRON),
    _gpt3("megatron-1t", 128, 25600, 160, 160, 102400, 51200, _MEGATRON),
    _gpt3("gpt2", 12, 768, 12, 12, 3072, 50257, "openai-community/gpt2 config.json", positions=1024),
    _gpt3("gpt2-medium", 24, 1024, 16, 16, 4096, 50257, "openai-community/gpt2-medium config.json", positions=1024),
    _gpt3("gpt2-large", 36, 1280, 20, 20, 5120, 50257, "openai-community/gpt2-large config.json", positions=1024),
    _gpt3("gpt2-xl", 48, 1600, 25, 25, 6400, 50257, "openai-community/gpt2-xl config.json", positions=1024),
    _mpt("mpt-1b", 24, 2048, 16, 16, 8192, 50368, _MPT),
    _mpt("mpt-3b", 32, 2560, 20, 20, 10240, 50368, _MPT),
    _mpt("mpt-7b", 32, 4096, 32, 32, 16384, 50368, _MPT),
    _mpt("mpt-13b", 40, 5120, 40, 40, 20480, 50368, _MPT),
    _mpt("mpt-30b", 48, 7168, 56, 56, 28672, 50368, _MPT),
    _mpt("mpt-70b", 80, 8192, 64, 64, 32768, 50368, _MPT),
    _model("llama-7b", 32, 4096, 32, 32, 11008, 32000, _LLAMA1),
    _model("llama-13b", 40, 5120, 40, 40, 13824, 32000, _LLAMA1),
    _model("llama-33b", 60, 6656, 52, 52, 17920, 32000, _LLAMA1),
    _model("llama-65b", 80, 8192, 64, 64, 22016, 32000, _LLAMA1),
    _model("llama2-7b", 32, 4096, 32, 32, 11008, 32000, _LLAMA2),
    _model("llama2-13b", 40, 5120, 40, 40, 13824, 32000, _LLAMA2),
    _model("llama2-70b", 80, 8192, 64, 8, 28672, 32000, _LLAMA2),
    _model("llama3-8b", 32, 4096, 32, 8, 14336, 128256, _LLAMA3),
    _model("llama3-70b", 80, 8192, 64, 8, 28672, 128256, _LLAMA3),
    _model("llama3-405b", 126, 16384, 128, 8, 53248, 128256, _LLAMA3),
    _model("llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, "meta-llama/Llama-3.2-1B config.json", tied=True),
    _model("llama3.2-3b", 28, 3072, 24, 8, 8192, 128256, "meta-llama/Llama-3.2-3B config.json", tied=True),
    _model("tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000, "TinyLlama/TinyLlama-1.1B config.json"),
    _model("codellama-34b", 48, 8192, 64, 8, 22016, 32000, "codellama/CodeLlama-34b config.json"),
    _model("mistral-7b", 32, 4096, 32, 8, 14336, 32000, "mistralai/Mistral-7B-v0.1 config.json"),
    _model("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, "Qwen/Qwen2.5-7B config.json"),
    _model("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, "Qwen/Qwen2.5-72B config.json"),
    _model("qwen3-8b", 36, 4096, 32, 8, 12288, 151936, _QWEN3, head_dim=128),
    _model("qwen3-32b", 64, 5120, 64, 8, 25600, 151936, _QWEN3, head_dim=128),
    _model("nemotron4-15b", 32, 6144, 48, 8, 24576, 256000, "arXiv 2402.16819, table 1", gated=False),
    _model("nemotron4-340b", 96, 18432, 96, 8, 73728, 256000, "arXiv 2406.11704, table 1", gated=False),
    _model(
        "bert-large", 24, 1024, 16, 16, 4096, 30522, "google-bert/bert-large-uncased config.json", gated=False,
        tied=True, causal=False, positions=512,
    ),
    _model(
        "mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, "mistralai/Mixtral-8x7B-v0.1 config.json", experts=8, top_k=2,
        moe_ffn=14336,
    ),
    _model(
        "mixtral-8x22b", 56, 6144, 48, 8, 16384, 32768, "mistralai/Mixtral-8x22B-v0.1 config.json", experts=8, top_k=2,
        moe_ffn=16384,
    ),
    _model(
        "qwen3-30b-a3b", 48, 2048, 32, 4, 6144, 151936, _QWEN3, head_dim=128, experts=128, top_k=8, moe_ffn=768,
    ),
    _model(
        "qwen3-235b-a22b", 94, 4096, 64, 4, 12288, 151936, _QWEN3, head_dim=128, experts=128, top_k=8, moe_ffn=1536,
    ),
    _model(
        "grok1-314b", 64, 6144, 48, 8, 32768, 131072, "xai-org/grok-1 run.py", experts=8, top_k=2, moe_ffn=32768,
        tied=True,
    ),
    _model(
        "gpt-oss-20b", 24, 2880, 64, 8, 2880, 201088, "openai/gpt-oss-20b config.json", head_dim=64, experts=32,
        top_k=4, moe_ffn=2880, window=128,
    ),
    _model(
        "gpt-oss-120b", 36, 2880, 64, 8, 2880, 201088, "openai/gpt-oss-120b config.json", head_dim=64, experts=128,
        top_k=4, moe_ffn=2880, window=128,
    ),
    _model(
        "deepseek-v3", 61, 7168, 128, 128, 18432, 129280, "arXiv 2412.19437; deepseek-ai/DeepSeek-V3 config.json",
        head_dim=192, experts=256, top_k=8, moe_ffn=2048, shared=1, dense_layers=3,
        latent=LatentAttention(q_rank=1536, kv_rank=512, rope_dim=64, value_dim=128),
    ),
)  # fmt: skip

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
    return _shape(given, path)


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
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
