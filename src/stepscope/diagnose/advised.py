"""Every change of a job that a verdict, or a rule on traces, can advise: its key, and of which jobs it may be said.

``tests/advice`` has for each of them a small job to which it is applied, or says by its conditions why no CPU can try it.
What is only looked at (``rule.inspect``) changes nothing and has no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Condition = Literal[
    "gpu",
    "torch",
    "nccl",
    "eager",
    "compiler",
    "replicated",
    "no pipeline",
    "no split sequence",
    "several hosts",
    "trains",
    "infers",
    "no graphs",
    "micro-steps",
    "room for workers",
    "workers that end",
    "pageable batches",
    "unhooked",
    "unfused",
    "regathers",
    "unfrozen",
    "low precision",
]

STRICT: frozenset[Condition] = frozenset({"nccl", "infers"})
"""Conditions that have to be known to hold: where the fact is missing, the advice may end the job."""

ADVICE: Mapping[str, tuple[Condition, ...]] = {
    # data
    "loader workers": ("room for workers",),
    "keep workers": ("workers that end",),
    "pin batches": ("pageable batches",),
    "cheaper loading": (),
    "loader": (),
    "augment on the device": ("gpu",),
    "shares of the data": (),
    # communication of replicas
    "wrap in ddp": ("replicated",),
    "async reductions": (),
    "accumulate": (
        "torch",
        "trains",
    ),
    "smaller messages": ("nccl", "unhooked"),
    "bucket size": ("replicated",),
    "larger messages": (),
    "larger micro-batch": (
        "torch",
        "trains",
    ),
    "larger batch": ("gpu", "infers"),
    # sharded models: on CPUs nothing overlaps, and a split root took 1.6 times as long as a whole one (2026-11)
    "forward prefetch": ("gpu",),
    "backward prefetch": ("gpu",),
    "larger units": (),
    "keep gathered": ("regathers",),
    "split root": ("gpu",),
    "wrap blocks": ("gpu",),
    "less copying": ("gpu",),
    "no offload": ("gpu",),
    "gather in bf16": ("gpu",),
    # split models: on CPUs interleaved stages took 1.7 times as long, twice as many micro-batches 0.9 to 1.5 times (2026-11)
    "group on one host": ("several hosts",),
    "split sequence": ("gpu", "no split sequence"),
    "smaller tensor group": (),
    "overlap the exchange": ("gpu",),
    "micro-batches": ("gpu", "trains"),
    "interleave stages": ("gpu", "trains"),
    "balance stages": (),
    "fewer stages": ("gpu",),
    "balance experts": ("gpu",),
    # computation
    "compile": ("torch", "eager", "compiler"),
    "cuda graphs": ("torch", "gpu", "no graphs"),
    "more in graphs": ("gpu",),
    "fused optimizer": ("torch", "trains", "unfused"),
    "larger kernels": ("gpu",),
    "fewer waits for the device": (
        "torch",
        "gpu",
    ),
    "cached memory": (
        "torch",
        "gpu",
    ),
    "other copies": ("gpu",),
    "tf32": ("torch", "gpu", "low precision"),
    "autocast": (
        "torch",
        "gpu",
    ),
    "channels last": (
        "torch",
        "gpu",
    ),
    "less python": (),
    # events and ranks
    "even work": (),
    "inference mode": ("torch",),
    "rare evaluation": (),
    "async checkpoint": (),
    "rare checkpoint": (),
    "freeze garbage": ("unfrozen",),
    "rare collections": (),
    "static shapes": (),
    "fewer threads": (),
    "fewer ranks": (),
    "torchrun": (),
    # hosts
    "host clocks": ("several hosts",),
    "without the host": ("several hosts",),
}
"""Key -> what has to hold of the job; the topics of ``frameworks.OPTIONS`` are among them."""
