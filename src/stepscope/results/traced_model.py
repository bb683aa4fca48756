"""The traces of a job -> the dimensions of its transformer, checked against the parameters that its optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.predict.step.model import ModelShape
from stepscope.traces.layer_calls import LayerCalls

OFF = 0.02
"""Parameters by the dimensions and those of the optimizer agree within this share: biases are in the latter alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """shape: of the model; parameters: of the optimizer. sequence, batch: of one micro-batch of one rank."""

    shape: ModelShape
    parameters: int
    sequence: int
    batch: int


def recorded_parameters(facts: Mapping[str, Any]) -> int | None:
    """Elements that the optimizer holds, of ``stepscope.model`` in a trace; None: not recorded."""
    held = facts.get("optimizer")
    kinds = held.get("parameters") if isinstance(held, Mapping) else None
    if not isinstance(kinds, Mapping):
        return None
    found = sum(int(each.get("elements", 0)) for each in kinds.values() if isinstance(each, Mapping))
    return found or None


def model_of_calls(calls: LayerCalls, parameters: int | None, *, name: str) -> TracedModel | Unavailable:
    """The transformer whose layers made these calls; Unavailable with what cannot be known."""
    if not calls.attention:
        return Unavailable(
            "no call of scaled_dot_product_attention with its shapes is in the traces, so layers, heads and their width are "
            "unknown: the model is not a transformer, or computes its attention in another way"
        )
    if parameters is None:
        return Unavailable("the optimizer's parameters are not recorded, so dimensions could not be checked")
    (query, key), layers_called = max(calls.attention.items(), key=lambda each: each[1])
    batch, heads, sequence, width = query
    tables = {(rows, wide): n for (rows, wide), n in calls.embedding.items() if rows > 1}
    if not tables:
        return Unavailable("no embedding of tokens is in the traces, so vocabulary and width of the model are unknown")
    (vocab, hidden), passes = max(tables.items(), key=lambda each: each[0][0])
    again = max(1, round(sum(calls.attention.values()) / calls.attention_backward)) if calls.attention_backward else 1
    layers = round(layers_called / passes / again)
    found = list(
        _candidates(
            calls, name=name, vocab=vocab, hidden=hidden, heads=heads, width=width, key_heads=key[1],
            positions=_positions(tables, vocab, hidden), layers=layers,
        )
    )  # fmt: skip
    if not found:
        return Unavailable(
            f"attention of {heads} heads x {width} and an embedding {vocab} x {hidden} are seen, and no two linear layers "
            f"from {hidden} and back that would be an MLP: its width is unknown"
        )
    best = min(found, key=lambda shape: abs(shape.params - parameters))
    if abs(best.params / parameters - 1) > OFF:
        return Unavailable(
            f"the shapes seen make {best.layers} layers of {best.hidden} with an MLP of {best.ffn}, {best.params:,} "
            f"parameters, and the optimizer holds {parameters:,}: another kind of model, or ranks hold parts of layers"
        )
    return TracedModel(shape=best, parameters=parameters, sequence=sequence, batch=batch)


def _positions(tables: Mapping[tuple[int, int], int], vocab: int, hidden: int) -> int:
    """Rows of a learned position table; 0: none."""
    return max((rows for rows, wide in tables if wide == hidden and rows != vocab), default=0)


def _candidates(
    calls: LayerCalls, *, name: str, vocab: int, hidden: int, heads: int, width: int, key_heads: int, positions: int,
    layers: int,
) -> Iterator[ModelShape]:  # fmt: skip
    """What these calls may be: repeated keys hide how few heads they have, a tied head makes no difference to a call."""
    back = {n for out, n in calls.linear if out == hidden and {(n, hidden), (2 * n, hidden)} & calls.linear.keys()}
    ways = [(n, (2 * n, hidden) in calls.linear or _twice(calls, n, hidden)) for n in sorted(back)]
    fewer = {out // width for out, n in calls.linear if n == hidden and not out % width and out // width <= heads}
    for (ffn, gated), kv_heads, tied in product(ways, fewer | {key_heads}, (False, True)):
        yield ModelShape(
            name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=width, ffn=ffn,
            gated=gated, vocab=vocab, tied=tied, positions=positions, source="shapes in the traces",
        )  # fmt: skip


def _twice(calls: LayerCalls, ffn: int, hidden: int) -> bool:
    """Whether as many layers go up, twice, as come back."""
    return calls.linear.get((ffn, hidden), 0) >= 2 * calls.linear[hidden, ffn]
