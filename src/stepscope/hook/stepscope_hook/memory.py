"""With --memory: the history of the CUDA allocator, and snapshots: at an out-of-memory error, and after a window.

A snapshot is torch's own (torch.cuda.memory._dump_snapshot) with one more key, ``stepscope``: which rank and step it is
of, and which addresses are parameters, gradients, buffers and optimizer state.
"""

import gc
import os
import pickle

from stepscope_hook.control import identity, say
from stepscope_hook.modules import outermost

MOST_EVENTS = 200000
"""So many events of the history are kept; older ones are dropped. Each has about 100 bytes in a snapshot, plus its stack."""
MOST_FAILURES = 8
"""So many snapshots are taken at out-of-memory errors: a job that searches its batch size goes on after them."""


class Recording:
    """The history of one process. steps: the counter of its steps."""

    def __init__(self, steps):
        self.steps = steps
        self.control = steps.control
        self.on = False
        self.observed = False
        self.failures = 0

    def when_cuda_begins(self):
        """Begin as the job first uses CUDA: CUDA must not be initialised before the job does it, it could not fork then."""
        import torch

        torch.cuda._lazy_call(self.begin)

    def begin(self):
        """Begin the history; ``on`` is true where it is kept from here on."""
        import torch

        try:
            os.makedirs(self.folder(), exist_ok=True)
            torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=MOST_EVENTS)
            if not self.observed:
                torch._C._cuda_attach_out_of_memory_observer(self.out_of_memory)
                self.observed = True
            self.on = True
        except Exception as error:  # a job without its memory's history is still a job
            say("no memory history: {}: {}".format(type(error).__name__, error))

    def end(self):
        import torch

        self.on = False
        torch.cuda.memory._record_memory_history(None)

    def folder(self):
        return os.path.join(self.control.output, "memory")

    def out_of_memory(self, device, requested, capacity, free):
        """Save the history. torch calls this before it raises; the job may catch that error and go on."""
        if not self.on or os.getpid() != self.control.pid or self.failures >= MOST_FAILURES:
            return
        self.failures += 1
        facts = {"device": device, "requested_bytes": requested, "capacity_bytes": capacity, "free_bytes": free}
        problem = self.save("oom", facts)
        if problem:
            say("no snapshot of this out-of-memory error: " + problem)

    def save(self, name, facts):
        """Write NAME-rank-R.pickle; return the reason where it cannot be written."""
        import torch

        self.on = False  # an allocation that fails in here takes no snapshot
        try:
            rank, world = identity()
            snapshot = torch.cuda.memory._snapshot()
            snapshot["stepscope"] = dict(
                facts, rank=rank, world_size=world, host=self.control.host, step=self.steps.count, tensors=tensors()
            )
            final = os.path.join(self.folder(), "{}-rank-{:05d}.pickle".format(name, rank))
            with open(final + ".part", "wb") as file:
                pickle.dump(snapshot, file, protocol=4)
            os.replace(final + ".part", final)
        except Exception as error:  # the job goes on, or fails with its own error
            return "{}: {}".format(type(error).__name__, error)
        finally:
            self.on = True


def tensors():
    """Return [device, address, kind, name] of the CUDA storages that modules and optimizers of this process refer to."""
    import torch

    storages = {}

    def add(tensor, kind, name):
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        try:
            if isinstance(local, torch.Tensor) and local.is_cuda:
                storages.setdefault((local.device.index, local.untyped_storage().data_ptr()), (kind, name))
        except Exception:  # a tensor without storage: that one stays unknown
            return

    names = {}
    modules, optimizers = _of_kind(torch.nn.Module, torch.optim.Optimizer)
    for root in outermost(modules):
        for prefix, module in root.named_modules():
            for kind in ("parameter", "buffer"):
                for name, tensor in list(getattr(module, "_{}s".format(kind)).items()):
                    whole = "{}.{}".format(prefix, name) if prefix else name
                    names.setdefault(id(tensor), whole)
                    add(tensor, kind, whole)
                    if kind == "parameter":
                        add(_gradient(tensor), "gradient", whole)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                name = names.get(id(tensor), "")
                add(tensor, "parameter", name)
                add(_gradient(tensor), "gradient", name)
                state = optimizer.state.get(tensor)
                for value in state.values() if isinstance(state, dict) else ():
                    add(value, "optimizer", name)
    return [[device, address, kind, name] for (device, address), (kind, name) in storages.items()]


def _gradient(parameter):
    """Return the gradient, or None of a parameter that is a view: torch warns where its gradient is read."""
    return parameter.grad if parameter is not None and parameter.is_leaf else None


def _of_kind(*kinds):
    """Return one list of living objects for each class."""
    lists = tuple([] for _ in kinds)
    for instance in gc.get_objects():
        for kind, objects in zip(kinds, lists):
            if issubclass(type(instance), kind):
                objects.append(instance)
    return lists
