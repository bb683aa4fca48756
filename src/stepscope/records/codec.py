"""Records to bytes and back. The only user of msgspec for records.

Every file is one JSON object: ``schema`` ("stepscope.<kind>/<version>"), ``tool_version``, ``created`` (UTC), then
the record's fields. Non-finite floats are refused when writing (msgspec alone would write null). A file of a newer
schema is refused; an older one goes through :mod:`stepscope.records.migrations`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from stepscope import __version__
from stepscope.core.errors import DataError, StepscopeError
from stepscope.core.places import utc_now
from stepscope.records import calibration, cell, comm, dry_run, plan, profile, samples, tuning
from stepscope.records.cell import ReportFiles
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.finding import JobVerdict
from stepscope.records.migrations import RENAMED, migrate
from stepscope.records.nccl import FlightDump
from stepscope.records.training import TrainingRun

T = TypeVar("T")

KINDS: dict[type, tuple[str, int]] = {
    cell.RunRecord: ("run", 1),
    cell.CellStatus: ("status", 1),
    TrainingRun: ("training_run", 2),
    EnvironmentRecord: ("environment", 1),
    cell.CellSpec: ("spec", 1),
    cell.GroupSpec: ("group_spec", 1),
    samples.SamplesHeader: ("rank_samples", 1),
    samples.RankSummary: ("rank_summary", 1),
    samples.Heartbeat: ("heartbeat", 1),
    samples.RankError: ("rank_error", 1),
    plan.ModelFacts: ("model_facts", 1),
    FlightDump: ("flight_dump", 1),
    comm.CommSpec: ("comm_spec", 1),
    comm.CommHeader: ("comm_samples", 1),
    comm.CommSummary: ("comm_summary", 1),
    comm.CommRow: ("comm_row", 1),
    calibration.Calibration: ("calib", 1),
    profile.ProfileRecord: ("profile", 1),
    profile.HookedProcess: ("profile_process", 1),
    profile.HookedRank: ("profile_rank", 1),
    profile.WindowOfRank: ("profile_window_rank", 1),
    profile.FailedProcess: ("profile_failure", 1),
    profile.JobEnd: ("job_end", 1),
    ReportFiles: ("report_files", 1),
    JobVerdict: ("verdict", 1),
    tuning.HookedKnobs: ("profile_knobs", 1),
    tuning.Tuned: ("tune", 1),
    dry_run.DryRun: ("dry_run", 1),
    dry_run.DryRank: ("dry_rank", 1),
    dry_run.DryFailure: ("dry_failure", 1),
    dry_run.DryProfile: ("dry_profile", 1),
}
"""Kind and current version of every record that has a file of its own."""


def to_builtins(record: object) -> Any:
    """Turn a record into plain dicts and lists, checked for NaN and infinity."""
    plain = msgspec.to_builtins(record)
    _refuse_non_finite(plain, type(record).__name__)
    return plain


def plain(record: object) -> Any:
    """Turn a record into plain dicts and lists, unchecked: ``encode_document``, which writes them, checks them."""
    return msgspec.to_builtins(record)


def headed(schema: str) -> dict[str, Any]:
    """Return what every file and document begins with: ``stepscope.SCHEMA``, the tool's version, UTC time."""
    return {"schema": f"stepscope.{schema}", "tool_version": __version__, "created": utc_now()}


def encode_document(document: Mapping[str, Any], *, indent: int = 1) -> bytes:
    """Write plain values as an indented JSON document. Raises StepscopeError for NaN and infinity, as ``encode``.

    indent: -1: on one line, without blanks. Bytes of file names that are no UTF-8 become question marks: JSON is.
    """
    try:
        text = json.dumps(document, allow_nan=False)  # without indent: that path is compiled
    except ValueError as error:
        _refuse_non_finite(document, "document")
        raise StepscopeError("a document cannot be written as JSON", why=str(error)) from error
    if "\\udc" in text:
        text = json.dumps(_in_utf8(document), allow_nan=False)
    return msgspec.json.format(text.encode(), indent=indent)


def _in_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_in_utf8(key): _in_utf8(part) for key, part in value.items()}
    return [_in_utf8(part) for part in value] if isinstance(value, list | tuple) else value


