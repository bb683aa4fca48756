"""How good traces are made: what help, errors and the README show."""

from __future__ import annotations

RECIPE = """\
from torch.profiler import profile, schedule
save = lambda p: p.export_chrome_trace(f"trace-rank{rank}.json.gz")
plan = schedule(wait=10, warmup=2, active=5, repeat=1)
with profile(schedule=plan, record_shapes=True, on_trace_ready=save) as prof:
    for batch in loader:
        train_step(batch); prof.step()
"""
"""Whole steps after warm-up, shapes for FLOP and sizes, one file a rank with the rank in its name."""


def how_to_record(otherwise: str) -> str:
    """``otherwise``, or how to record traces: for the fix of an error that found none."""
    indented = "".join(f"\n    {line}" for line in RECIPE.splitlines())
    return f"{otherwise}; without traces: `stepscope profile -- COMMAND`, or in the training script{indented}"
