"""``stepscope schema``: JSON Schemas of every file and document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.cli.command import Command, Options, argument, switch
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown


class Schema(Options):
    """Print the JSON Schemas of the files in run folders and of the documents that `--json` prints."""

    name: str | None = argument("One schema (run, training_run, diagnose); default: all.", "NAME", default=None)
    names: bool = switch("Only the names.", "--list", only="")


def documents() -> Mapping[str, Mapping[str, Any]]:
    """Return what commands print with --json: keys and what they hold."""
    from stepscope.diagnose.screen import Screen
    from stepscope.records.cell import RunRecord
    from stepscope.records.comm import CommRow
    from stepscope.records.comparison import ComparedFigure, Difference, ScalingBudget
    from stepscope.records.environment import EnvironmentRecord
    from stepscope.records.finding import Finding, JobVerdict, Quiet, Skipped
    from stepscope.records.prediction import BucketAdvice
    from stepscope.records.schemas import object_type
    from stepscope.records.trace_summary import TraceDiff
    from stepscope.records.training import ScalingRow
    from stepscope.report.documents import TRACE_LISTS, TRACE_TABLES
    from stepscope.results.run_figures import BENCH

    objects = list[dict[str, Any]]
    row = object_type("BenchRow", {name: figure.kind for name, figure in BENCH.items()})
    conditions: Mapping[str, Any] = {
        "differences": tuple[Difference, ...], "same": tuple[Difference, ...], "unknown": tuple[Difference, ...],
    }  # fmt: skip
    diagnosis: Mapping[str, Any] = {
        "sources": list[dict[str, str | None]],
        "files_found": list[dict[str, Any]],
        "metrics": dict[str, float | None],
        "screen": Screen,
        "verdict": JobVerdict | None,
        "findings": tuple[Finding, ...],
        "skipped": tuple[Skipped, ...],
        "quiet": tuple[Quiet, ...],
        "scaling": tuple[ScalingRow, ...],
        "notes": list[str],
    }
    return {
        "bench/1": {"run": RunRecord | None, "cells": list[row], "experiment": objects},  # type: ignore[valid-type]
        "suite/1": {
            "name": str,
            "world_size": int | None,
            "timestamp": str,
            "config": dict[str, Any],
            "results": dict[str, dict[str, Any]],
            "links": objects,
            "recommendations": tuple[Finding, ...],
            "run": RunRecord,
        },
        "presets/1": {"presets": objects},
        "plan/1": {
            "total_ns": float | None,
            "upper_bound": bool,
            "profiled": bool,
            "comm": dict[str, Any] | None,
            "cells": objects,
        },
        "comm/1": {"run": str, "rows": tuple[CommRow, ...]},
        "diagnose/1": diagnosis,
        "rules/1": {"rules": list[dict[str, Any]]},
        "compare/1": {
            "sides": list[str],
            **conditions,
            "scaling": tuple[ScalingBudget, ...],
            "figures": tuple[ComparedFigure, ...],
            "unmatched": list[str],
            "notes": list[str],
        },
        "watch/1": {
            "run": str,
            "state": str,
            "said": str | None,
            "silent_s": float | None,
            "step": int,
            "steps_looked_at": int,
            "ranks_seen": int,
            "world_size": int | None,
            "hosts": int,
            "verdict": JobVerdict | None,
            "throughput": dict[str, Any] | None,
            "ranks": objects,
            "events": objects,
        },
        "notice/1": {**dict.fromkeys(("event", "job", "host", "folder", "text"), str), "verdict": JobVerdict},
        "report/1": {**diagnosis, "files": list[str], "not_drawn": dict[str, str]},
        "trace/1": {
            "world_size": int | None,
            "metrics": dict[str, float | None],
            "findings": tuple[Finding, ...],
            "skipped": tuple[Skipped, ...],
            **dict.fromkeys(
                (*TRACE_LISTS, "verdicts", "ranks", "steps", "collectives", "stragglers", *TRACE_TABLES), objects
            ),
            **dict.fromkeys(("quality", "unavailable", "notes"), objects),
            "clocks": Any,
            "straggler_report": str | None,
            "job_path": Any,
        },
        "folders/1": {"folders": objects},
        "open/1": {**dict.fromkeys(("sources", "files_found"), objects), "headline": str, "tables": list[str]},
        "table/1": {
            "name": str,
            "units": dict[str, str],
            "of": int,
            "offset": int,
            "next_offset": int | None,
            "rows": objects,
        },
        "next_command/1": {"steps": objects, "record": objects},
        "trace_diff/1": {**conditions, "diffs": tuple[TraceDiff, ...], "notes": list[str]},
        "predict/1": {"kind": str},
        "layout_plan/1": {"best": objects, "alternatives": objects, "priced": int, "dropped": int, "notes": list[str]},
        "buckets/1": {"choice": dict[str, Any], "measured": dict[str, float], "advice": BucketAdvice},
        "hardware/1": {"accelerators": objects},
        "doctor/1": {
            "environment": EnvironmentRecord,
            "links": dict[str, Any] | None,
            "checks": objects,
            "summary": dict[str, int],
        },
        "doctor_hosts/1": {"sound": bool, "nodes": objects, "differences": objects, "pairs": objects},
        "doctor_quick/1": {"healthy": bool, "ranks": objects, "checks": objects},
    }


def run(options: Schema) -> int:
    """Print all schemas, one of them, or their names. Raises UsageError for an unknown one."""
    from stepscope.cli.console import print_json, say
    from stepscope.records.codec import encode_document
    from stepscope.records.schemas import DIALECT, document_schema, record_schemas

    schemas = {**record_schemas(), **{key: document_schema(key, fields) for key, fields in documents().items()}}
    name = options.name
    if options.names:
        for key in sorted(schemas):
            say(key)
        return 0
    if name is None:
        print_json(encode_document({"$schema": DIALECT, "schemas": schemas}))
        return 0
    matches = [key for key in schemas if name in (key, key.partition("/")[0], f"stepscope.{key}")]
    if not matches:
        raise UsageError(unknown("schema", name, sorted(schemas)), fix="`stepscope schema --list` names all of them")
    print_json(encode_document(schemas[matches[0]]))
    return 0


COMMAND = Command(options=Schema, where="stepscope.cli.commands.schema", panel="Reference")
