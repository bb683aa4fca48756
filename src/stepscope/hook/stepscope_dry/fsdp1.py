"""Wrappers that shard: what they read of a tensor's storage has an answer, and the record says which of them there were.

FullyShardedDataParallel, ``fully_shard`` and ZeroRedundancyOptimizer are torch's own, on streams that only remember.
"""

import torch


def begin(session):
    """Give storages without data an address each: wrappers compare them to see what shares memory, and what is freed."""
    from torch._subclasses.fake_tensor import FakeTensor

    session.parts["sharding"] = Sharding(session)
    address = torch.UntypedStorage.data_ptr

    def storage_address(storage):
        if storage.device.type != "meta":
            return address(storage)
        return storage._cdata if storage.nbytes() else 0

    def tensor_address(tensor):
        start = storage_address(tensor.untyped_storage())
        return start and start + tensor.storage_offset() * tensor.element_size()

    torch.UntypedStorage.data_ptr, FakeTensor.data_ptr = storage_address, tensor_address
    data = torch.Tensor.data

    def set_data(tensor, value):
        data.__set__(tensor, value)
        if isinstance(value, FakeTensor) and isinstance(tensor, FakeTensor):
            tensor.fake_device = value.fake_device  # torch leaves it where it was

    FakeTensor.data = property(data.__get__, set_data)


class Sharding:
    """Which wrappers a script uses, and how, as they are found at its end: nothing of them is imported for it."""

    def __init__(self, session):
        self.session = session

    def finish(self):
        session = self.session
        for module in list(session.parts["memory"].modules.values()):
            names = {kind.__name__ for kind in type(module).__mro__}
            if "FullyShardedDataParallel" in names:
                policy = module.mixed_precision
                session.wrapper("fsdp1", strategy=module.sharding_strategy.name, **dtypes_of(policy))
            elif "FSDPModule" in names:
                self.of_fully_shard(module._get_fsdp_state())
        for optimizer in session.optimizers:
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                session.wrapper("zero1", parameters_as_bucket_view=optimizer.parameters_as_bucket_view)

    def of_fully_shard(self, state):
        group = state._fsdp_param_group
        if group is None:
            return
        root = state._is_root
        reshard = group.post_forward_mesh_info is not None
        settings = dtypes_of(group.mp_policy)
        if not root or "fsdp2.reshard_after_forward" not in self.session.settings:
            settings["reshard_after_forward"] = reshard  # the root never is: it is needed at once
        self.session.wrapper("fsdp2", **settings)


def dtypes_of(policy):
    """Return the types of a policy of mixed precision, as far as it has any."""
    dtypes = {name: getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype")}
    return {name: str(dtype)[6:] for name, dtype in dtypes.items() if dtype is not None}
