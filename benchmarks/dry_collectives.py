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
SCRIPT, STAGES_SCRIPT = (HERE / "dry_scripts" / name for name in ("shapes.py", "stages.py"))
SHAPES = (
    "ddp", "ddp-1mb", "ddp-sync", "ddp-sync-twice", "ddp-static", "ddp-unused", "ddp-static-unused", "ddp-view",
    "ddp-fp16", "ddp-powersgd", "ddp-buffers", "ddp-pictures", "fsdp2", "fsdp2-mixed", "fsdp2-keep",
    "fsdp2-accumulate", "hsdp", "fsdp1", "fsdp1-mixed", "fsdp1-grad", "fsdp1-none", "fsdp1-originals",
    "fsdp1-accumulate", "fsdp1-hybrid", "zero1", "zero1-view", "tp", "sp", "tp-fsdp2", "tp-ddp", "loss-parallel", "ep",
    "ep-functional",
)  # fmt: skip
ELSEWHERE = ("ddp-powersgd",)
"""What a hook computes of a result runs in gloo's threads, where the witness does not see it: no FLOP are compared."""
STAGES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "looped", "traced", "experts")
STAGES_OF_4 = ("1f1b-ddp", "1f1b-fsdp2", "interleaved-fsdp2", "zbv-fsdp2", "1f1b-tp", "interleaved-tp")
"""Shapes of ``stages.py``, of which every rank is compared: on 2 ranks and 4, on 4 alone."""
WORLDS = (2, 4)
TIMEOUT_S = 600
Seen = tuple[list[Call], dict[str, int]]


def main(shapes: Sequence[str] = ()) -> int:
    """Print a line a shape, world and rank; return how many differ."""
    different = 0
    print(f"{'shape':20}{'ranks':>6}{'calls':>7}{'bytes':>13}  collectives   FLOP")
    for world in WORLDS:
        pipelines = STAGES if world == 2 else STAGES + STAGES_OF_4
        for script, of_script, ranks in ((SCRIPT, SHAPES, 1), (STAGES_SCRIPT, pipelines, world)):
            if asked := [shape for shape in of_script if not shapes or shape in shapes]:
                different += compare(script, asked, world, ranks)
    return different


def compare(script: Path, shapes: Sequence[str], world: int, ranks: int) -> int:
    """Print a line a shape, and a rank that differs; return how many differ."""
    truth, different = real(script, shapes, world, ranks), 0
    for shape in shapes:
        with tempfile.TemporaryDirectory() as folder:
            pairs = [(truth[rank][shape], dry(script, shape, world, rank, Path(folder))) for rank in range(ranks)]
        same = all(one[0] == other[0] for one, other in pairs), all(one[1] == other[1] for one, other in pairs)
        different += not (same[0] and (same[1] or shape in ELSEWHERE))
        words = ["equal" if equal else "DIFFERENT" for equal in same]
        if shape in ELSEWHERE:
            words[1] = "not compared"
        calls = [call for one, _ in pairs for call in one[0]]
        size = sum(call[1] for call in calls)
        print(f"{shape:20}{world:6}{len(calls):7}{size:13,}  {words[0]:12}  {words[1]} {pairs[0][0][1]}", flush=True)
        for rank, (one, other) in enumerate(pairs):
            if one[0] != other[0] or (one[1] != other[1] and shape not in ELSEWHERE):
                print(f"   rank {rank}: real", *one, "\n   dry ", *other)
    return different


def real(script: Path, shapes: Sequence[str], world: int, ranks: int) -> list[dict[str, Seen]]:
    """Return, for each of the first ranks, the calls and FLOP of a step on gloo with each shape."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks._dry_calls", str(out), str(script), *shapes]
        children = [
            subprocess.Popen(
                command, env=_environment(rank, world), cwd=HERE.parent, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for rank in range(world)
        ]  # fmt: skip
        errors = [child.communicate(timeout=TIMEOUT_S)[1].decode() for child in children]
        written = [Path(f"{out}-{rank}") for rank in range(ranks)]
        if not all(path.exists() for path in written):
            sys.exit(f"on {world} ranks:\n{errors[0][-3000:]}")
        documents = [json.loads(path.read_text()) for path in written]
    return [
        {
            shape: ([(op, size, dtype, tuple(members)) for op, size, dtype, members in calls], flop)
            for shape, (calls, flop) in document.items()
        }
        for document in documents
    ]


def dry(script: Path, shape: str, world: int, rank: int, folder: Path) -> Seen:
    """Return the same of a dry run; those of ranks before this one are in the folder."""
    control = folder / ".stepscope"
    control.mkdir(exist_ok=True)
    options = {"rank": rank, "world": world, "output": str(folder), "tool_version": "benchmark", "ranks_per_node": 8}
    environment = {
        **_environment(rank, world), "STEPSCOPE_HOOK": json.dumps({"dry": options}), "PYTHONPATH": str(HOOK),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), shape],
        env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    written = control / f"world-{world:06}-rank-{rank:06}.json"
    if not written.exists():
        failures = [path.read_text() for path in control.glob("failure-*.json")]
        sys.exit(f"{shape} on {world} ranks, dry: {failures}\n{done.stderr[-3000:]}")
    return of_record(json.loads(written.read_text()))


def _environment(rank: int, world: int) -> Mapping[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    port = 20000 + os.getpid() % 20000
    return {
        **os.environ, **{name: str(number) for name, number in names.items()}, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "2000",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
