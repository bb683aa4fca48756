"""The example of a hang: what flight recorders and the log of an 8-rank NCCL job hold when one rank stopped calling."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

WORLD, LOST, CALLS = 8, 5, 24
"""``LOST`` returns from collective ``CALLS`` - 1 and never calls the next one."""

_CREATED_NS = 1_763_800_000_000_000_000
_STEP_NS = 40_000_000


def write(folder: Path) -> None:
    """One pickled dump a rank, as NCCL's watchdog leaves them, and the log of the job."""
    folder.mkdir(parents=True)
    for rank in range(WORLD):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(_dump(rank)))
    (folder / "train.log").write_text("".join(f"{line}\n" for line in _log()))


def _dump(rank: int) -> dict[str, Any]:
    called = CALLS - 1 if rank == LOST else CALLS
    status = {
        "last_enqueued_collective": called,
        "last_started_collective": called,
        "last_completed_collective": CALLS - 1,
    }
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(WORLD)))}},
        "pg_status": {"0": status},
        "entries": [_entry(number) for number in range(1, called + 1)],
    }


def _entry(number: int) -> dict[str, Any]:
    """Four buckets of gradients a step; the last one is smaller."""
    size = [[4_196_352]] if number % 4 == 0 else [[6_553_600]]
    created = _CREATED_NS + (number - 1) // 4 * _STEP_NS + (number - 1) % 4 * 3_000_000
    done = number < CALLS
    return {
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": created,
        "input_sizes": size, "input_dtypes": ["Float"], "output_sizes": size, "output_dtypes": ["Float"],
        "state": "completed" if done else "started", "time_discovered_started_ns": created + 200_000,
        "time_discovered_completed_ns": created + 3_000_000 if done else None, "retired": done,
        "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def _log() -> list[str]:
    waiting = [rank for rank in range(WORLD) if rank != LOST]
    steps = [f"[rank0] step {step} loss {2.31 - 0.04 * step:.4f}" for step in range(CALLS // 4)]
    watchdog = [
        f"[rank{rank}]:[E1122 09:36:{10 + rank:02d}.412 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={CALLS}, OpType=ALLREDUCE, NumelIn=4196352, NumelOut=4196352, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
        for rank in waiting
    ]
    return [*steps, *watchdog]
