"""Every operator of the step, as its dispatcher sees it: shapes, FLOP, bytes, where it comes from, in the host's order."""

import re
import sys

from stepscope_dry.collectives import of_collective

NO_KERNEL = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided _unsafe_view detach alias lift_fresh set_ resize_ "
    "_reshape_alias sym_size sym_stride sym_numel is_same_size _local_scalar_dense record_stream".split()
)
"""Operators that run nothing on a device, beside views."""

READ_WHAT_THEY_WRITE = frozenset("embedding index_select gather index slice_scatter select_scatter".split())
"""Operators that read as much of their first argument as they write."""

EVALUATIONS = 64
"""Shapes of inputs for which one module is evaluated."""

WRAPPED = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")


def begin(session):
    import torch

    recorder = Recorder(session)
    session.parts["operators"] = recorder
    session.at_step.append(recorder.forget)
    session.parts["modules"] = modules = Modules(session, torch)
    recorder.modules = modules
    recorder.mode = mode_of(recorder)


class Modules:
    """The modules that are being called, outermost first, by their path."""

    def __init__(self, session, torch):
        self.session = session
        self.names, self.answers, self.trained = {}, {}, {}
        self.stack = []
        self.torch = torch
        self.grad = torch.is_grad_enabled
        plain = torch.nn.Module.__call__
        modules, memory = self, session.parts["memory"]

        def call_module(module, *args, **kwargs):
            if session.paused:
                return plain(module, *args, **kwargs)
            if not (modules.stack or module.training or modules.grad()) and modules.evaluates(module):
                return modules.once(plain, module, args, kwargs)
            began = modules.push(module, args, kwargs)
            try:
                out = plain(module, *args, **kwargs)
            finally:
                modules.pop(began)
            if not modules.stack and session.phase == "forward":
                memory.returned(tensors_in([out], torch.Tensor))
            return out

        torch.nn.Module.__call__ = call_module

    def evaluates(self, module):
        """Whether a module that is called to evaluate is one that is trained: that is no part of a step. Before the first
        step, every module."""
        if not self.session.step:
            return True
        if id(module) not in self.trained:
            stepped = {id(p) for o in self.session.optimizers for group in o.param_groups for p in group["params"]}
            self.trained[id(module)] = any(id(parameter) in stepped for parameter in module.parameters())
        return self.trained[id(module)]

    def once(self, plain, module, args, kwargs):
        """Evaluate for inputs of these shapes once, unrecorded; after many shapes (it generates) answer as the last time."""
        from torch.utils._pytree import tree_flatten

        session = self.session
        leaves, form = tree_flatten((args, kwargs))
        shapes = [
            (leaf.shape, leaf.dtype) if isinstance(leaf, self.torch.Tensor) else repr(leaf)[:80] for leaf in leaves
        ]
        answers, key = self.answers.setdefault(id(module), {}), (str(form), str(shapes))
        if key not in answers:
            if len(answers) >= EVALUATIONS:
                return list(answers.values())[-1]
            session.note("evaluation", "the model is evaluated here, which is outside the step", session.place())
            session.paused += 1
            try:
                answers[key] = plain(module, *args, **kwargs)
            finally:
                session.paused -= 1
        return answers[key]

    @property
    def path(self):
        return self.stack[-1] if self.stack else None

    def push(self, module, args, kwargs):
        session, before = self.session, self.session.phase
        if not self.stack and before in ("before", "other", "inference", "forward"):
            if id(module) not in self.names:
                self.name(module)
            if self.grad():
                if before != "forward":
                    session.training_begins()
                    session.phase = "forward"
                    session.parts["memory"].forward_begins()
                if any(parameter.requires_grad for parameter in module.parameters()):
                    self.count_batch(args, kwargs)
            elif before != "forward":
                session.phase = "inference"
        self.stack.append(self.names.get(id(module)) or self.path)
        return before

    def pop(self, before):
        self.stack.pop()
        if not self.stack and self.session.phase == "inference":
            self.session.phase = before

    def name(self, root):
        for name, module in root.named_modules():
            path = WRAPPED.sub("", name + ".")[:-1]
            self.names[id(module)] = re.sub(r"\b\d+\b", "*", path) or type(module).__name__

    def count_batch(self, args, kwargs):
        """Add what the model is given to the step's samples and tokens."""
        torch, session = self.torch, self.session
        given = tensors_in([args, kwargs], torch.Tensor)
        first = next((t for t in given if t.dim()), None)
        if first is None:
            return
        session.samples = (session.samples or 0) + int(first.shape[0])
        whole = [t for t in given if t.dtype in (torch.int64, torch.int32)]
        if whole:
            session.tokens = (session.tokens or 0) + max(int(t.numel()) for t in whole)


