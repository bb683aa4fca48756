"""As much of torch as the hook of `stepscope profile` touches: jobs of tests start in milliseconds."""

from types import SimpleNamespace

__version__ = "0.0.fake"

from torch import autograd, cuda, distributed, nn, optim, profiler, utils

__all__ = ["autograd", "cuda", "distributed", "nn", "optim", "profiler", "utils"]

_C = SimpleNamespace(_cuda_attach_out_of_memory_observer=cuda._observers.append)


def is_grad_enabled():
    return True


class Tensor:
    pass
