"""A linear layer whose products run in FP8 with scales made from what goes in, as torchao's training recipes do."""

import torch


def scaled(x, axis):
    """Return x in FP8 and its scale: of the whole tensor, or of each row along ``axis``."""
    most = x.abs().max() if axis is None else x.abs().amax(axis, keepdim=True)
    scale = 448.0 / most.float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), 1 / scale


def product(a, b, rows):
    """a @ b in FP8."""
    a8, by_a = scaled(a, 1 if rows else None)
    b8, by_b = scaled(b, 0 if rows else None)
    return torch._scaled_mm(a8, b8.t().contiguous().t(), scale_a=by_a, scale_b=by_b, out_dtype=torch.bfloat16)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, rows):
        ctx.save_for_backward(x, weight)
        ctx.rows = rows
        return product(x, weight.t(), rows)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        return product(grad, weight, ctx.rows), product(grad.t().contiguous(), x, ctx.rows), None


class Float8Linear(torch.nn.Linear):
    rows = False

    @classmethod
    def of(cls, kind):
        return type("Float8Linear", (cls,), {"rows": kind == "rowwise"})

    def forward(self, x):
        return Product.apply(x.flatten(0, -2), self.weight, self.rows).unflatten(0, x.shape[:-1])
