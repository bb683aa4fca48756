"""What the job is made of: model, wrappers, loaders, frameworks. Read once a window, outside its steps."""

import gc
import sys

FRAMEWORKS = (
    "accelerate", "transformers", "lightning", "pytorch_lightning", "deepspeed", "megatron", "torchtitan", "colossalai",
    "apex", "transformer_engine", "flash_attn", "xformers", "trl", "peft", "nanotron", "composer", "ray",
)  # fmt: skip


def model_facts(optimizer):
    """JSON-able facts; a part that cannot be read is left out."""
    facts = {"frameworks": frameworks()}
    if optimizer is not None:
        facts["optimizer"] = optimizer_facts(optimizer)
    facts.update(wrappers())
    return facts


def frameworks():
    """Name -> version of what the job has imported."""
    found = {}
    for name in FRAMEWORKS:
        module = sys.modules.get(name)
        if module is not None:
            version = getattr(module, "__version__", None)
            found[name] = version if isinstance(version, str) else None
    return found


def optimizer_facts(optimizer):
    counts = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            kind = str(parameter.dtype).replace("torch.", "")
            entry = counts.setdefault(kind, {"tensors": 0, "elements": 0, "local_elements": 0})
            entry["tensors"] += 1
            entry["elements"] += parameter.numel()
            entry["local_elements"] += local.numel()
    return {"class": type(optimizer).__name__, "parameters": counts}


def wrappers():
    """DDP, FSDP and the data loader with the settings that matter to the step's time."""
    import torch

    ddp = torch.nn.parallel.DistributedDataParallel
    fsdp1 = _loaded("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
    fsdp2 = _loaded("torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule") or _loaded(
        "torch.distributed._composable.fsdp.fully_shard", "FSDPModule"
    )
    loader = torch.utils.data.DataLoader
    found = {"ddp": [], "fsdp": [], "fsdp2": [], "loaders": []}
    for each in gc.get_objects():
        kind = type(each)
        if not isinstance(kind, type):
            continue
        if issubclass(kind, ddp):
            found["ddp"].append(_ddp(each))
        elif fsdp1 is not None and issubclass(kind, fsdp1):
            found["fsdp"].append(_attributes(each, ("sharding_strategy", "forward_prefetch", "limit_all_gathers",
                                                    "backward_prefetch")))  # fmt: skip
        elif fsdp2 is not None and issubclass(kind, fsdp2):
            found["fsdp2"].append({"class": kind.__name__})
        elif issubclass(kind, loader):
            found["loaders"].append(_attributes(each, ("num_workers", "pin_memory", "prefetch_factor", "batch_size",
                                                       "persistent_workers")))  # fmt: skip
    return {name: {"count": len(each), "first": each[0]} for name, each in found.items() if each}


def _ddp(module):
    facts = _attributes(module, ("find_unused_parameters", "gradient_as_bucket_view", "static_graph"))
    cap = getattr(module, "bucket_bytes_cap", None)
    return dict(facts, bucket_cap_bytes=cap if isinstance(cap, int) else None)


def _loaded(module, name):
    return getattr(sys.modules.get(module), name, None)


def _attributes(each, names):
    values = {name: getattr(each, name, None) for name in names}
    plain = (bool, int, float, str, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}
