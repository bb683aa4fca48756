"""Are the replicas still replicas?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def parameter_checksum(parameters: Iterable[Tensor]) -> str:
    """Fingerprint of whole parameters, bit for bit: replicas that trained together have the same one."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in parameters:
        raw = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()
