from torch.optim.optimizer import SGD

__all__ = ["SGD"]
