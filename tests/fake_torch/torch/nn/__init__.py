from torch.nn import modules, parallel
from torch.nn.modules.module import Module

__all__ = ["Module", "modules", "parallel"]
