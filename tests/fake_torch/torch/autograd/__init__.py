from torch.autograd import profiler


def _profiler_enabled():
    return profiler.running is not None


__all__ = ["_profiler_enabled", "profiler"]
