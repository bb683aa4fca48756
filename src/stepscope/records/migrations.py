"""Pure upgrades of old files, one step per version. tests/data/schema keeps one frozen example of each version.

``MIGRATIONS["status"][1]`` would turn a version-1 document into version 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.core.words import counted

Document = dict[str, Any]

RENAMED = {"result_row": "training_run"}
"""Kinds that older files call by another name."""


def _training_run_2(row: Document) -> Document:
    """A flat row of schema 1 as a run: what rows did not have (phases, epochs, settings, hardware) stays unknown.

    Its speed-up and efficiency go: they are made from the runs, of which ``baseline_id`` names the other one.
    """
    step = _measured_document(row, "step_ns_median", "step_ns_low", "step_ns_high", n=row.get("steps"))
    ranks = row["world_size"]
    options = row.get("strategy_options") or {}
    model = _with_options(row["workload"], row.get("model") or {})
    strategy = _with_options(row["strategy"], options)
    same = (
        "status", "error", "world_size", "workload", "dataset", "dataset_size", "precision", "accumulation", "micro_batch",
        "global_batch", "device", "backend", "num_parameters", "comm_bytes_per_step", "comm_source", "train_loss",
        "test_accuracy", "samples_seen_per_rank", "peak_memory_bytes", "scaling", "epoch_estimated", "steps_per_epoch",
        "threads_per_rank",
    )  # fmt: skip
    return {
        **{name: row.get(name) for name in same},
        "run_id": row["cell_id"],
        "label": f"{strategy} on {counted(ranks, 'rank')}",
        "group": f"{model} on {row['dataset']}, {row['precision']}"
        + (f", accumulation {row['accumulation']}" if row["accumulation"] > 1 else ""),
        "source": "results.jsonl",
        "model": model,
        "model_options": row.get("model") or {},
        "strategy": strategy,
        "strategy_key": row["strategy"],
        "strategy_options": options,
        "baseline_id": row.get("baseline_cell_id"),
        "epochs_asked": row.get("epochs"),
        "step_ns": step,
        "epoch_ns": _measured_document(row, "epoch_ns", "epoch_ns_low", "epoch_ns_high"),
        "exposed_comm_ns": _measured_document(
            row, "exposed_comm_ns_median", "exposed_comm_ns_low", "exposed_comm_ns_high", n=row.get("steps")
        ),
        "samples_per_s": _rate_document(row.get("samples_per_s"), step),
        "settings": row.get("varied") or {},
        "varied": row.get("varied") or {},
        "notes": row.get("notes") or [],
    }


def _measured_document(row: Document, middle: str, low: str, high: str, *, n: int | None = None) -> Document | None:
    if row.get(middle) is None:
        return None
    return {"value": row[middle], "low": row.get(low), "high": row.get(high), "n": n}


def _rate_document(value: float | None, step: Document | None) -> Document | None:
    """Return a rate with the step's interval turned over: a long step is a low rate."""
    if value is None:
        return None
    if step is None or step["low"] is None or step["high"] is None:
        return {"value": value}
    middle = step["value"]
    return {"value": value, "low": value * middle / step["high"], "high": value * middle / step["low"], "n": step["n"]}


def _with_options(key: str, options: Document) -> str:
    return " ".join([key, *(f"{name}={value}" for name, value in sorted(options.items()))])


MIGRATIONS: dict[str, dict[int, Callable[[Document], Document]]] = {"training_run": {1: _training_run_2}}


def migrate(document: Document, kind: str, version_read: int, wanted: int) -> Document:
    """Bring ``document`` from version ``version_read`` to version ``wanted``, and take its header keys off."""
    steps = MIGRATIONS.get(kind, {})
    for version in range(version_read, wanted):
        document = steps[version](document)
    return {k: v for k, v in document.items() if k not in ("schema", "tool_version", "created")}
