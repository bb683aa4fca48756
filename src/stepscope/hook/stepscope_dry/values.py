"""Numbers that the script reads from tensors without data: what is known is answered truly, the rest by a constant.

Known are small tensors of the host (made from Python numbers, or what a loader gave), what follows from them there, and what
experts.py gives. Each place where the script reads another is noted, and whether its control flow rests on it, as far as the
syntax of the same function shows.
"""

import ast
import itertools
import os
import sys

from stepscope_dry.session import HERE, of_user, real_open

KNOWN_ELEMENTS = 65536
FLOAT, INTEGER, TRUTH = 1.0, 1, False
"""Answers where nothing is known: a loss, a count, a condition."""

PASSING = ("_tensor.py", "_subclasses", "_ops.py", "_compile.py", "_dynamo", "utils", "functional.py", "_decomp", "_refs",
           "_prims", "_meta")  # fmt: skip
"""Files of torch on the way from a method of a tensor to its value."""


def begin(session):
    import torch
    from torch._subclasses import fake_impls, fake_tensor

    values = Values(session, torch)
    session.parts["values"] = values
    values.keep_known(fake_tensor)
    values.answer_operators(fake_impls.op_implementations_dict)
    values.answer_methods()
    values.say_finite()


class Values:
    """Answers for the tensors of the process."""

    def __init__(self, session, torch):
        from torch._subclasses.fake_tensor import FakeTensor

        self.session, self.torch, self.fake = session, torch, FakeTensor
        self.torch_folder = os.path.dirname(torch.__file__) + os.sep
        self.trees = {}

    # --- answers

    def answer(self, tensor):
        """Return the number that an element of a tensor stands for."""
        if tensor.dtype == self.torch.bool:
            return TRUTH
        return FLOAT if tensor.dtype.is_floating_point or tensor.dtype.is_complex else INTEGER

    def answer_operators(self, table):
        torch, values = self.torch, self
        aten = torch.ops.aten

        def give(*operators):
            def put(function):
                for operator in operators:
                    table[operator] = function

            return put

        @give(aten._local_scalar_dense.default, aten.item.default)
        def read(mode, func, tensor):
            answer = values.answer(tensor)
            values.note("a value was read, and {} answered".format(answer))
            return answer

        @give(aten.equal.default)
        def equal(mode, func, one, other):
            values.note("tensors were compared, and equal answered")
            return one.shape == other.shape

        @give(aten._unique2.default, aten._unique.default)
        def unique(mode, func, tensor, is_sorted=True, return_inverse=False, return_counts=False):
            values.note("all of {} elements were taken to differ".format(tensor.numel()))
            inverse = tensor.new_empty(tensor.shape if return_inverse else (0,), dtype=torch.int64)
            counts = tensor.new_empty((tensor.numel(),) if return_counts else (0,), dtype=torch.int64)
            return (tensor.new_empty((tensor.numel(),)), inverse, counts)[: len(func._schema.returns)]

        @give(aten.unique_dim.default)
        def unique_dim(mode, func, tensor, dim, *args, **kwargs):
            values.note("all of {} rows were taken to differ".format(tensor.shape[dim]))
            index = tensor.new_empty((tensor.shape[dim],), dtype=torch.int64)
            return torch.empty_like(tensor), index, torch.empty_like(index)

        @give(aten.unique_consecutive.default)
        def unique_consecutive(mode, func, tensor, return_inverse=False, return_counts=False, dim=None):
            values.note("all of {} elements were taken to differ".format(tensor.numel()))
            index = tensor.new_empty((tensor.numel() if dim is None else tensor.shape[dim],), dtype=torch.int64)
            return (tensor.flatten() if dim is None else torch.empty_like(tensor)), index, torch.empty_like(index)

        @give(aten.repeat_interleave.Tensor)
        def repeat(mode, func, repeats, output_size=None):
            if output_size is None:
                output_size = repeats.numel()
                values.note("{} elements were taken to be repeated once each".format(output_size))
            return repeats.new_empty((output_size,))

    def answer_methods(self):
        """Methods that torch refuses for tensors without data before any operator is called."""
        torch, values = self.torch, self
        kind = torch.Tensor
        to_list, to_numpy, to_text = kind.tolist, kind.numpy, kind.__format__

        def data_of(tensor):
            """Return the tensor itself, where it has data."""
            return getattr(tensor, "constant", None) if isinstance(tensor, values.fake) else tensor

        def real(function, *args, **kwargs):
            with torch.utils._python_dispatch._disable_current_modes():
                return function(*args, **kwargs)

        def tolist(tensor):
            if values.wraps(tensor):
                tensor = tensor._local_tensor
            data = data_of(tensor)
            if data is not None:
                return real(to_list, data)
            if not tensor.dim():
                return tensor.item()
            answer = [values.answer(tensor)] * tensor.numel()
            values.note("{} values were read, and {} answered".format(len(answer), values.answer(tensor)))
            for size in reversed(tensor.shape[1:]):
                answer = [answer[n : n + size] for n in range(0, len(answer), size)] if size else []
            return answer

        def numpy(tensor, *args, **kwargs):
            if values.wraps(tensor):
                return to_numpy(tensor, *args, **kwargs)
            data = data_of(tensor)
            if data is None:
                answer = values.answer(tensor)
                values.note("{} values were read, and {} answered".format(tensor.numel(), answer))
                data = real(torch.full, tensor.shape, answer, dtype=tensor.dtype)
            return real(to_numpy, data, *args, **kwargs)

        def as_text(tensor, spec):
            if isinstance(tensor, values.fake) and not tensor.dim():
                return tensor.item().__format__(spec)
            return to_text(tensor, spec) if not isinstance(tensor, values.fake) else str(tensor).__format__(spec)

        kind.tolist, kind.numpy, kind.__format__ = tolist, numpy, as_text
        values.fake.tolist = tolist  # torch's own reads element by element

    def say_finite(self):
        """Numbers are taken to be finite, and steps of a scaler not to overflow."""
        torch, values = self.torch, self
        kind = torch.Tensor

        def all_of(tensor, value):
            """Let a tensor have this value everywhere."""
            tensor = getattr(tensor, "_local_tensor", tensor)
            if isinstance(tensor, values.fake):
                with torch.utils._python_dispatch._disable_current_modes():
                    tensor.constant = torch.full((), value, dtype=tensor.dtype).expand(tensor.shape)

        def finite(function):
            def isfinite(tensor):
                out = function(tensor)
                all_of(out, True)
                return out

            return isfinite

        torch.isfinite, kind.isfinite = finite(torch.isfinite), finite(kind.isfinite)
        torch.allclose = kind.allclose = lambda one, other, *args, **kwargs: torch.equal(one, other)
        scaler = torch.amp.GradScaler
        unscale = scaler._unscale_grads_

        def unscale_grads(self, *args, **kwargs):
            overflows = unscale(self, *args, **kwargs)
            for tensor in overflows.values():
                all_of(tensor, 0.0)
            return overflows

        scaler._unscale_grads_ = unscale_grads

    def wraps(self, tensor):
        return not isinstance(tensor, self.fake) and hasattr(tensor, "_local_tensor")

    # --- what is known

    def keep_known(self, fake_tensor):
        """Small tensors have data where that is sure: of the host, whole numbers that are drawn there, what counting and
        filling makes, and what follows from them."""
        torch, kind, converter = self.torch, self.fake, fake_tensor.FakeTensorConverter
        convert, dispatch = converter.from_real_tensor, fake_tensor.FakeTensorMode._dispatch_impl
        aten, no_modes = torch.ops.aten, torch.utils._python_dispatch._disable_current_modes
        moves = (aten._to_copy.default, torch.ops.prims.device_put.default)
        fills = fills_of(aten)
        packets = (aten.randint, aten.randperm)
        drawn = {getattr(packet, name) for packet in packets for name in packet.overloads() if "out" not in name}

        def is_small(tensor):
            return tensor.numel() <= (1 if tensor.dtype.is_floating_point else KNOWN_ELEMENTS)

        def from_real_tensor(self, mode, tensor, make_constant=False, *args, **kwargs):
            if not make_constant and type(tensor) is torch.Tensor and not tensor.requires_grad:
                make_constant = is_small(tensor) and tensor.device.type == "cpu" and tensor.layout == torch.strided
            return convert(self, mode, tensor, make_constant, *args, **kwargs)

        def dispatch_impl(mode, func, types, args, kwargs):
            constants = [one for one in args if isinstance(one, kind) and one.constant is not None]
            moved = any(isinstance(one, torch.device) and one.type != "cpu" for one in (*args, *kwargs.values()))
            if (constants and moved) or (sum(one.numel() > 1 for one in constants) > 1 and grows(constants)):
                values = [one.constant for one in constants]
                for one in constants:
                    one.constant = None
                try:
                    out = dispatch(mode, func, types, args, kwargs)
                finally:
                    for one, value in zip(constants, values):
                        one.constant = value
                if not moved:
                    return out
            else:
                out = dispatch(mode, func, types, args, kwargs)
            if func in drawn and out.fake_device.type == "cpu" and out.numel() <= KNOWN_ELEMENTS:
                with no_modes():
                    return func(*args, **kwargs)
            if isinstance(out, kind):
                if out.constant is not None:
                    return out if kwargs.get("device") is not None else placed(mode, out, args)
                fill = fills.get(func)
                if (
                    fill is not None
                    and is_small(out)
                    and out.layout == torch.strided
                    and out.fake_device.type != "meta"
                ):
                    with no_modes():
                        know(mode, out, fill(out, args, kwargs))
                elif constants and func in moves and is_small(out):
                    with no_modes():
                        know(mode, out, constants[0].constant.to(out.dtype, copy=True))
            elif isinstance(out, (list, tuple)) and any(getattr(one, "constant", None) is not None for one in out):
                return getattr(type(out), "_make", type(out))(
                    [placed(mode, one, args) if isinstance(one, kind) else one for one in out]
                )
            return out

        def grows(constants):
            try:
                return torch.broadcast_shapes(*[one.shape for one in constants]).numel() > KNOWN_ELEMENTS
            except RuntimeError:
                return False

        def placed(mode, tensor, args):
            """Return a known result as a tensor of the device of its operands."""
            for one in args:
                if (
                    isinstance(one, kind)
                    and one.fake_device.type != tensor.fake_device.type
                    and tensor.constant is not None
                ):
                    with fake_tensor.in_kernel_invocation_manager(mode):
                        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
                    return know(mode, kind(mode, empty, one.fake_device), tensor.constant)
            return tensor

        def know(mode, tensor, data):
            tensor.constant = data
            mode.fake_tensor_converter.add_constant_storage_mapping(tensor)
            mode.fake_tensor_converter.set_tensor_memo(data, tensor)
            return tensor

        copy = torch.Tensor.__deepcopy__

        def deepcopy(tensor, memo):
            if not isinstance(tensor, kind) and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
                with no_modes():
                    return copy(tensor, memo)
            data = getattr(tensor, "constant", None)
            if data is None:
                return copy(tensor, memo)
            tensor.constant = None
            try:
                out = copy(tensor, memo)
            finally:
                tensor.constant = data
            with no_modes():
                return know(tensor.fake_mode, out, data.clone())

        torch.Tensor.__deepcopy__ = deepcopy
        converter.from_real_tensor = from_real_tensor
        fake_tensor.FakeTensorMode._dispatch_impl = dispatch_impl

    # --- where it is read

    def note(self, text):
        """Keep that a value was answered, once a place; reading by torch's own code is torch's matter."""
        session, frame = self.session, sys._getframe(2)
        if session.paused:
            return
        while frame is not None and self.passes(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(self.torch_folder):
            return
        name, line = frame.f_code.co_filename, frame.f_lineno
        if not of_user(name):
            session.note("value-read", text)
            return
        test = self.tested(name, line, span_of(frame))
        place = session.named(name, line)
        if test is None:
            session.note("value-read", text, place)
        else:
            session.note("value-decides", "{}; line {} decides by it".format(text, test), place)

    def passes(self, path):
        """Whether code of this file only passes a value on: ours, and torch's dispatch and methods of tensors."""
        if path.startswith(self.torch_folder):
            return path[len(self.torch_folder) :].startswith(PASSING)
        return path.startswith((HERE, "<"))

    def tested(self, path, line, span):
        """Return the line of the condition that a value read in this line gets to, within its function; None without.

        span: of the expression that reads it, None where Python does not say.
        """
        if path not in self.trees:
            try:
                with real_open(path, encoding="utf-8") as file:
                    self.trees[path] = ast.parse(file.read())
            except (OSError, SyntaxError, ValueError):
                self.trees[path] = None
        tree = self.trees[path]
        return None if tree is None else decided(tree, line, span)


def fills_of(aten):
    """Return operator -> function of its result and arguments that makes the data of the result."""

    import torch

    def filled(value):
        return lambda out, args, kwargs: torch.full(tuple(out.shape), value(args), dtype=out.dtype)

    fills = {}
    for value, names in (
        (lambda args: 0, ("zeros", "zeros_like", "new_zeros")),
        (lambda args: 1, ("ones", "ones_like", "new_ones")),
        (lambda args: args[1], ("full", "full_like")),
        (lambda args: args[2], ("new_full",)),
        (lambda args: args[0], ("scalar_tensor",)),
    ):
        for name in names:
            packet = getattr(aten, name)
            fills.update({getattr(packet, overload): filled(value) for overload in packet.overloads()})
    packet = aten.arange
    for overload in packet.overloads():
        function = getattr(packet, overload)
        fills[function] = lambda out, args, kwargs, function=function: function(*args, dtype=out.dtype)
    return fills


def span_of(frame):
    """Return the first and the last line and column of the expression that a frame evaluates; None before Python 3.11."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return None
    first, last, left, right = next(itertools.islice(positions(), frame.f_lasti // 2, None), (None,) * 4)
    return None if None in (first, last, left, right) else ((first, left), (last, right))


def holds(test, line, span):
    """Whether a condition has what is read in a line: ``if step % 10 == 0: print(loss.item())`` has not."""
    if span is None:
        return test.lineno <= line <= test.end_lineno
    first, last = (test.lineno, test.col_offset), (test.end_lineno, test.end_col_offset)
    within = first <= span[0] and span[1] <= last
    return within or (span[0] <= first and last <= span[1])  # the jump of an `if` has the place of its whole statement


def decided(tree, line, span=None):
    """Return the line of a condition that rests on what is read in a line: there, or through names of the same function."""
    function = scope_of(tree, line)
    tests = [node.test for node in own_nodes(function) if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp))]
    for test in tests:
        if holds(test, line, span):
            return test.lineno
    names, assigned = set(), []
    for node in own_nodes(function):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned.append((node, {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}))
    for node, targets in assigned:
        if node.lineno <= line <= node.end_lineno:
            names |= targets
    before = None
    while names != before:
        before = set(names)
        for node, targets in assigned:
            if loaded(node.value) & names:
                names |= targets
    return next((test.lineno for test in tests if loaded(test) & names), None)


def scope_of(tree, line):
    """Return the innermost function around a line, or the module."""
    scope = tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= node.end_lineno:
            if scope is tree or node.lineno >= scope.lineno:
                scope = node
    return scope


def own_nodes(function):
    """Yield the nodes of a function without those of functions in it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def loaded(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
