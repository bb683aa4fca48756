"""What the user wants to know otherwise: sharded parameters that stay whole, activations that are kept or computed again."""

import functools
import inspect


def begin(session):
    changes = session.options.get("changes") or {}
    if "reshard" in changes:
        reshard(session, changes["reshard"] == "yes")
    if "recompute" in changes:
        recompute(session) if changes["recompute"] == "full" else keep_activations()


def reshard(session, after_forward):
    """Have FSDP give its parameters back after the forward pass, or keep them for the backward pass."""
    try:
        import torch.distributed.fsdp as fsdp
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    except ImportError:
        return
    shard = getattr(fsdp, "fully_shard", None)
    if shard is not None:

        @functools.wraps(shard)
        def sharded(module, *args, **named):
            named["reshard_after_forward"] = after_forward
            return shard(module, *args, **named)

        fsdp.fully_shard = sharded
        try:
            import torch.distributed._composable.fsdp as former

            former.fully_shard = sharded
        except ImportError:
            pass
    whole = {ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, None}
    construct = FullyShardedDataParallel.__init__

    @functools.wraps(construct)
    def wrap(self, module, process_group=None, sharding_strategy=None, *args, **named):
        if sharding_strategy in whole:
            sharding_strategy = ShardingStrategy.FULL_SHARD if after_forward else ShardingStrategy.SHARD_GRAD_OP
        return construct(self, module, process_group, sharding_strategy, *args, **named)

    FullyShardedDataParallel.__init__ = wrap


def recompute(session):
    """Have each block of the model compute its activations again: the entries of its longest list of modules."""
    import torch
    from torch.utils.checkpoint import checkpoint

    call, seen = torch.nn.Module.__call__, []

    def called(module, *args, **named):
        if not seen and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
            seen.append(True)
            for block in blocks_of(torch, module):
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        return call(module, *args, **named)

    torch.nn.Module.__call__ = called


def keep_activations():
    """Have what the script gives to torch's checkpointing run as it is."""
    import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper
    import torch.utils.checkpoint as module

    options = set(inspect.signature(module.checkpoint).parameters) - {"function", "args", "kwargs"}
    options |= {"preserve_rng_state"}  # taken from its keywords

    def plain(function, *args, **named):
        return function(*args, **{name: value for name, value in named.items() if name not in options})

    module.checkpoint = wrapper.torch_utils_checkpoint = plain


def blocks_of(torch, module):
    """Return the blocks of a model: the entries of the list, or of the sequence, that holds most of its parameters."""
    lists = [m for m in module.modules() if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)) and len(m) > 1]
    largest = max(lists, key=lambda m: (sum(p.numel() for p in m.parameters()), len(m)), default=())
    return list(largest)
