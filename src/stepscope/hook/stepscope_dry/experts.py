"""How many tokens each expert of a mixture gets: all the same number, as no tensor holds what a router chose.

Of integers that choose among n it is known that they do, and of a mask which share of it is set; counts made of them have
values, so that the sizes that a script takes from counts (``tolist``, ``nonzero``, splits of an all-to-all) are those of an
even choice. Small tensors whose values are known keep them, through collectives too: other ranks hold the same.
"""

import weakref

from stepscope_dry.collectives import resolved

MOST_VALUES = 65536
"""Elements of a tensor whose values are kept: experts x ranks."""

TEXT = "every expert is taken to get the same number of tokens"


def begin(session):
    import torch
    import torch._subclasses.fake_impls as answers
    import torch._subclasses.fake_tensor as fake

    fake.CONSTANT_NUMEL_LIMIT = MOST_VALUES
    experts = session.parts["experts"] = Experts(session, torch)
    count_grouped_products(torch)
    for name in ("nonzero", "masked_select", "bincount"):
        answers.op_implementations_dict[getattr(torch.ops.aten, name).default] = getattr(experts, name)


def count_grouped_products(torch):
    """Let torch's counter know products of groups of rows with a matrix each: one of all rows has as many FLOP."""
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    def product_flop(a, b, *args, out_shape=None, **kwargs):
        return 2 * a[-2] * a[-1] * b[-1] * (a[0] if len(a) == len(b) == 3 else 1)

    for name in ("_grouped_mm", "_scaled_grouped_mm"):
        operator = getattr(torch.ops.aten, name, None)
        if operator is not None and operator not in flop_registry:
            register_flop_formula(operator)(product_flop)


