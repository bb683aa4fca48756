"""Bytes that the rank holds, by what for, over the step: every storage from when it is made until it is freed.

Nothing here keeps a storage alive: it is known by its address while it lives. What it is for is seen from where it ends: a
parameter, its gradient, an optimizer's state, what the backward pass needs. Where a script has a device, what is on the
host does not count.
"""

import weakref

KINDS = ("parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "temporary")
MOST_SAMPLES, MOST_BLOCKS = 400, 40
OWN_ROW = 1 << 20
"""Bytes from which on a storage is named at the peak."""
UNIT = 512
"""Bytes in multiples of which a device's allocator gives memory out."""
FIRM = frozenset(["parameters", "optimizer"])


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
    for name in ("__init__", "__setstate__"):
        setattr(torch.nn.Module, name, memory.keeping(getattr(torch.nn.Module, name)))


class Block:
    """One storage. born: operators before it in this step, -1 before the step; phase: in which it was made; whole: of a
    sharded model's parameters, gathered."""

    __slots__ = ("born", "device", "dtype", "kind", "module", "phase", "place", "shape", "size", "whole")


class Memory:
    def __init__(self, session, torch):
        self.session, self.torch = session, torch
        self.live, self.changes, self.base, self.again, self.outputs = {}, [], [], [], []
        self.near = (None, None, False)
        self.modules = weakref.WeakValueDictionary()  # by id: a module may have a hash of its own

    def keeping(self, function):
        """Return a method of modules so that their modules are known."""
        modules = self.modules

        def make(module, *args, **kwargs):
            function(module, *args, **kwargs)
            modules[id(module)] = module

        return make

    def forget(self):
        """Begin a step: what is alive stays."""
        self.classify()
        self.changes, self.again, self.outputs = [], [], []
        self.base = [(block, block.size) for block, _ in list(self.live.values())]
        for block, _ in self.base:
            block.born = -1
            if block.kind in ("activations", "temporary"):
                block.kind = "temporary"  # the script still has it

    # --- what is seen

    def made(self, tensors, origin):
        """Keep the storages of an operator's results. origin: (module, place, whether it is a forward pass again)."""
        if self.again and not origin[2]:
            for block in self.again:
                if block.kind is None:
                    block.kind = "activations"
            self.again = []
        if origin[1] is None:  # of a wrapper's hook: where the backward pass is
            origin = self.near
        self.near = origin
        for tensor in tensors:
            self.seen(tensor, origin)

    def seen(self, tensor, origin=(None, None, False)):
        """Return the block of a tensor, None where it has no bytes."""
        try:
            storage = tensor.untyped_storage()
        except Exception:  # sparse, or a wrapper without a storage
            return None
        key = storage._cdata
        before = self.live.get(key)
        if before is not None:
            return before[0]
        device = getattr(tensor, "fake_device", None) or tensor.device
        if device.type == "meta":
            return None
        recorder = self.session.parts["operators"]
        index = max(0, recorder.position - 1)
        block = Block()
        block.size, block.born, block.phase = storage.nbytes(), index, self.session.phase
        block.kind = None
        block.whole = False
        block.shape, block.dtype, block.device = tensor.shape, tensor.dtype, device.type
        block.module, block.place, again = origin
        if again:
            self.again.append(block)
        self.live[key] = block, weakref.ref(storage, lambda _: self.freed(key))
        self.changes.append((index, block, block.size))
        return block

    def freed(self, key):
        block, _ = self.live.pop(key, (None, None))
        recorder = self.session.parts["operators"]
        recorder.outputs.pop(key, None)  # another storage may get this address
        if block is not None:
            self.changes.append((recorder.position, block, -block.size))
            block.size = 0

    def resized(self, storage):
        block, _ = self.live.get(storage._cdata, (None, None))
        if block is None:
            return
        change = storage.nbytes() - block.size
        self.changes.append((self.session.parts["operators"].position, block, change))
        block.size += change
        block.whole |= change > 0

    def of_call(self, func, args, kwargs, out):
        """Buffers that travel: gathered parameters and gradients to be scattered, buckets."""
        from stepscope_dry.operators import tensors_in

        name = func._schema.name
        gathered = "allgather_base" in name or "reduce_scatter_base" in name
        origin = self.session.parts["operators"].origin()
        for tensor in tensors_in([args, out], self.torch.Tensor):
            block = self.seen(tensor, origin)
            if gathered and block is not None and block.kind is None:
                block.kind = "gathered"

    def of_sharding(self, tensors):
        """What FSDP's own operators gather into and scatter from."""
        for tensor in tensors:
            block = self.seen(tensor)
            if block is not None and block.kind is None:
                block.kind, block.whole = "gathered", True

    def forward_begins(self):
        """What the script made for it are batches."""
        for block, _ in list(self.live.values()):
            if block.kind is None and block.born >= 0 and block.phase in ("before", "other"):
                block.kind = "buffers"

    def returned(self, tensors):
        """What the model gave to the script."""
        self.outputs += [weakref.ref(tensor) for tensor in tensors]

    def backward_begins(self):
        """What the forward pass left is what the backward pass needs, but for results that the script alone holds."""
        for tensor in [output() for output in self.outputs]:
            if tensor is not None and self.held_once(tensor):
                self.seen(tensor).kind = "temporary"
        self.outputs = []
        for block, _ in list(self.live.values()):
            if block.kind is None and block.born >= 0 and block.phase == "forward":
                block.kind = "activations"

    def held_once(self, tensor):
        """Whether neither autograd nor a view holds a tensor beside its variable."""
        count = getattr(tensor, "_use_count", None)  # of newer torch
        if count is None or getattr(tensor, "__tensor_flatten__", None) is not None:
            return False
        return count() == 1 and self.torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2

    def optimizer_begins(self, optimizer):
        for group in optimizer.param_groups:
            self.name_gradients(group["params"])

    def name_gradients(self, parameters):
        for parameter in parameters:
            if parameter.grad is not None:
                self.name(parameter.grad, "gradients")

    # --- what it is for

    def name(self, tensor, kind, module=None):
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is not None:
            for part in flatten()[0]:
                self.name(getattr(tensor, part), kind, module)
            return
        block = self.seen(tensor)
        if block is None or (kind not in FIRM and block.kind in FIRM) or (kind == "parameters" and block.whole):
            return
        block.kind = kind
        block.module = module or block.module

    def roots(self):
        """Modules that are in no other one."""
        modules = list(self.modules.values())
        inner = {id(child) for module in modules for child in module._modules.values()}
        return [module for module in modules if id(module) not in inner]

    def classify(self):
        names, optimizers = self.session.parts["modules"].names, self.session.optimizers
        module_of = {}
        modules = list(self.modules.values())
        for module in modules:
            for parameter in module._parameters.values():
                if parameter is not None:
                    module_of[id(parameter)] = names.get(id(module))
                    self.name(parameter, "parameters", names.get(id(module)))
                    self.name_gradients([parameter])
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self.name(parameter, "parameters")
                    self.name_gradients([parameter])
            for parameter, state in optimizer.state.items():
                self.name_state(state, module_of.get(id(parameter)))
        for module in modules:
            for buffer in module._buffers.values():
                if buffer is not None:
                    self.name(buffer, "buffers", names.get(id(module)))

    def name_state(self, state, module):
        if isinstance(state, self.torch.Tensor):
            self.name(state, "optimizer", module)
        elif isinstance(state, (dict, list, tuple)):
            for value in state.values() if isinstance(state, dict) else state:
                self.name_state(value, module)

    def kind_of(self, block):
        if block.whole and block.kind not in ("gradients", "optimizer"):
            return "gathered"
        return block.kind or ("buffers" if block.born < 0 and block.phase in ("before", "other") else "temporary")

    # --- the record

    def document(self):
        self.classify()
        changes = self.changes
        blocks = {id(block): block for block, _ in self.base}
        blocks.update((id(block), block) for _, block, _ in changes)
        kind = {key: KINDS.index(self.kind_of(block)) for key, block in blocks.items()}
        if any(block.device != "cpu" for block in blocks.values()):
            kind.update((key, None) for key, block in blocks.items() if block.device == "cpu")
        totals = [0] * len(KINDS)
        for block, size in self.base:
            if kind[id(block)] is not None:
                totals[kind[id(block)]] += size
        series, total = [(0, tuple(totals))], sum(totals)
        highest, peak, peak_at, peak_index = total, tuple(totals), 0, 0
        here = (-1, 0)
        for number, (at, block, change) in enumerate(changes, 1):
            place = kind[id(block)]
            if place is None:
                continue
            totals[place] += change
            total += change
            if at == here[0]:
                if total > here[1]:
                    series[-1], here = (at, tuple(totals)), (at, total)
            elif at:
                series.append((at, tuple(totals)))
                here = (at, total)
            if total > highest:
                highest, peak, peak_at, peak_index = total, tuple(totals), at, number
        chosen = thinned(series, peak_at)
        alive = self.alive_at(peak_index, kind)
        op, place = self.maker(peak_at)
        return {
            "at": [at for at, _ in chosen],
            "samples": [list(values) for _, values in chosen],
            "peak": list(peak), "peak_at": peak_at, "peak_op": op, "peak_place": place,
            "peak_rounded": sum(-(-size // UNIT) * UNIT for _, size in alive), "at_peak": rows_of(alive, kind),
        }  # fmt: skip

    def maker(self, at):
        """Return (operator, the user's line) that makes the peak."""
        recorder = self.session.parts["operators"]
        rows = [recorder.rows[row] for row in recorder.order[: at + 1]]
        place = next((row["place"] for row in reversed(rows) if row["place"]), None)
        return (rows[-1]["op"] if rows else None), place

    def alive_at(self, index, kind):
        """Return (block, bytes) of what is alive after so many changes."""
        alive = {id(block): [block, size] for block, size in self.base}
        for _, block, change in self.changes[:index]:
            alive.setdefault(id(block), [block, 0])[1] += change
        return [(block, size) for key, (block, size) in alive.items() if size and kind[key] is not None]


def rows_of(alive, kind):
    """Return what is alive, equal storages as one row, largest first; the small and the many of a kind together."""
    rows = {}

    def add(key, size, count):
        row = rows.setdefault(key, [0, 0])
        row[0] += size
        row[1] += count

    for block, size in alive:
        what = (KINDS[kind[id(block)]],)
        if size >= OWN_ROW:
            what += (tuple(block.shape), str(block.dtype)[6:], block.module, block.place)
        add(what, size, 1)
    named = sorted((key for key in rows if len(key) > 1), key=lambda key: -rows[key][0])
    for key in named[MOST_BLOCKS:]:
        add(key[:1], *rows.pop(key))
    return [
        {"kind": key[0], "size_bytes": size, "count": count, "shape": list(key[1]), "dtype": key[2], "module": key[3],
         "place": key[4]}
        for key, (size, count) in sorted(
            ((key if len(key) > 1 else (*key, (), "", None, None), row) for key, row in rows.items()),
            key=lambda item: -item[1][0],
        )
    ]  # fmt: skip


def thinned(series, peak_at):
    """Return at most so many points of a series: of each stretch the highest, the first, the last and the peak."""
    width = max(1, -(-len(series) // (MOST_SAMPLES - 3)))
    chosen = [max(series[n : n + width], key=lambda point: sum(point[1])) for n in range(0, len(series), width)]
    peak = [point for point in series if point[0] == peak_at][:1]
    return sorted({point[0]: point for point in (*chosen, *peak, series[-1], series[0])}.values())
