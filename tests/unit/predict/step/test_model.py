"""Dimensions to parameters and FLOP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.predict.step.model import MODELS, find_model, model_of


@pytest.mark.parametrize(
    ("name", "params", "active"),
    [
        ("gpt2", 124_000_000, None),
        ("gpt2-xl", 1_557_000_000, None),
        ("llama2-7b", 6_738_415_616, None),
        ("llama3-8b", 8_030_261_248, None),
        ("llama3-405b", 405_853_388_800, None),
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_000_000),
        ("deepseek-v3", 671_026_000_000, 37_552_000_000),
    ],
)
def test_parameters_are_the_published_ones(name: str, params: int, active: int | None) -> None:
    model = find_model(name)
    assert model.params == pytest.approx(params, rel=0.004)
    assert model.active_params == pytest.approx(active or model.params, rel=0.004)


def test_flop_per_token_in_every_convention() -> None:
    model = find_model("llama2-7b")
    attention = 12 * 32 * 4096 * 2048
    assert model.flop_per_token(2048, "no attention") == 6 * model.matmul_params
    assert model.flop_per_token(2048, "non-causal") - model.flop_per_token(2048, "no attention") == attention
    assert model.flop_per_token(2048, "causal") - model.flop_per_token(2048, "no attention") == attention / 2
    every = model.flop_per_token(2048, "no attention", all_params=True)
    assert every - model.flop_per_token(2048, "no attention") == pytest.approx(6 * model.embedding_params, rel=0.01)


def test_a_window_costs_less_than_the_whole_sequence() -> None:
    model = find_model("gpt-oss-120b")
    whole = 12 * model.attention_width * 8192 * model.layers
    assert 0.5 * whole < model.attention_flop(8192, causal=False) < 0.55 * whole


def test_every_model_has_a_source_and_heads_that_divide() -> None:
    for model in MODELS:
        assert model.source
        assert model.heads % model.kv_heads == 0


@pytest.mark.parametrize(("asked", "said"), [("llama-3-8b", "llama3-8b"), ("Llama3.1-70B", "llama3-70b")])
def test_other_spellings_are_understood(asked: str, said: str) -> None:
    assert find_model(asked).name == said


def test_an_unknown_model_is_refused_with_a_guess() -> None:
    with pytest.raises(UsageError, match="did you mean 'llama3-8b'"):
        find_model("llama3-8bb")


def test_a_hugging_face_config_gives_the_named_model(tmp_path: Path) -> None:
    config = {
        "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "tie_word_embeddings": False, "rope_theta": 1e6,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert model_of(str(path)).params == find_model("mixtral-8x7b").params


def test_a_file_with_mistakes_is_refused_with_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("layers: 12\nhidden: many\nheads: 12\nfnn: 3072\n")
    with pytest.raises(StepscopeError) as caught:
        model_of(str(path))
    text = str(caught.value)
    assert all(part in text for part in ("ffn is missing", "vocab is missing", "'fnn'", "'many'"))
