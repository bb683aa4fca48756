"""Options, labels and counts of the workloads, without torch."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from stepscope.records.plan import InputNeeds, ModelFacts
from stepscope.workloads import REGISTRY

MNIST = InputNeeds(kind="features", num_features=784, num_classes=10)


def facts(key: str, data: InputNeeds, dtype: str = "float32", **options: Any) -> ModelFacts:
    workload = REGISTRY.load(key)
    return workload.facts(workload.options.model_validate(options), data, dtype)


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("tiny", 784 * 64 + 64 + 64 * 10 + 10),
        ("small", 785 * 512 + 513 * 256 + 257 * 10),
        ("base", 785 * 4096 + 3 * 4097 * 4096 + 4097 * 2048 + 2049 * 1024 + 1025 * 10),
        ("large", 785 * 8192 + 3 * 8193 * 8192 + 8193 * 4096 + 4097 * 2048 + 2049 * 10),
        ("xlarge", 785 * 16384 + 2 * 16385 * 16384 + 16385 * 8192 + 8193 * 4096 + 4097 * 2048 + 2049 * 10),
    ],
)
def test_mlp_sizes_have_the_layers_of_the_benchmark_they_come_from(size: str, parameters: int) -> None:
    assert facts("mlp", MNIST, size=size).num_parameters == parameters


def test_one_class_more_costs_one_row() -> None:
    more = InputNeeds(kind="features", num_features=784, num_classes=11)
    assert facts("mlp", more, size="tiny").num_parameters - facts("mlp", MNIST, size="tiny").num_parameters == 65


def test_the_dtype_of_the_parameters_decides_their_bytes() -> None:
    assert facts("mlp", MNIST, "bfloat16").gradient_bytes * 2 == facts("mlp", MNIST).gradient_bytes


def test_a_transformer_layer_costs_24_h2_plus_4_s_h_per_token() -> None:
    h, s, v = 64, 32, 100
    data = InputNeeds(kind="lm", seq_len=s, vocab_size=v)
    one, two = (
        facts("gpt", data, d_model=h, max_seq_len=s, vocab_size=v, num_layers=n).forward_flops_per_sample
        for n in (1, 2)
    )
    assert two - one == s * (24 * h * h + 4 * s * h // 2)
    assert one - (two - one) == s * 2 * v * h


def test_an_encoder_pays_for_the_whole_attention_matrix() -> None:
    h, s = 64, 32
    data = InputNeeds(kind="tokens", num_classes=2, seq_len=s, vocab_size=100)
    one, two = (
        facts(
            "text_classifier", data, d_model=h, dim_feedforward=4 * h, max_seq_len=s, num_layers=n
        ).forward_flops_per_sample
        for n in (1, 2)
    )
    assert two - one == s * (24 * h * h + 4 * s * h)
    assert one - (two - one) == 2 * h * 2


@pytest.mark.parametrize(
    ("key", "options", "label"),
    [
        ("mlp", {}, "mlp small"),
        ("mlp", {"layers": [64, 32]}, "mlp 64-32"),
        ("deep_mlp", {"depth": 3, "width": 8}, "deep_mlp 3x8"),
        ("text_classifier", {}, "text_classifier 2x128 s128"),
        ("gpt", {"d_model": 32}, "gpt 4x32 s128"),
    ],
)
def test_labels_say_which_model_it_is(key: str, options: dict[str, Any], label: str) -> None:
    workload = REGISTRY.load(key)
    assert workload.label(workload.options.model_validate(options)) == label


@pytest.mark.parametrize("options", [{}, {"size": "base"}, {"layers": [3]}])
def test_options_survive_being_stored(options: dict[str, Any]) -> None:
    schema = REGISTRY.load("mlp").options
    chosen = schema.model_validate(options)
    assert schema.model_validate(chosen.as_dict()) == chosen


@pytest.mark.parametrize(
    ("key", "options", "reason"),
    [
        ("mlp", {"size": "small", "layers": [3]}, "not both"),
        ("mlp", {"size": "huge"}, "size"),
        ("mlp", {"layers": [0]}, "layers"),
        ("mlp", {"depth": 3}, "depth"),
        ("deep_mlp", {"depth": 0}, "depth"),
        ("text_classifier", {"d_model": 10, "n_heads": 4}, "d_model 10 is not divisible by n_heads 4"),
        ("gpt", {"d_model": 10, "n_heads": 4}, "d_model 10 is not divisible by n_heads 4"),
        ("gpt", {"dropout": 1.0}, "dropout"),
        ("text_classifier", {"vocab_size": 3}, "vocab_size"),
    ],
)
def test_impossible_models_are_refused(key: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        REGISTRY.load(key).options.model_validate(options)


@pytest.mark.parametrize("key", ["mlp", "text_classifier"])
def test_facts_of_unresolved_needs_are_refused(key: str) -> None:
    workload = REGISTRY.load(key)
    options = workload.options()
    with pytest.raises(ValueError, match="not resolved"):
        workload.facts(options, workload.needs(options), "float32")
