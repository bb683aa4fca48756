"""Bytes that the rank holds, by what for, over the step: every storage from when it is made until it is freed."""

import weakref

KINDS = ("parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "temporary")
MOST_SAMPLES, MOST_BLOCKS = 400, 40


def begin(session):
    import torch

    memory = Memory(session, torch)
    session.parts["memory"] = memory
    session.at_step.append(memory.forget)
    resize = torch.UntypedStorage.resize_

    def resize_storage(storage, size):
        out = resize(storage, size)
        if not session.paused:
            memory.resized(storage)
        return out

    torch.UntypedStorage.resize_ = resize_storage
    init = torch.nn.Module.__init__

    def init_module(module, *args, **kwargs):
        init(module, *args, **kwargs)
        memory.modules.add(module)

    torch.nn.Module.__init__ = init_module


class Block:
    """One storage. born: operators before it in this step, -1 before the step; phase, micro: in which it was made."""

    __slots__ = ("born", "dtype", "kind", "micro", "module", "phase", "place", "shape", "size")


class Memory:
    def __init__(self, session, torch):
        self.session, self.torch = session, torch
        self.live, self.changes = {}, []
        self.modules = weakref.WeakSet()
        self.base = []

    def forget(self):
        """Begin a step: what is alive stays."""
        self.changes = []
        self.base = [(block, block.size) for block, _ in self.live.values()]
        for block, _ in self.base:
            block.born = -1

    # --- what is seen

    def made(self, out):
        from stepscope_dry.operators import tensors_in

        for tensor in tensors_in([out], self.torch.Tensor):
            self.seen(tensor)

    def seen(self, tensor, kind=None):
        try:
            storage = tensor.untyped_storage()
        except Exception:  # sparse, or a wrapper without a storage
            return None
        key = storage._cdata
        before = self.live.get(key)
        if before is not None:
            if kind and before[0].kind is None:
                before[0].kind = kind
            return before[0]
        session, recorder = self.session, self.session.parts["operators"]
        block = Block()
        block.size, block.born, block.phase, block.micro = (
            storage.nbytes(),
            recorder.position,
            session.phase,
            session.micro_steps,
        )
        block.kind, block.shape, block.dtype = kind, tuple(tensor.shape), str(tensor.dtype)[6:]
        block.module, block.place = session.parts["modules"].path, None
        if block.size >= 1 << 20:
            block.module, block.place, _ = recorder.origin()
        self.live[key] = block, weakref.ref(storage, lambda _, key=key: self.freed(key))
        self.changes.append((recorder.position, block, block.size))
        return block

    def freed(self, key):
        block, _ = self.live.pop(key, (None, None))
        self.session.parts["operators"].outputs.pop(key, None)  # another storage may get this address
        if block is not None:
            self.changes.append((self.session.parts["operators"].position, block, -block.size))
            block.size = 0

    def resized(self, storage):
        block, _ = self.live.get(storage._cdata, (None, None))
        if block is None:
            return
        size = storage.nbytes()
        self.changes.append((self.session.parts["operators"].position, block, size - block.size))
        block.size, block.kind = size, "parameters" if block.kind == "parameters" else "gathered"

    def of_call(self, func, args, kwargs, out):
        """Buffers that travel: gathered parameters and gradients to be scattered, buckets."""
        from stepscope_dry.operators import tensors_in

        name = func._schema.name
        kind = "gathered" if "allgather_base" in name or "reduce_scatter_base" in name else None
        for tensor in tensors_in([args, out], self.torch.Tensor):
            self.seen(tensor, kind)

    def backward_begins(self):
        """What the forward pass left is what the backward pass needs."""
        for block, _ in self.live.values():
            if block.kind is None and block.born >= 0 and block.phase == "forward":
                block.kind = "activations"

    def optimizer_begins(self, optimizer):
        self.name_gradients()

    def name_gradients(self):
        for parameter in self.parameters():
            if parameter.grad is not None:
                self.kind(parameter.grad, "gradients")

    # --- what it is for

    def local(self, tensor):
        return getattr(tensor, "_local_tensor", tensor)

    def kind(self, tensor, kind):
        block = self.seen(self.local(tensor))
        if block is not None and block.kind not in ("parameters", "optimizer"):
            block.kind = kind

    def roots(self):
        """Modules that are in no other one."""
        modules = list(self.modules)
        inner = {id(child) for module in modules for child in module._modules.values()}
        return [module for module in modules if id(module) not in inner]

    def parameters(self):
        everything = {id(p): p for o in self.session.optimizers for g in o.param_groups for p in g["params"]}
        for module in list(self.modules):
            for parameter in module._parameters.values():
                if parameter is not None:
                    everything[id(parameter)] = parameter
        return everything.values()

    def classify(self):
        for parameter in self.parameters():
            block = self.seen(self.local(parameter))
            if block is not None:
                block.kind = "parameters"
        self.name_gradients()
        for optimizer in self.session.optimizers:
            for state in optimizer.state.values():
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, self.torch.Tensor):
                        self.kind(value, "optimizer")
        for module in list(self.modules):
            for buffer in module._buffers.values():
                if buffer is not None:
                    self.kind(buffer, "buffers")

    def document(self):
        self.classify()
        totals = dict.fromkeys(KINDS, 0)
        for block, size in self.base:
            totals[self.kind_of(block)] += size
        series = [(0, tuple(totals.values()))]
        peak, peak_at, peak_index = sum(totals.values()), 0, 0
        for index, (position, block, change) in enumerate(self.changes):
            totals[self.kind_of(block)] += change
            if position != series[-1][0]:
                series.append((position, tuple(totals.values())))
            else:
                series[-1] = (position, tuple(max(a, b) for a, b in zip(series[-1][1], totals.values())))
            if sum(totals.values()) > peak:
                peak, peak_at, peak_index, peaked = sum(totals.values()), position, index + 1, tuple(totals.values())
        if not peak_index:
            peaked = series[0][1]
        recorder = self.session.parts["operators"]
        row = recorder.rows[recorder.order[min(peak_at, len(recorder.order) - 1)]] if recorder.order else {}
        chosen = thinned(series, peak_at)
        return {
            "at": [position for position, _ in chosen],
            "samples": [list(values) for _, values in chosen],
            "peak": list(peaked), "peak_at": peak_at, "peak_op": row.get("op"), "peak_place": row.get("place"),
            "at_peak": self.blocks_at(peak_index),
        }  # fmt: skip

    def kind_of(self, block):
        return block.kind or ("buffers" if block.born < 0 or block.phase in ("before", "other") else "temporary")

    def blocks_at(self, index):
        """Return what is alive after so many changes, equal storages as one row, largest first."""
        alive = {id(block): [block, size] for block, size in self.base}
        for _, block, change in self.changes[:index]:
            alive.setdefault(id(block), [block, 0])[1] += change
        rows = {}
        for block, size in alive.values():
            if size:
                key = (self.kind_of(block), block.shape, block.dtype, block.module, block.place)
                row = rows.setdefault(key, [0, 0])
                row[0] += size
                row[1] += 1
        largest = sorted(rows.items(), key=lambda item: -item[1][0])[:MOST_BLOCKS]
        return [
            {"kind": key[0], "size_bytes": size, "count": count, "shape": list(key[1]), "dtype": key[2], "module": key[3],
             "place": key[4]}
            for key, (size, count) in largest
        ]  # fmt: skip


def thinned(series, peak_at):
    """Return at most so many points of a series: of each stretch the highest."""
    width = max(1, -(-len(series) // MOST_SAMPLES))
    chosen = [max(series[n : n + width], key=lambda point: sum(point[1])) for n in range(0, len(series), width)]
    return sorted({point[0]: point for point in (series[0], *chosen, series[-1])}.values())
