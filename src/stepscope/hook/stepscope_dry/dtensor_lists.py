"""DTensor's work that has nothing to find out here is left out: layouts of optimizers' lists, offsets of random numbers.

An optimizer's operators are run on the parts of this rank, without asking how each of hundreds is laid out. For such an
operator, element by element, the layout of a result is that of its operands; torch derives it for every tensor from all of
them. Which random numbers are those of this rank does not matter where none is drawn. Both take seconds for a large model.
"""

import functools

from stepscope_dry.imports import when_imported

ELEMENTWISE = ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "neg", "reciprocal", "maximum", "pow",
               "zero")  # fmt: skip
FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_")


def begin(session):
    when_imported("torch.distributed.tensor._api", lambda module: give(module.DTensor._op_dispatcher))
    when_imported("torch.distributed.tensor._random", draw_alike)


def draw_alike(module):
    module._RNGStateTracker.distribute_region_enabled = property(lambda tracker: False, lambda tracker, value: None)


def give(dispatcher):
    handler = functools.partial(on_parts, dispatcher)
    dispatcher._custom_op_handlers.update(dict.fromkeys(operators(), handler))


def operators():
    import torch

    names = [*FUSED, *("_foreach_" + name + tail for name in ELEMENTWISE for tail in ("", "_"))]
    packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads() if "out" not in overload]


def on_parts(dispatcher, operator, args, kwargs):
    """Run an operator on the parts of this rank, where those of each tensor's operands are laid out alike."""
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple)) and value]
    lists = [values for values in lists if hasattr(values[0], "_local_tensor")]
    specs = [value._spec for value in lists[0]] if lists else []
    alike = all(
        len(values) == len(specs)
        and all(
            hasattr(value, "_local_tensor")
            and value._spec.mesh == spec.mesh
            and value._spec.placements == spec.placements
            and not any(placement.is_partial() for placement in spec.placements)
            for value, spec in zip(values, specs)
        )
        for values in lists
    )
    if not lists or not alike:
        handler = dispatcher._custom_op_handlers.pop(operator)
        try:
            return operator(*args, **kwargs)
        finally:
            dispatcher._custom_op_handlers[operator] = handler
    out = operator(*[part(value) for value in args], **{name: part(value) for name, value in kwargs.items()})
    if not isinstance(out, (list, tuple)):
        return out
    kind = type(lists[0][0])
    return [kind(value, spec, requires_grad=False) for value, spec in zip(out, specs)]


def part(value):
    if isinstance(value, (list, tuple)):
        return [part(one) for one in value]
    return getattr(value, "_local_tensor", value)
