"""Collectives as operators of torch.distributed: their name, their bytes (in the sense of nccl-tests), group and result."""

OPS = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce", "all_reduce_coalesced_": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "allgather_coalesced_": "all_gather", "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast_": "broadcast", "broadcast": "broadcast", "reduce_": "reduce", "gather_": "gather", "scatter_": "scatter",
    "send": "send", "recv_": "recv", "recv_any_source_": "recv", "isend": "send", "irecv": "recv", "barrier": "barrier",
    "monitored_barrier_": "barrier",
}  # fmt: skip
"""Name of torch's operator -> the collective."""

ALL_RANKS = ("all_gather", "reduce_scatter", "gather", "scatter")
"""Collectives whose size is that of all ranks' parts together."""


def of_collective(func, args, kwargs, kind):
    """Return the facts of a call; ``{"op": "wait", "tensor": ..}`` for a wait; None for another operator."""
    import torch.distributed as dist

    from stepscope_dry.operators import tensors_in

    name = func._schema.name.split("::")[-1]
    values = dict(zip([argument.name for argument in func._schema.arguments], args))
    values.update(kwargs)
    if name == "wait_tensor":
        return {"op": "wait", "tensor": values["tensor"]}
    op = OPS.get(name)
    if op is None:
        return None
    group = values.get("process_group", values.get("group_name", values.get("group")))
    functional = "process_group" not in values
    if not functional:
        group = boxed_group(group)
    tensors = tensors_in(list(values.values()), kind)
    given = tensors_in([v for key, v in values.items() if "output" not in key and key != "out"], kind) or tensors
    size, dtype = sum(t.numel() * t.element_size() for t in given), given[0].dtype
    made = tensors_in([v for key, v in values.items() if "output" in key], kind)
    if op in ALL_RANKS:
        sizes = [t.numel() * t.element_size() for t in made]
        size = max(size, sum(sizes)) if sizes else size * (resolved(group).size() if op == "all_gather" else 1)
    if op == "barrier":
        size = 0
    asynchronous = functional or bool(values.get("async_op", op not in ("send", "recv")))
    peer = values.get("dst", values.get("src")) if op in ("send", "recv") else None
    if peer is not None:
        peer = dist.get_global_rank(resolved(group), peer)
    return {
        "op": op, "size_bytes": size, "dtype": str(dtype)[6:], "group": group, "asynchronous": asynchronous,
        "results": [] if functional else tensors, "peer": peer, "given": given,
        "made": made or ([] if functional else given),
    }  # fmt: skip


def boxed_group(boxed):
    """Return the process group in an argument of c10d's operators."""
    from torch._C._distributed_c10d import ProcessGroup

    return boxed if isinstance(boxed, ProcessGroup) else ProcessGroup.unbox(boxed)


def resolved(group):
    """Return a process group by its name, which functional collectives are given."""
    from torch.distributed import distributed_c10d as c10d

    return c10d._resolve_process_group(group) if isinstance(group, str) else group