class Experts:
    """What is known of tensors, by storage: ("among", n) of integers that choose, ("share", x) of what is set in a mask."""

    def __init__(self, session, torch):
        self.session, self.torch = session, torch
        self.facts = {}

    def seen(self, func, args, kwargs, out):
        """Derive what is known of an operator's result."""
        rule = RULES.get(func._schema.name[6:])
        if rule is not None and args and (self.facts or rule in STARTS):
            rule(self, func, args, kwargs, out)

    def fact(self, tensor):
        if not isinstance(tensor, self.torch.Tensor):
            return None, 0
        entry = self.facts.get(tensor.untyped_storage()._cdata)
        return entry[1] if entry else (None, 0)

    def know(self, tensor, kind, value):
        storage = tensor.untyped_storage()
        key = storage._cdata
        self.facts[key] = weakref.ref(storage, lambda _: self.facts.pop(key, None)), (kind, value)

    # --- operators

    def chooses(self, func, args, kwargs, out):
        """topk, argmax, multinomial ..: integers among the size of a dimension."""
        source, names = args[0], [argument.name for argument in func._schema.arguments]
        dim = dict(zip(names, args), **kwargs).get("dim")
        choice = out[1] if isinstance(out, tuple) else out
        if source.dim():
            self.know(choice, "among", source.shape[-1 if dim is None else dim])

    def sorts(self, func, args, kwargs, out):
        kind, value = self.fact(args[0])
        if kind:
            self.know(out[0], kind, value)

    def copies(self, func, args, kwargs, out):
        kind, value = self.fact(args[0])
        if kind:
            self.know(out, kind, value)

    def equals(self, func, args, kwargs, out):
        for one in args[:2]:
            kind, value = self.fact(one)
            if kind == "among":
                self.know(out, "share", 1 / value)
                return

    def marks(self, func, args, kwargs, out):
        """scatter a number at chosen places."""
        target, dim, index = args[:3]
        if self.fact(index)[0] == "among":
            self.know(out, "share", min(1.0, index.shape[dim] / target.shape[dim]))

    def adds(self, func, args, kwargs, out):
        """scatter_add, index_add: counts, where the places are chosen."""
        target, index = args[0], args[2]
        if self.fact(index)[0] == "among" and target.dim() == 1:
            self.counts(out, index.numel())

    def sums(self, func, args, kwargs, out):
        kind, value = self.fact(args[0])
        if kind == "share" and out.numel():
            of_each = args[0].numel() // out.numel() * value
            self.know(out, "share", min(1.0, of_each))
            if args[0].dtype is not self.torch.bool or out.dtype is not self.torch.bool:
                self.counts(out, round(args[0].numel() * value))

    def bins(self, func, args, kwargs, out):
        self.counts(out, args[0].numel())

    def counts(self, out, total):
        """Give a tensor of counts its values: as even as whole numbers can be."""
        torch, number = self.torch, out.numel()
        if not 0 < number <= MOST_VALUES:
            return
        least, rest = divmod(total, number)
        with self.real():
            values = torch.full((number,), least, dtype=torch.int64)
            values[:rest] += 1
            self.give(out, values.view(out.shape).to(out.dtype))
        self.session.note("experts", TEXT)

    def real(self):
        from torch.utils._mode_utils import no_dispatch

        return no_dispatch()

    def give(self, tensor, values):
        """Let a tensor without data have these values (None: not known)."""
        if type(tensor) is self.torch.Tensor and values is not None:
            tensor.copy_(values)  # a tensor of the host that has its data
        if not hasattr(tensor, "constant"):
            return
        tensor.constant = values
        if values is not None:
            self.session.mode.fake_tensor_converter.add_constant_storage_mapping(tensor)

    # --- operators whose result has as many elements as are set

    def nonzero(self, mode, func, mask):
        return mask.new_empty((self.set_in(mask), mask.dim()), dtype=self.torch.int64)

    def masked_select(self, mode, func, source, mask):
        shape = self.torch.broadcast_shapes(source.shape, mask.shape)
        return source.new_empty((self.set_in(mask, shape.numel()),))

    def bincount(self, mode, func, source, weights=None, minlength=0):
        kind, value = self.fact(source)
        out = source.new_empty((max(minlength, value if kind == "among" else 1),))
        self.counts(out, source.numel())
        return out

    def set_in(self, mask, elements=None):
        """How many of a mask's elements are set: all, where nothing is known."""
        kind, value = self.fact(mask)
        if kind != "share":
            value = 1.0
        elements = mask.numel() if elements is None else elements
        self.session.note("experts", TEXT if kind == "share" else "every element of a mask is taken to be set")
        return round(elements * value)

    # --- collectives

    def exchanged(self, op, given, made, group):
        """Give the results of a collective the values that they have where every rank gives the same."""
        if op == "send":
            return
        plain = self.torch.Tensor
        values = [tensor if type(tensor) is plain else getattr(tensor, "constant", None) for tensor in given]
        if op == "recv" or not values or len(made) % len(values) or any(value is None for value in values):
            for result in made:
                self.give(result, None)
            return
        group = resolved(group)
        size, rank = group.size(), group.rank()
        with self.real():
            for value, result in zip(values * (len(made) // len(values)), made):
                flat = value.reshape(-1)
                if op in ("all_to_all", "reduce_scatter") and flat.numel() % size == 0:
                    flat = flat.reshape(size, -1)[rank]
                if op in ("all_reduce", "reduce_scatter", "reduce"):
                    flat = flat * size
                if op in ("all_to_all", "all_gather") and flat.numel() != result.numel():
                    flat = flat.repeat(size)
                self.give(result, flat.reshape(result.shape).clone() if flat.numel() == result.numel() else None)


E = Experts
RULES = {
    "topk": E.chooses, "argmax": E.chooses, "argmin": E.chooses, "multinomial": E.chooses, "max": E.chooses,
    "sort": E.sorts, "clone": E.copies, "_to_copy": E.copies, "index": E.copies, "index_select": E.copies,
    "gather": E.copies, "repeat": E.copies, "repeat_interleave": E.copies, "gt": E.copies, "ge": E.copies, "ne": E.copies,
    "eq": E.equals, "scatter": E.marks, "scatter_": E.marks, "scatter_add": E.adds, "scatter_add_": E.adds,
    "index_add_": E.adds, "sum": E.sums, "any": E.sums, "histc": E.bins,
}  # fmt: skip
STARTS = (E.chooses, E.bins)
