"""Are the replicas still replicas?"""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def parameter_checksum(module: nn.Module) -> str:
    """Fingerprint of all parameters, bit for bit: replicas that trained together have the same one."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in module.parameters():
        raw = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()
