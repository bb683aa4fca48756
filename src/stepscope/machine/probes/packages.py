"""Packages: versions of what decides speed and correctness of training, read from metadata without importing."""

from __future__ import annotations

import importlib.metadata
import re

from stepscope.machine.probes._common import Facts, Probe, ProbeContext

NAMES = frozenset({
    "accelerate", "apex", "datasets", "deepspeed", "dask", "distributed", "fairscale", "flash-attn", "horovod",
    "jax", "lightning", "megatron-core", "mkl", "mpi4py", "msgspec", "numpy", "peft", "psutil", "pytorch-lightning",
    "pytorch-triton", "pytorch-triton-rocm", "ray", "scipy", "stepscope", "tensorboard", "tokenizers", "torch",
    "torchaudio", "torchdata", "torchtext", "torchtitan", "torchvision", "transformer-engine", "transformers",
    "triton", "wandb", "xformers",
})  # fmt: skip
PREFIXES = ("nvidia-", "intel-", "rocm-", "amdsmi", "cuda-")


def run(context: ProbeContext) -> Facts:  # noqa: ARG001
    """Versions by normalised name (PEP 503), sorted."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        raw = distribution.metadata["Name"] if distribution.metadata else None
        if not raw:
            continue  # a half-removed installation leaves such folders
        name = re.sub(r"[-_.]+", "-", raw).lower()
        if name in NAMES or name.startswith(PREFIXES):
            found.setdefault(name, distribution.version)
    return {"packages": dict(sorted(found.items()))}


PROBE = Probe(summary="versions of the packages in use", run=run)
