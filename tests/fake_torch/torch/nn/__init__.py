from torch.nn import modules, parallel

__all__ = ["modules", "parallel"]
