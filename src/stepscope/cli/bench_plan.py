"""What ``bench`` shows without running anything: presets, the resolved matrix, the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepscope.cli.bench_run import default_run_dir
from stepscope.cli.console import out, print_json
from stepscope.cli.progress import label
from stepscope.core.units import format_bytes, format_count, format_duration
from stepscope.matrix.load import load_matrix
from stepscope.matrix.presets import list_presets
from stepscope.matrix.resolved import matrix_yaml
from stepscope.matrix.session import Plan, estimate
from stepscope.records import codec
from stepscope.store.layout import RunLayout


def step_overrides(*, warmup: str | None, steps: str | None) -> list[str]:
    """``--warmup`` and ``--steps`` as ``--set`` changes; a fixed number of steps takes the place of epochs."""
    changes = []
    if warmup is not None:
        changes.append(f"measure.warmup={warmup}")
    if steps is not None:
        changes += ["base.epochs=null", f"base.steps={steps}"]
    return changes


def print_presets(*, json: bool) -> int:
    presets = list_presets()
    if json:
        document = {"schema": "stepscope.presets/1", "presets": [codec.to_builtins(p) for p in presets]}
        print_json(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return 0
    width = max(len(p.name) for p in presets)
    for preset in presets:
        out().print(f"{preset.name:<{width}}  {preset.description}", markup=False, soft_wrap=True)
    out().print(
        "\nrun one:  stepscope bench --preset NAME      see it:  stepscope bench --preset NAME --show",
        markup=False,
    )
    return 0


def print_matrix(source: Path | str, *, overrides: Sequence[str]) -> int:
    print(matrix_yaml(load_matrix(source, overrides=overrides)), end="")
    return 0


def print_plan(plan: Plan, *, output: Path | None, json: bool) -> int:
    """The cells in order, what each sends, and how long it may all take."""
    expected = estimate(plan, RunLayout(output or default_run_dir(plan.matrix.name)))
    durations = {cell.cell_id: cell for cell in expected.cells}
    if json:
        document = {
            "schema": "stepscope.plan/1",
            "total_ns": expected.total_ns,
            "upper_bound": expected.upper_bound,
            "cells": [
                {
                    "spec": codec.to_builtins(cell.spec),
                    "num_parameters": None if cell.facts is None else cell.facts.num_parameters,
                    "comm_plan": codec.to_builtins(cell.comm_plan),
                    "unsupported": cell.unsupported,
                    "skipped": cell.skipped,
                    "estimate_ns": durations[cell.spec.cell_id].duration_ns if cell.runnable else None,
                }
                for cell in plan.cells
            ],
        }
        print_json(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return 0
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title, justify in (("cell", "left"), ("params", "right"), ("collectives", "right"), ("sent/step", "right"),
                           ("at most", "right"), ("", "left")):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=title != "", overflow="fold")  # type: ignore[arg-type]
    for cell in plan.cells:
        sent = sum(op.size_bytes for op in cell.comm_plan)
        table.add_row(
            label(cell.spec),
            "-" if cell.facts is None else format_count(cell.facts.num_parameters),
            str(len(cell.comm_plan)),
            format_bytes(sent) if sent else "-",
            format_duration(durations[cell.spec.cell_id].duration_ns) if cell.runnable else "-",
            f"unsupported: {cell.unsupported}" if cell.unsupported else (cell.skipped or ""),
        )
    out().print(table)
    runnable = sum(cell.runnable for cell in plan.cells)
    bound = "at most " if expected.upper_bound else "about "
    out().print(
        f"\n{runnable} of {len(plan.cells)} cells to run, {bound}{format_duration(expected.total_ns)} "
        f"with {format_duration(expected.startup_ns)} of start-up",
        markup=False,
    )
    return 0
