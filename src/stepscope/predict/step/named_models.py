"""Models by name, with the dimensions that their publishers print, and the look-up of a name."""

from __future__ import annotations

from functools import partial

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.predict.step.model import LatentAttention, ModelShape


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
