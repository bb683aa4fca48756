"""``stepscope bench --model``: the matrix that stands for a few options."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from stepscope.config.yaml_loader import Document, parse_yaml
from stepscope.core.errors import UsageError
from stepscope.launch.join import joined_world
from stepscope.machine.collect import collect
from stepscope.matrix.machine import machine_of
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import PREFIX, own_names

if TYPE_CHECKING:
    from stepscope.cli.commands.bench import Bench

T = TypeVar("T")

BATCH = 32
BUDGET_S = 20


def model_matrix(options: Bench) -> Document:
    """One cell on one rank, and the collective strategies on 2, 4, ... ranks. Raises UsageError for what is misspelled."""
    assert options.model is not None
    key = f"{PREFIX}{options.model.removeprefix(PREFIX)}"
    own_names(key)
    strategies = _listed("--strategies", options.strategies or "single,ddp", str)
    ranks = _listed("--ranks", options.ranks, _count) if options.ranks else default_ranks()
    alone = [name for name in strategies if not STRATEGIES.load(name).collective]
    several = [name for name in strategies if name not in alone]
    parts = [
        {"axes": {"strategy": names, "world_size": worlds}}
        for names, worlds in (
            (alone, [n for n in ranks if n == 1]),
            (several, [n for n in ranks if n > 1 or not alone]),
        )
        if names and worlds
    ]
    if not parts:
        raise UsageError(f"{', '.join(strategies)} cannot run on {', '.join(map(str, ranks))} ranks")
    base: dict[str, object] = {
        "workload": key,
        "micro_batch": options.batch or BATCH,
        "steps": "auto",
    }
    if options.input is not None:
        base["dataset_options"] = {"input": options.input}
    document = {"version": 1, "base": base, "include": parts, "measure": {"budget_s": BUDGET_S}}
    return parse_yaml(json.dumps(document), source=".".join(own_names(key)))


def default_ranks() -> list[int]:
    """1, 2, 4, ... up to the GPUs, or the cores where there are none, and that number itself; a launched world's size."""
    joined = joined_world(os.environ)
    if joined is not None:
        return [joined[1]]
    machine = machine_of(collect(remember=True))
    most = max(2, machine.num_gpus or machine.usable_cores)
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def _listed(option: str, text: str, read: Callable[[str], T]) -> list[T]:
    try:
        found = [read(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        raise UsageError(f"{option} {text!r}: expected whole numbers, such as {option} 1,2") from None
    if not found:
        raise UsageError(f"{option} is empty")
    return found


def _count(word: str) -> int:
    if (number := int(word)) < 1:
        raise ValueError(word)
    return number
