"""Weights by the shapes of recorded inputs."""

from __future__ import annotations

from tests.hand_events import op, trace

from stepscope.traces.operators import layer_calls


def test_calls_by_the_shapes_of_their_weights_each_counted_once() -> None:
    found = layer_calls(
        trace(
            op("aten::embedding", 0, 10, dims="[[1000, 64], [2, 16], [], [], []]"),
            op("aten::linear", 10, 30, dims="[[2, 16, 64], [256, 64], [256]]"),
            op("aten::addmm", 12, 28, dims="[[256], [32, 64], [64, 256], [], []]"),  # what the linear layer calls
            op("aten::addmm", 30, 40, dims="[[192], [32, 64], [64, 192], [], []]"),  # a layer of its own
            op("aten::scaled_dot_product_attention", 40, 50, dims="[[2, 4, 16, 16], [2, 2, 16, 16], [2, 2, 16, 16]]"),
            op("aten::_scaled_dot_product_flash_attention_for_cpu_backward", 80, 90),
            op("aten::linear", 50, 60, dims="[[], []]"),
            op("aten::linear", 60, 70),
        ).events
    )
    assert found.linear == {(256, 64): 1, (192, 64): 1}
    assert found.embedding == {(1000, 64): 1}
    assert found.attention_backward == 1
    assert found.attention == {((2, 4, 16, 16), (2, 2, 16, 16)): 1}
