"""Memory of dry runs, by kind, against the same scripts really run on this machine."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.launch.hooked_job import HOOK
from stepscope.records.dry_run import MEMORY_KINDS

SCRIPT = Path(__file__).parent / "dry_scripts" / "kinds_of_memory.py"
ALONE = (
    "mlp", "sgd", "fused", "flat", "conv", "gpt", "single", "adafactor", "llama", "checkpoint", "checkpoint-reentrant",
    "checkpoint-function", "offload", "accumulate", "autocast", "tied", "lora",
)  # fmt: skip
RANKS = (
    "ddp", "ddp-views", "ddp-accumulate", "zero1", "zero1-views", "fsdp2", "fsdp2-keep", "fsdp2-mixed", "fsdp2-accumulate",
    "fsdp1", "fsdp1-originals", "tp",
)  # fmt: skip
EXACT = ("parameters", "gradients", "optimizer")
INSIDE = ("checkpoint", "checkpoint-reentrant", "checkpoint-function", "offload")
"""Jobs whose own hooks keep what is saved: only their peaks are compared. Of ranks the allocator's profile says nothing:
gloo copies in threads of its own."""
PRELOADED = (
    "torch", "torch._subclasses.fake_tensor", "torch.testing._internal.distributed.fake_pg", "torch.utils.flop_counter",
    "torch.distributed.device_mesh",
)  # fmt: skip


def main(jobs: Sequence[str] = ()) -> int:
    """Print a line a job: bytes of the dry run, and how much more that is than of the real run. Return how many are off."""
    os.environ.update({"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    sys.path.insert(1, str(HOOK))
    for name in ("stepscope_dry", *PRELOADED):
        importlib.import_module(name)
    columns = (*EXACT, "activations", "peak", "allocator")
    print("job".ljust(21), *(f"{name:>21}" for name in columns))
    off = 0
    for job in jobs or (*ALONE, *RANKS):
        try:
            found = compared(job, 2 if job in RANKS else 1)
        except RuntimeError as error:
            off += 1
            print(job.ljust(21), error, flush=True)
            continue
        off += any(a != b if name in EXACT else abs(a - b) > 0.03 * b for name, (a, b) in found.items() if b)
        print(job.ljust(21), *(_cell(*found.get(name, (0, 0))) for name in columns), flush=True)
    return off


def compared(job: str, world: int) -> dict[str, tuple[int, int]]:
    """Return (bytes of the dry run, of the real run) of each kind at its most, and of the peak."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".stepscope").mkdir()
        hook = {"rank": 0, "world": world, "output": name, "tool_version": "benchmark", "ranks_per_node": world}
        _wait([_forked(lambda: _dry(hook, job), 0, world, folder / "dry.log")])
        _wait([_forked(lambda: _real(folder / "real", job), n, world, folder / f"{n}.log") for n in range(world)])
        written = list((folder / ".stepscope").glob("world-*.json"))
        if not written or not (folder / "real").exists():
            raise RuntimeError("".join(path.read_text()[-3000:] for path in folder.glob("*.log")))
        memory, real = json.loads(written[0].read_text())["memory"], json.loads((folder / "real").read_text())
    points = (*memory["samples"], memory["peak"])
    dry = {kind: max(point[n] for point in points) for n, kind in enumerate(MEMORY_KINDS)}
    dry["peak"] = dry["allocator"] = sum(memory["peak"])
    left_out = {*(["activations"] if job in INSIDE else []), *(["allocator"] if world > 1 else [])}
    return {name: (dry[name], size) for name, size in real.items() if name not in left_out}


def _forked(run: Callable[[], None], rank: int, world: int, log: Path) -> int:
    """Run in another process, as one of these ranks; return its number."""
    process = os.fork()
    if process:
        return process
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
    }
    os.environ.update(
        {name: str(value) for name, value in names.items()}, MASTER_PORT=str(20000 + os.getppid() % 20000)
    )
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    try:
        run()
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    os._exit(1)


def _wait(processes: Sequence[int]) -> None:
    for process in processes:
        os.waitpid(process, 0)


def _dry(hook: dict[str, Any], job: str) -> None:
    stepscope_dry = importlib.import_module("stepscope_dry")
    sys.argv = [str(SCRIPT), job]
    stepscope_dry.install(hook)
    runpy.run_path(str(SCRIPT), run_name="__main__")


def _real(out: Path, job: str) -> None:
    from benchmarks._dry_memory import count

    count(out if os.environ["RANK"] == "0" else Path(os.devnull), [str(SCRIPT), job])


def _cell(dry: int, real: int) -> str:
    if not real:
        return " " * 21
    return f"{dry:,}{'=' if dry == real else f'{dry / real - 1:+.2%}':>8}".rjust(21)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
