"""stepscope: where a distributed PyTorch training step's time goes."""

__version__ = "0.1.0"
