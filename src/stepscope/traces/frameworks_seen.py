"""Which frameworks a job uses, as far as its trace says."""

from __future__ import annotations

from stepscope.traces.events import Events, TraceMeta

_BY_MODULE = {
    "accelerate": "accelerate", "transformers": "transformers", "lightning": "lightning", "pytorch_lightning": "lightning",
    "deepspeed": "deepspeed", "megatron": "megatron", "torchtitan": "torchtitan",
}  # fmt: skip
"""Package whose objects the hook of `stepscope profile` saw in use -> framework."""

_TRAINER = "transformers.Trainer"
"""Models of that package train in loops of all kinds; the options of its trainer are those of its trainer's jobs."""

_BY_NAME = (
    ("fsdp2", "FSDP::"), ("fsdp1", "FullyShardedDataParallel."), ("ddp", "DistributedDataParallel."),
    ("lightning", "[pl]["), ("megatron", "megatron/"), ("torchtitan", "torchtitan/"), ("deepspeed", "deepspeed/"),
    ("transformers", "transformers/trainer.py"),
)  # fmt: skip
"""Framework, and how its annotations and (with stacks) the files of its functions begin."""


_WRAPS = {
    "lightning": ("transformers", "accelerate"), "transformers": ("accelerate",), "megatron": ("transformers", "accelerate"),
    "torchtitan": ("transformers", "accelerate"),
}  # fmt: skip
"""Framework that runs the training loop -> those that it uses or imports inside: their options are not the job's."""


def frameworks_of(events: Events, meta: TraceMeta) -> tuple[str, ...]:
    """Keys of frameworks, sorted: by whose objects the job's hook saw alive, what it wraps its model in, and the names of
    its events. What is merely imported is not in use: a record without the objects names none of these."""
    model = meta.stepscope.get("model")
    facts = model if isinstance(model, dict) else {}
    objects = facts.get("objects")
    used = {str(each) for each in objects} if isinstance(objects, list) else set()
    packages = {each.partition(".")[0] for each in used}
    if _TRAINER not in used:
        packages.discard("transformers")
    found = {_BY_MODULE[name] for name in packages if name in _BY_MODULE}
    found |= {key for key, fact in (("ddp", "ddp"), ("fsdp1", "fsdp"), ("fsdp2", "fsdp2")) if facts.get(fact)}
    for key, begins in _BY_NAME:
        if key not in found and any(name.startswith(begins) for name in events.names):
            found.add(key)
    inside = {key for outer, keys in _WRAPS.items() if outer in found for key in keys}
    return tuple(sorted(found - inside))