class Recorder:
    """Rows of operators and the order in which they were called. position: operators of the step so far."""

    def __init__(self, session):
        self.session, self.memory = session, session.parts["memory"]
        self.rows, self.index, self.order, self.calls = [], {}, [], []
        self.origins = {}
        """Sequence number of an operator that autograd knows -> (module, place) of the forward pass."""
        self.outputs = {}

    @property
    def position(self):
        return len(self.order)

    def forget(self):
        self.rows, self.index, self.order, self.calls, self.outputs = [], {}, [], [], {}

    def enter(self):
        self.mode.__enter__()

    def origin(self):
        """Return (module, place, whether it is a forward pass again) of what runs now."""
        session, path = self.session, self.modules.path
        if session.phase == "backward" and path is None and (session.twice or not self.modules.grad()):
            node = self.node()
            begun = None if node is None else self.origins.get(node._sequence_nr())
            return (*(begun or (None, None)), False)
        return path, session.place(4), session.phase == "backward"

    def add(self, func, args, kwargs, out):
        """Count one call of an operator."""
        session = self.session
        module, place, recomputed = origin = self.origin()
        if session.phase != "backward" or recomputed:
            self.origins[self.sequence()] = (module, place)
        given = tensors_in([args, kwargs], self.tensor)
        made = tensors_in([out], self.tensor)
        key = (
            func, session.phase, module, place, recomputed,
            tuple([(t.shape, t.dtype) for t in given]), tuple([(t.shape, t.dtype) for t in made]),
        )  # fmt: skip
        row = self.index.get(key)
        if row is None:
            row = self.index[key] = len(self.rows)
            self.rows.append(self.row(func, args, kwargs, out, given, made, origin))
        self.order.append(row)
        if not func.is_view or func is self.lifted:
            self.memory.made(made, origin)
            if func.namespace == "fsdp" and "copy_in" not in func._schema.name:
                self.memory.of_sharding(given)

    def row(self, func, args, kwargs, out, given, made, origin):
        flop, name = 0, func._schema.name.split("::")[-1]
        count = self.flops.get(func._overloadpacket)
        if count is not None:
            try:
                flop = int(count(*args, **kwargs, out_val=out))
            except Exception:  # a form of the operator that torch's counter does not know
                self.session.note("no-flop", str(func))
        written, changed = made, changed_by(func, args, self.tensor)
        if not made:
            written = changed
        kernel = not (func.is_view or name in NO_KERNEL)
        read = sum(size_of(t) for t in given)
        out_bytes = sum(size_of(t) for t in written)
        if name in READ_WHAT_THEY_WRITE and given:
            read += out_bytes - size_of(given[0])
        if name in ("zero_", "fill_", "_foreach_zero_", "normal_", "uniform_", "copy_"):
            read -= sum(size_of(t) for t in changed)
        return {
            "op": str(func),
            "shapes": [list(t.shape) for t in given],
            "dtypes": [str(t.dtype)[6:] for t in given],
            "out_shapes": [list(t.shape) for t in made],
            "out_dtypes": [str(t.dtype)[6:] for t in made],
            "flop": flop,
            "read_bytes": max(0, read) if kernel else 0,
            "written_bytes": out_bytes if kernel else 0,
            "phase": self.session.phase,
            "module": origin[0],
            "place": origin[1],
            "recomputed": origin[2],
            "causal": "attention" in name and is_causal(func, args, kwargs),
        }

    def add_call(self, func, args, kwargs, out):
        """Keep a collective; a wait for one ends it. Returns False for what is neither."""
        facts = of_collective(func, args, kwargs, self.tensor)
        if facts is None:
            return False
        session = self.session
        if facts["op"] == "wait":
            number = self.outputs.get(storage_key(facts["tensor"]))
            if number is not None:
                self.waits_for((number,))
            return True
        module, place, recomputed = self.origin()
        number = len(self.calls)
        blocks = not facts.pop("asynchronous")
        after = session.parts["streams"].called(number, asynchronous=not blocks)
        group, results = facts.pop("group"), facts.pop("results")
        given, made = facts.pop("given"), facts.pop("made") or tensors_in([out], self.tensor)
        session.parts["experts"].exchanged(facts["op"], given, made, group)
        call = {
            **facts, "group": session.parts["groups"].number(group), "at": self.position, "after": after,
            "waited": None, "phase": session.phase, "recomputed": recomputed, "module": module, "place": place,
            "carries": self.carried(facts["op"]),
        }  # fmt: skip
        for tensor in (*results, *tensors_in([out], self.tensor)):
            self.outputs[storage_key(tensor)] = number
        self.calls.append(call)
        if blocks and (session.on_host or session.parts["streams"].current() is session.parts["streams"].main):
            self.waits_for((number,))
        return True

    def carried(self, op):
        """Return what a collective sends, where a wrapper calls it: the code of FSDP or DDP is on the stack."""
        frame = sys._getframe(3)
        while frame is not None:
            name = frame.f_code.co_filename
            if "/fsdp/" in name or "stepscope_dry/ddp" in name or name.endswith("zero_redundancy_optimizer.py"):
                return "parameters" if op in ("all_gather", "broadcast") else "gradients"
            if "/distributed/tensor/" in name or "distributed/nn/functional" in name or "modules/_functions" in name:
                return "activations"
            frame = frame.f_back
        return None

    def waits_for(self, calls):
        """From here on the computing stream waits for these collectives."""
        for number in calls:
            if number < len(self.calls) and self.calls[number]["waited"] is None:
                self.calls[number]["waited"] = self.position