def encode(record: object) -> bytes:
    """The record as an indented JSON document with its schema line."""
    document = _with_header(record)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def encode_line(record: object, *, header: bool = False) -> bytes:
    """Write the record as one JSON line; ``header`` adds the schema (first line of a .jsonl, every row of results.jsonl)."""
    document = _with_header(record) if header else to_builtins(record)
    return msgspec.json.encode(document) + b"\n"


def decode(data: bytes, kind: type[T], *, source: str) -> T:
    """The record in ``data``; ``source`` (a path) names it in errors. Raises DataError."""
    return _converted_record(_object_in(data, source, fix="the file is damaged; delete it and run again"), kind, source)


def _object_in(data: bytes, source: str, *, fix: str | None = None) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: not readable as JSON", why=str(error), fix=fix) from error
    if not isinstance(document, dict):
        raise DataError(f"{source}: expected a JSON object, found {type(document).__name__}")
    return document


def decode_lines(data: bytes, kind: type[T], *, source: str) -> Iterator[T]:
    """Records of a .jsonl body, one a line, or of one JSON list; a torn last line (a killed writer) is left out."""
    if re.match(rb"\s*\[\s*\{", data):
        yield from _decode_list(data, kind, source)
        return
    lines = data.split(b"\n")
    complete, rest = lines[:-1], lines[-1]
    del rest  # either empty or torn: a record ends with its newline
    for number, line in enumerate(complete, start=1):
        if not line:
            continue
        yield _converted_record(_object_in(line, f"{source}:{number}"), kind, f"{source}:{number}")


def _decode_list(data: bytes, kind: type[T], source: str) -> Iterator[T]:
    try:
        documents = msgspec.json.decode(data, type=list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: not readable as a JSON list of records", why=str(error)) from error
    for place, document in enumerate(documents):
        yield _converted_record(document, kind, f"{source}: [{place}]")


def _converted_record(document: dict[str, Any], kind: type[T], source: str) -> T:
    name, version = KINDS.get(kind, (None, None))
    schema = document.get("schema")
    if name is not None and schema is not None:
        document = _at_current_version(document, schema, name, version or 0, source)
    try:
        try:
            return msgspec.convert(document, kind)
        except msgspec.ValidationError:  # another program may have rewritten the file and made 8 an 8.0
            return msgspec.convert(_with_whole_numbers(document), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DataError(f"{source}: not a valid {kind.__name__}", why=str(error)) from error


def _with_whole_numbers(value: Any) -> Any:
    """Return ``value`` with whole numbers where floats have no fraction."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _at_current_version(
    document: dict[str, Any], schema: object, name: str, version: int, source: str
) -> dict[str, Any]:
    found_name, _, found_version = str(schema).removeprefix("stepscope.").partition("/")
    if RENAMED.get(found_name, found_name) != name or not re.fullmatch(r"[0-9]{1,9}", found_version):
        raise DataError(f"{source}: expected schema stepscope.{name}/{version}, found {str(schema)[:60]!r}")
    if int(found_version) > version:
        raise DataError(
            f"{source}: written by a newer stepscope (schema {schema}, this one reads up to {version})",
            fix="read it with the stepscope that wrote it, or a newer one",
        )
    try:
        return migrate(document, name, int(found_version), version)
    except (
        KeyError,
        TypeError,
        AttributeError,
    ) as error:  # a field of that version is not there, or holds something else
        raise DataError(f"{source}: not a valid {schema}", why=f"{type(error).__name__}: {error}") from error


def _with_header(record: object) -> dict[str, Any]:
    try:
        name, version = KINDS[type(record)]
    except KeyError:
        raise StepscopeError(f"{type(record).__name__} has no schema in records.codec.KINDS") from None
    body: dict[str, Any] = to_builtins(record)
    return headed(f"{name}/{version}") | body


def _refuse_non_finite(value: Any, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StepscopeError(f"{path} is {value}: a record never holds NaN or infinity")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_non_finite(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{path}[{index}]")


def field_names(kind: type) -> tuple[str, ...]:
    """Field names of a record in order, for CSV headers."""
    return tuple(f.name for f in dataclasses.fields(kind))
