"""Tensors that ranks share (DTensor): their collectives and their attention as on GPUs."""

from stepscope_dry.imports import when_imported


def begin(session):
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    wait_where_used(torch)
    attend_as_on_gpus(torch)
    when_imported("torch.distributed.tensor._random", draw_nothing)
    for name in ("torch.distributed.tensor.parallel.api", "torch.distributed.tensor.parallel"):
        when_imported(name, lambda module: note_plans(session, module))


def wait_where_used(torch):
    """Functional collectives are waited for where their result is used: torch does so unless it traces, and takes tensors
    without data for a trace."""
    import torch.distributed._functional_collectives as functional

    class Wrap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return functional.AsyncCollectiveTensor(tensor)

        @staticmethod
        def backward(ctx, grad):
            return grad

    functional._are_we_tracing = lambda: False
    functional._maybe_wrap_tensor = Wrap.apply


def attend_as_on_gpus(torch):
    """What a CPU's attention is called is known neither to the rules of DTensor nor to the rings of context parallelism."""
    from torch.nn import functional

    plain, aten = functional.scaled_dot_product_attention, torch.ops.aten

    def scaled_dot_product_attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ):
        if type(query).__name__ != "DTensor":
            named = {"enable_gqa": True} if enable_gqa else {}
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **named)
        if enable_gqa:
            key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
        if attn_mask is None:
            return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        saved = torch.is_grad_enabled()
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, saved, dropout_p, is_causal, scale=scale
        )[0]

    functional.scaled_dot_product_attention = scaled_dot_product_attention


def draw_nothing(module):
    """Which numbers each rank draws takes the host long to find out, and no number is drawn."""
    import contextlib

    module.OffsetBasedRNGTracker._distribute_region = lambda *args, **kwargs: contextlib.nullcontext()


def note_plans(session, api):
    """Keep that the script shares modules by plans."""
    parallelize = api.parallelize_module
    if hasattr(parallelize, "noted"):
        return

    def parallelize_module(*args, **kwargs):
        session.wrapper("dtensor")
        return parallelize(*args, **kwargs)

    parallelize_module.noted = True
    api.parallelize_module = parallelize_module