def mode_of(recorder):
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    recorder.tensor, recorder.flops, recorder.lifted = torch.Tensor, dict(flop_registry), aten.lift_fresh.default
    for name in ("", "_backward"):  # the CPU's own kernel, which torch's counter leaves out
        here = getattr(aten, "_scaled_dot_product_flash_attention_for_cpu" + name, None)
        recorder.flops.setdefault(here, flop_registry[getattr(aten, "_scaled_dot_product_flash_attention" + name)])
    recorder.node, recorder.sequence = torch._C._current_autograd_node, torch._C._autograd._get_sequence_nr
    session = recorder.session
    experts = session.parts["experts"]
    device_of, fake = torch.ops.prim.device.default, FakeTensor
    no_modes = torch.utils._python_dispatch._disable_current_modes
    modes, fake_key = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
    wait = torch.ops._c10d_functional.wait_tensor.default if torch.distributed.is_available() else None
    standing = {}

    def stands_for_others(kind):
        """Whether tensors of this type hold others: DTensor, results on their way, quantized ones."""
        answer = standing.get(kind)
        if answer is None:
            answer = standing[kind] = hasattr(kind, "__tensor_flatten__")
        return answer

    class Record(TorchDispatchMode):
        """Sees each operator on its way to the tensors without data."""

        supports_higher_order_operators = True

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is device_of:
                tensor = args[0]
                if type(tensor) is fake and not tensor.fake_mode.in_kernel_invocation:
                    return tensor.fake_device  # asked for as often as operators run
            kwargs = kwargs or {}
            for kind in types:
                if stands_for_others(kind):
                    return NotImplemented  # the operators on its parts come by themselves
            namespace = func.namespace
            if (
                session.paused
                or namespace in ("prim", "profiler", "higher_order")
                or modes(fake_key) is not session.mode
            ):
                return func(*args, **kwargs)  # also what DTensor asks of a mode of its own: shapes
            if not types and namespace == "aten" and has_data(func, args, kwargs, recorder.tensor):
                with no_modes():
                    return func(*args, **kwargs)
            # What is waited for is the tensor itself; without data torch makes another one.
            out = args[0] if func is wait else func(*args, **kwargs)
            if namespace == "aten":
                experts.seen(func, args, kwargs, out)
            if namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"):
                if recorder.add_call(func, args, kwargs, out):
                    recorder.memory.of_call(func, args, kwargs, out)
                    return out
            recorder.add(func, args, kwargs, out)
            return out

    seen = Record.__torch_dispatch__
    Record.__torch_dispatch__ = getattr(seen, "__wrapped__", seen)  # nothing is compiled here: without its guard
    return Record()


def has_data(func, args, kwargs, kind):
    """Whether an operator prepares data of the script on the host: it is no work of the device, and is carried out."""
    given = tensors_in((args, kwargs), kind)
    if not given or str(kwargs.get("device") or "cpu") != "cpu":
        return False
    if func._schema.name == "aten::lift_fresh" and given[0].is_floating_point():
        return False
    return all(type(t) is kind and t.device.type == "cpu" and not t.requires_grad for t in given)


def tensors_in(values, kind):
    """Return the tensors of arguments, also those in lists, tuples and dicts, in order."""
    out = []
    for value in values:
        if isinstance(value, kind):
            out.append(value)
        elif isinstance(value, (list, tuple)):
            out += tensors_in(value, kind)
        elif isinstance(value, dict):
            out += tensors_in(list(value.values()), kind)
    return out


def changed_by(func, args, kind):
    """Return the tensors that an operator writes in place."""
    return [
        tensor
        for declared, value in zip(func._schema.arguments, args)
        if declared.alias_info is not None and declared.alias_info.is_write
        for tensor in tensors_in([value], kind)
    ]


def is_causal(func, args, kwargs):
    """Whether an attention operator is asked to look back only."""
    values = dict(zip([argument.name for argument in func._schema.arguments], args))
    return bool({**values, **kwargs}.get("is_causal"))


def size_of(tensor):
    """Bytes of a tensor's elements, not more than those of its storage (it may be expanded)."""
    size = tensor.numel() * tensor.element_size()
    return min(size, tensor.untyped_storage().nbytes()) if 0 in tensor.stride() else size


def storage_key(tensor):
    return tensor.untyped_storage()._cdata
