"""torch: what only torch knows, asked in a process of its own because it may be absent, crash or hang."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from stepscope.core import processes
from stepscope.core.errors import DataError, Unavailable
from stepscope.machine import torch_memory
from stepscope.machine.probes._common import Facts, Probe, ProbeContext
from stepscope.records.codec import decode
from stepscope.records.environment import TorchFact


def run(context: ProbeContext) -> Facts | Unavailable:
    """``torch`` = TorchFact of this Python."""
    known = torch_memory.recall(context.environ) if context.remember else None
    answer = known or ask(
        [sys.executable, "-m", "stepscope.rank", "--probe"],
        environ=context.environ,
        timeout_s=context.torch_timeout_s,
    )
    if isinstance(answer, Unavailable):
        return answer
    if known is None and context.remember:
        torch_memory.remember(answer, context.environ)
    return {"torch": answer}


def ask(command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float) -> TorchFact | Unavailable:
    """Run ``command`` and read the TorchFact from the last JSON line of its stdout."""
    try:
        told = processes.ask(command, environ=environ, timeout_s=timeout_s)
    except OSError as error:
        return Unavailable(f"{command[0]} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Unavailable(f"importing torch and listing its devices took over {timeout_s:g} s and was stopped")
    if told.returncode != 0:
        return Unavailable(_failure(told.returncode, told.stderr))
    lines = [line for line in told.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return Unavailable("the torch probe exited without a result")
    try:
        return decode(lines[-1].encode(), TorchFact, source="the torch probe's answer")
    except DataError as error:
        return Unavailable(f"{error.what}: {error.why}")


def _failure(code: int, problem: str) -> str:
    said = [line for line in problem.strip().splitlines() if line.strip()]
    last = said[-1].strip() if said else "no message"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"importing torch was killed by {name}: {last}"
    return last if code == 3 else f"the torch probe failed with exit code {code}: {last}"


PROBE = Probe(summary="torch, CUDA, NCCL, gloo and BF16 (in a process of its own)", run=run)
