"""Which kernels a CUDA device has: a build of torch for CPUs would compute the same in parts.

What is saved for the backward pass depends on it: the flash and the memory-efficient kernels of attention keep one number a
row.
"""

import math

DEDICATED = ("_fused_rms_norm", "silu_backward", "mish_backward")
"""Operators that have one kernel on CUDA devices, and are put together of others where a build has none for the device."""

_kept = []


def begin(torch, capability):
    aten = torch.ops.aten

    def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        kernel = kernel_of(torch, capability, query, key, value, attn_mask, is_causal, enable_gqa)
        if kernel == "flash":
            size = query.shape[-1]
            scale = scale or 1 / math.sqrt(size)
            spare = -size % 8
            if spare:
                query, key, value = (torch.nn.functional.pad(t, (0, spare)) for t in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[
                0
            ]
            return out[..., :size] if spare else out
        if kernel == "efficient":
            grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
            bias = bias_of(torch, attn_mask, query, key)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, grad, dropout_p, is_causal, scale=scale
            )[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]

    def dedicated(*args, **kwargs):
        raise NotImplementedError("tensors without data do not get here")

    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    for name in DEDICATED:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if hasattr(aten, name) and not has("aten::" + name, "CUDA"):
            library.impl(name, dedicated, "CUDA")
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attend, key)


def kernel_of(torch, capability, query, key, value, mask, is_causal, grouped):
    """Return what scaled_dot_product_attention takes on the device, in its order: flash, efficient, math."""
    cuda = torch.backends.cuda
    if query.dim() != 4 or 0 in query.shape or 0 in key.shape:
        return "math"
    heads_fit = query.shape[1] == key.shape[1] == value.shape[1] or (grouped and query.shape[1] % key.shape[1] == 0)
    one_size = query.shape[-1] == key.shape[-1] == value.shape[-1]
    batches_fit = query.shape[0] == key.shape[0] == value.shape[0]
    if not (heads_fit and batches_fit):
        return "math"
    half = query.dtype in (torch.float16, torch.bfloat16)
    causal_fits = not is_causal or query.shape[2] == key.shape[2]
    if cuda.flash_sdp_enabled() and half and capability >= (8, 0) and mask is None and one_size and causal_fits:
        if query.shape[-1] <= 256:
            return "flash"
    same_heads = query.shape[1] == key.shape[1]
    aligned = all(t.shape[-1] % (8 if half else 4) == 0 for t in (query, value))
    dtype_fits = query.dtype in (torch.float16, torch.float32) or (half and capability >= (8, 0))
    if cuda.mem_efficient_sdp_enabled() and dtype_fits and same_heads and aligned:
        return "efficient"
    return "math"


def bias_of(torch, mask, query, key):
    """Return a mask as the kernel is given it: numbers to be added, rows of a multiple of 16."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    spare = -mask.shape[-1] % 16
    if spare:
        mask = torch.nn.functional.pad(mask, (0, spare))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
