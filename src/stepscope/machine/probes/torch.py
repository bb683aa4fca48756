"""What only torch knows, asked in a process of its own because torch may be absent, crash or hang; and its last answer.

Importing torch to ask takes seconds, and a CPU build always gives the same answer. Only builds without CUDA and ROCm are
remembered: what devices there are can change at any time. The answer holds for one Python, one installed torch, one boot of
one machine and the variables and cores that decide its threads.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepscope import __version__
from stepscope.core import processes
from stepscope.core.errors import DataError, Unavailable
from stepscope.core.places import cache_dir
from stepscope.machine.probes._common import Facts, ProbeContext, probe
from stepscope.records.codec import decode, encode_document, plain
from stepscope.records.environment import TorchFact

_THREAD_VARIABLES = ("OMP_", "MKL_", "ATEN_", "TORCH_", "LD_")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def recall(environ: Mapping[str, str]) -> TorchFact | None:
    """The remembered answer; None when there is none for this Python, torch and boot."""
    path = _answer_file(environ)
    if path is None:
        return None
    try:
        return decode(path.read_bytes(), TorchFact, source=str(path))
    except (OSError, DataError):
        return None


def remember(fact: TorchFact, environ: Mapping[str, str]) -> None:
    """Keep ``fact`` for :func:`recall` if it cannot change; a cache that cannot be written is left alone."""
    path = _answer_file(environ)
    if path is None or fact.cuda_version is not None or fact.hip_version is not None or fact.device_count:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(encode_document(plain(fact)))
        temporary.replace(path)
    except OSError:
        return


def _answer_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file of the remembered answer; None where torch, or the boot, cannot be told."""
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
    key = (__version__, sys.executable, sys.version, origin, stat.st_mtime_ns, stat.st_size, boot, cores, deciding)
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    return cache_dir(environ) / "torch" / f"{name}.json"


@probe("torch, CUDA, NCCL, gloo and BF16 (in a process of its own)")
def torch(context: ProbeContext) -> Facts | Unavailable:
    """``torch`` = TorchFact of this Python."""
    remembered = recall(context.environ) if context.remember else None
    answer = remembered or ask(
        [sys.executable, "-m", "stepscope.rank", "--probe"], environ=context.environ, timeout_s=context.torch_timeout_s
    )
    if isinstance(answer, Unavailable):
        return answer
    if remembered is None and context.remember:
        remember(answer, context.environ)
    return {"torch": answer}


def ask(command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float) -> TorchFact | Unavailable:
    """Run ``command`` and read the TorchFact from the last JSON line of its stdout."""
    try:
        process = processes.ask(command, environ=environ, timeout_s=timeout_s)
    except OSError as error:
        return Unavailable(f"{command[0]} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Unavailable(f"importing torch and listing its devices took over {timeout_s:g} s and was stopped")
    if process.returncode != 0:
        return Unavailable(_failure_text(process.returncode, process.stderr))
    lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return Unavailable("the torch probe exited without a result")
    try:
        return decode(lines[-1].encode(), TorchFact, source="the torch probe's answer")
    except DataError as error:
        return Unavailable(f"{error.what}: {error.why}")


def _failure_text(code: int, problem: str) -> str:
    """Say how the process that asked torch ended: by which signal, or its last line."""
    lines = [line for line in problem.strip().splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no message"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"importing torch was killed by {name}: {last}"
    return last if code == 3 else f"the torch probe failed with exit code {code}: {last}"
