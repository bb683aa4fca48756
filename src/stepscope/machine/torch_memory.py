"""What torch said last time: importing it to ask takes seconds, and a CPU build always gives the same answer.

Only builds without CUDA and ROCm are remembered: what devices there are can change at any time. The answer holds for one
Python, one installed torch, one boot of one machine and the variables and cores that decide its threads.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from stepscope import __version__
from stepscope.core.errors import DataError
from stepscope.core.places import cache_dir
from stepscope.records.codec import decode, encode_document, plain
from stepscope.records.environment import TorchFact

_THREAD_VARIABLES = ("OMP_", "MKL_", "ATEN_", "TORCH_", "LD_")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def recall(environ: Mapping[str, str]) -> TorchFact | None:
    """The remembered answer; None when there is none for this Python, torch and boot."""
    path = _file(environ)
    if path is None:
        return None
    try:
        return decode(path.read_bytes(), TorchFact, source=str(path))
    except (OSError, DataError):
        return None


def remember(fact: TorchFact, environ: Mapping[str, str]) -> None:
    """Keep ``fact`` for :func:`recall` if it cannot change; a cache that cannot be written is left alone."""
    path = _file(environ)
    if path is None or fact.cuda_version is not None or fact.hip_version is not None or fact.device_count:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(encode_document(plain(fact)))
        temporary.replace(path)
    except OSError:
        return


def _file(environ: Mapping[str, str]) -> Path | None:
    """None where torch, or the boot, cannot be told."""
    try:
        spec = importlib.util.find_spec("torch")
        boot = _BOOT.read_text()
        origin = None if spec is None else spec.origin
        stat = None if origin is None else Path(origin).stat()
        cores = sorted(os.sched_getaffinity(0))
    except (OSError, ValueError, AttributeError):
        return None
    if stat is None:
        return None
    deciding = sorted((k, v) for k, v in environ.items() if k.startswith(_THREAD_VARIABLES))
    key = (
        __version__,
        sys.executable,
        sys.version,
        origin,
        stat.st_mtime_ns,
        stat.st_size,
        boot,
        cores,
        deciding,
    )
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    return cache_dir(environ) / "torch" / f"{name}.json"
