"""A transformer's dimensions from the calls of its layers, checked by the parameters of its optimizer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stepscope.core.errors import Unavailable
from stepscope.predict.step.model import ModelShape, find_model
from stepscope.results.job_from_traces import TracedModel, model_of_calls, recorded_parameters
from stepscope.traces.operators import LayerCalls


def calls_of(shape: ModelShape, *, passes: int = 3, again: int = 1, fused: bool = False) -> LayerCalls:
    """What ``passes`` forward passes call; ``again`` 2: layers are recomputed."""
    linear: Counter[tuple[int, int]] = Counter()
    layers = shape.layers * passes * again
    width, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if fused:
        linear[width + 2 * keys, shape.hidden] += layers
        linear[2 * shape.ffn if shape.gated else shape.ffn, shape.hidden] += layers
    else:
        for out in (width, keys, keys):
            linear[out, shape.hidden] += layers
        linear[shape.ffn, shape.hidden] += layers * (2 if shape.gated else 1)
    linear[shape.hidden, width] += layers
    linear[shape.hidden, shape.ffn] += layers
    linear[shape.vocab, shape.hidden] += passes
    tables = {(shape.vocab, shape.hidden): passes}
    if shape.positions:
        tables[shape.positions, shape.hidden] = passes
    heads = (2, shape.heads, 128, shape.head_dim)
    key = (2, shape.kv_heads, 128, shape.head_dim)
    return LayerCalls(
        linear=linear, embedding=tables, attention={(heads, key): layers}, attention_backward=layers // again
    )


@pytest.mark.parametrize("name", ["llama3-8b", "llama2-7b", "qwen2.5-7b", "gpt2-medium", "mpt-1b", "llama3.2-1b"])
@pytest.mark.parametrize("how", [{}, {"again": 2}, {"fused": True}])
def test_a_model_is_known_by_the_shapes_of_its_layers(name: str, how: dict[str, Any]) -> None:
    shape = find_model(name)
    found = model_of_calls(calls_of(shape, **how), shape.params, name="job")
    assert isinstance(found, TracedModel)
    wanted = ("layers", "hidden", "heads", "head_dim", "ffn", "gated", "vocab", "params")
    assert {key: getattr(found.shape, key) for key in wanted} == {key: getattr(shape, key) for key in wanted}
    assert (found.sequence, found.batch) == (128, 2)


def test_what_cannot_be_known_is_said_and_parameters_of_every_type_count() -> None:
    shape = find_model("llama3-8b")
    calls = calls_of(shape)
    for known, parameters, why in (
        (LayerCalls(linear={}, embedding={}, attention={}), 1000, "no call of scaled_dot_product_attention"),
        (calls, None, "not recorded"),
        (LayerCalls(linear=calls.linear, embedding={}, attention=calls.attention), 1000, "no embedding"),
        (LayerCalls(linear={}, embedding=calls.embedding, attention=calls.attention), 1000, "MLP"),
        (calls, shape.params // 2, "ranks hold parts of layers"),
    ):
        found = model_of_calls(known, parameters, name="job")
        assert isinstance(found, Unavailable)
        assert why in found.reason
    kinds = {"float32": {"tensors": 2, "elements": 10, "local_elements": 5}, "bfloat16": {"elements": 7}}
    assert recorded_parameters({"optimizer": {"class": "AdamW", "parameters": kinds}}) == 17
    assert recorded_parameters({}) is None
    assert recorded_parameters({"optimizer": {"parameters": {}}}) is None
