"""Which frameworks a job uses, as far as its trace says."""

from __future__ import annotations

from stepscope.traces.events import Events, TraceMeta

_BY_MODULE = {
    "accelerate": "accelerate", "transformers": "transformers", "lightning": "lightning", "pytorch_lightning": "lightning",
    "deepspeed": "deepspeed", "megatron": "megatron", "torchtitan": "torchtitan",
}  # fmt: skip
"""Imported module, as `stepscope profile` records it -> framework."""

_BY_NAME = (
    ("fsdp2", "FSDP::"), ("fsdp1", "FullyShardedDataParallel."), ("ddp", "DistributedDataParallel."),
    ("lightning", "[pl]["), ("megatron", "megatron/"), ("torchtitan", "torchtitan/"), ("deepspeed", "deepspeed/"),
    ("transformers", "transformers/trainer.py"),
)  # fmt: skip
"""Framework, and how its annotations and (with stacks) the files of its functions begin."""


def frameworks_of(events: Events, meta: TraceMeta) -> tuple[str, ...]:
    """Keys of frameworks, sorted: by what the job imported and wraps its model in, and by the names of its events."""
    model = meta.stepscope.get("model")
    facts = model if isinstance(model, dict) else {}
    imported = facts.get("frameworks")
    found = {_BY_MODULE[name] for name in imported if name in _BY_MODULE} if isinstance(imported, dict) else set()
    found |= {key for key, fact in (("ddp", "ddp"), ("fsdp1", "fsdp"), ("fsdp2", "fsdp2")) if facts.get(fact)}
    for key, begins in _BY_NAME:
        if key not in found and any(name.startswith(begins) for name in events.names):
            found.add(key)
    return tuple(sorted(found))
