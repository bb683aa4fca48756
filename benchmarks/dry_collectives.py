"""Collectives and FLOP of dry runs against the same scripts really run on ranks of gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks._dry_calls import Call, of_record
from stepscope.launch.hooked_job import HOOK

HERE = Path(__file__).parent
SCRIPT = HERE / "dry_scripts" / "shapes.py"
SHAPES = (
    "ddp", "ddp-1mb", "ddp-sync", "ddp-sync-twice", "ddp-static", "ddp-unused", "ddp-static-unused", "ddp-view", "ddp-fp16",
    "ddp-powersgd", "ddp-buffers", "ddp-pictures", "fsdp2", "fsdp2-mixed", "fsdp2-keep", "fsdp2-accumulate", "hsdp", "fsdp1",
    "fsdp1-mixed", "fsdp1-grad", "fsdp1-none", "fsdp1-originals", "fsdp1-accumulate", "zero1", "zero1-view", "tp", "sp",
    "tp-fsdp2", "ep", "ep-functional",
)  # fmt: skip
ELSEWHERE = ("ddp-powersgd",)
"""What a hook computes of a result runs in gloo's threads, where the witness does not see it: no FLOP are compared."""
WORLDS = (2, 4)
TIMEOUT_S = 600


def main(shapes: Sequence[str] = SHAPES) -> int:
    """Print a line a shape and world; return how many differ."""
    different = 0
    print(f"{'shape':20}{'ranks':>6}{'calls':>7}{'bytes':>13}  collectives   FLOP")
    for world in WORLDS:
        truth = real(shapes, world)
        for shape in shapes:
            calls, flop = truth[shape]
            dry_calls, dry_flop = dry(shape, world)
            same = calls == dry_calls, flop == dry_flop or shape in ELSEWHERE
            different += not all(same)
            words = ["equal" if equal else "DIFFERENT" for equal in same]
            if shape in ELSEWHERE:
                words[1] = "not compared"
            size = sum(call[1] for call in calls)
            print(f"{shape:20}{world:6}{len(calls):7}{size:13,}  {words[0]:12}  {words[1]} {flop}", flush=True)
            if not all(same):
                print("   real", calls, flop, "\n   dry ", dry_calls, dry_flop)
    return different


def real(shapes: Sequence[str], world: int) -> dict[str, tuple[list[Call], dict[str, int]]]:
    """Return the calls and FLOP of rank 0 of a step on gloo with each shape."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks._dry_calls", str(out), str(SCRIPT), *shapes]
        ranks = [
            subprocess.Popen(command, env=_environment(rank, world), cwd=HERE.parent, stderr=subprocess.PIPE)
            for rank in range(world)
        ]
        errors = [rank.communicate(timeout=TIMEOUT_S)[1].decode() for rank in ranks]
        if not out.exists():
            sys.exit(f"on {world} ranks:\n{errors[0][-3000:]}")
        document = json.loads(out.read_text())
    return {
        shape: ([(op, size, dtype, tuple(members)) for op, size, dtype, members in calls], flop)
        for shape, (calls, flop) in document.items()
    }


def dry(shape: str, world: int) -> tuple[list[Call], dict[str, int]]:
    """Return the same of a dry run."""
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder) / ".stepscope"
        control.mkdir()
        options = {"rank": 0, "world": world, "output": folder, "tool_version": "benchmark", "ranks_per_node": 8}
        environment = {
            **_environment(0, world), "STEPSCOPE_HOOK": json.dumps({"dry": options}), "PYTHONPATH": str(HOOK),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(SCRIPT), shape],
            env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        written = sorted(control.glob("world-*.json"))
        if not written:
            sys.exit(f"{shape} on {world} ranks, dry:\n{done.stderr[-3000:]}")
        return of_record(json.loads(written[0].read_text()))


def _environment(rank: int, world: int) -> Mapping[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    port = 20000 + os.getpid() % 20000
    return {
        **os.environ, **{name: str(number) for name, number in names.items()}, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "2000",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or SHAPES))
