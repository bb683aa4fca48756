"""Output of nccl-tests and rccl-tests (``all_reduce_perf`` and the others): one row per size, out of and in place.

What their columns mean: doc/PERFORMANCE.md of nccl-tests. Their time is the mean over iterations that follow each other
without a barrier, averaged over ranks unless ``-a`` was given: not the median of the slowest rank's times that
`stepscope comm` gives.

What nccl-tests writes with ``-J FILE``: the same run as its table, with all digits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, LeftOut
from stepscope.records.nccl import NcclDebug
from stepscope.store.comm_table import UNKNOWN
from stepscope.store.importer import Candidate, Importer
from stepscope.store.nccl_log import read_nccl_debug
from stepscope.store.nccl_tests_facts import Facts, facts_of, ranks_listed
from stepscope.store.nccl_tests_log import (
    MAX_ROWS,
    ROUNDING_GB,
    Log,
    LoggedDevice,
    LoggedFigures,
    LoggedRow,
    LoggedRun,
    begins_table,
    half_unit,
    read_tables,
)
from stepscope.store.reader import finite, read_json, whole
from stepscope.store.stated import stated_ranks

_PROGRAM = re.compile(r"(\w+)_perf$", re.M)


def is_json(text: str) -> bool:
    """Return whether a file begins like the JSON document of nccl-tests."""
    return text.lstrip()[:1] == "{" and '"nccl_version"' in text and '"minimum_bytes"' in text


def read_json_run(path: Path) -> Log:
    """Read the run of the file; no table where it has no result. Raises DataError for what nccl-tests does not write."""
    document = read_json(path)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not isinstance(document.get("config"), dict):
        return Log(tables=(), nccl_lines=0, lines=0)
    if len(results) > MAX_ROWS:
        raise DataError(f"{path}: more than {MAX_ROWS} results", why="no nccl-tests job writes that many")
    config = document["config"]
    run = LoggedRun(
        threads=whole(config.get("nthreads")),
        gpus=whole(config.get("ngpus")),
        warmup=whole(config.get("warmup_iters")),
        iterations=whole(config.get("iterations")),
        together=whole(config.get("aggregated_iterations")) or 1,
        started=_program_name(document, results),
        devices=_devices_by_rank(document.get("devices") or config.get("devices"), config),
        cpu_time="cpu_time" in str(results[:1]),
        ended=True,  # a document that was cut off is none
    )
    bounds, average = document.get("out_of_bounds"), document.get("average_bus_bandwidth")
    run.out_of_bounds = whole(bounds.get("count")) if isinstance(bounds, dict) else None
    mean = finite(average.get("bandwidth")) if isinstance(average, dict) else None
    run.average = None if mean is None else f"{mean:.12g}"
    if version := whole(document.get("nccl_version")):
        run.libraries.append(f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100}")
    for number, result in enumerate(results, start=1):
        row = _json_row(result, number)
        if row is None:
            run.torn.append(number)
        else:
            run.rows.append(row)
    return Log(tables=(run,) if run.rows else (), nccl_lines=0, lines=0)


def _program_name(document: dict[str, Any], results: list[Any]) -> str | None:
    args = document.get("args")
    if isinstance(args, list) and (match := _PROGRAM.search("\n".join(map(str, args)))):
        return match[1]
    first = results[0].get("experiment_name") if results and isinstance(results[0], dict) else None
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", first).lower() if isinstance(first, str) else None


def _devices_by_rank(given: Any, config: dict[str, Any]) -> dict[int, LoggedDevice]:
    """Read the devices by rank. Of each process, only the first of several ranks is written: the others are on
    the same host."""
    by_rank: dict[int, LoggedDevice] = {}
    for entry in given if isinstance(given, list) else ():
        rank = whole(entry.get("rank")) if isinstance(entry, dict) else None
        if rank is not None and 0 <= rank < MAX_ROWS:
            by_rank[rank] = LoggedDevice(
                str(entry.get("hostname")), str(entry.get("device_info")).strip(), whole(entry.get("group")) or 0
            )
    ranks = max(1, (whole(config.get("nthreads")) or 1) * (whole(config.get("ngpus")) or 1))
    for rank in sorted(by_rank):
        for other in range(rank + 1, rank + min(ranks, 1024) if rank % ranks == 0 else rank):
            by_rank.setdefault(other, by_rank[rank])
    return by_rank


def _json_row(result: Any, number: int) -> LoggedRow | None:
    """Return the row of one result; None where it is damaged, or nothing was measured."""
    if not isinstance(result, dict):
        return None
    size, count, dtype = whole(result.get("size")), whole(result.get("count")), result.get("type")
    out, into = _json_figures(result.get("out_of_place")), _json_figures(result.get("in_place"))
    root, redop = str(result.get("root", -1)).strip(), str(result.get("redop") or "none").strip()
    if size is None or count is None or not isinstance(dtype, str) or (out is None and into is None):
        return None
    none = LoggedFigures(None, None, None, None)
    return LoggedRow(
        line=number,
        size_bytes=size,
        count=count,
        dtype=dtype.strip(),
        redop=None if redop == "none" else redop,
        root=int(root) if re.fullmatch(r"-?\d{1,7}", root) else -1,
        out_of_place=out or none,
        in_place=into or none,
    )


def _json_figures(given: Any) -> LoggedFigures | None:
    """Read the figures of one form; None where it was not measured (null)."""
    if not isinstance(given, dict):
        return None
    values = map(finite, (given.get("time", given.get("cpu_time")), given.get("alg_bw"), given.get("bus_bw")))
    time, algbw, busbw = (None if value is None or not 0 <= value < 1e15 else f"{value:.12f}" for value in values)
    wrong = finite(given.get("nwrong"))
    return LoggedFigures(time, algbw, busbw, None if wrong is None else f"{wrong:.0f}")


_OTHERS = "{n} left out (first in line {line}): busbw / algbw is not that of {op} on {ranks} ranks"
MEAN_NOTE = "times are means over back-to-back calls, by default averaged over ranks"

_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "uint": "uint32", "char": "int8",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip
_REDUCE_OPS = {"prod": "product"}
_COARSE = 0.02  # relative rounding of a printed rate, from which on no time follows from it


def _import_tests(source: Candidate) -> Imported:
    """Read the tables of every file as rows; facts that a log leaves open are asked for together."""
    path, stated, files = source.path, source.stated, source.files
    left_out: list[LeftOut] = []
    rows: list[CommRow] = []
    notes: list[str] = []
    hardware: dict[str, None] = {}
    talking: list[Path] = []
    unknown: list[UsageError] = []
    damaged: list[DataError] = []
    for file in files:
        log = read_json_run(file) if is_json(Candidate(file).text) else read_tables(file)
        name = str(file.relative_to(path)) if path.is_dir() else file.name
        if log.nccl_lines:
            talking.append(file)
        if not log.tables:
            left_out += [LeftOut(path=str(file), reason="no row of results")] if source.is_folder else []
        for number, table in enumerate(log.tables):
            title = f"{name} table {number + 1}" if len(log.tables) > 1 else name
            try:
                listed = ranks_listed(table) is not None
                of_table, remarks, gpus = _table_rows(
                    table, title, stated_ranks(title, str(file), stated, listed=listed)
                )
            except UsageError as error:
                unknown.append(error)
                continue
            except DataError as error:
                damaged.append(DataError(f"{title}: {error.what}", why=error.why, fix=error.fix))
                left_out.append(LeftOut(path=str(file), reason=error.what))
                continue
            rows += of_table
            notes += [f"{title}: {note}" for note in remarks]
            hardware |= {gpus: None} if gpus else {}
    if unknown:
        raise _joined_error(unknown)
    if damaged and not rows:
        raise damaged[0]
    nccl = _nccl_of(talking)
    if not rows and nccl is None:
        raise DataError(
            f"{path}: no results of nccl-tests",
            why="it has no row of size, count, type, times and bandwidths: the job exited before the first one",
            fix="check the end of the log for what stopped it",
        )
    if not rows:
        notes = ["no row of results: the job exited before the first one, or the log was cut off", *notes]
    return Imported(
        format="nccl_tests",
        path=str(path),
        comm_rows=tuple(rows),
        nccl=nccl,
        hardware=", ".join(hardware) or None,
        notes=(*notes, *(nccl.notes if nccl is not None else ())),
        remarks=(f"nccl-tests: {MEAN_NOTE}",) if rows else (),
        left_out=tuple(left_out),
    )


def _joined_error(errors: Sequence[UsageError]) -> UsageError:
    if len(errors) == 1:
        return errors[0]
    return UsageError(
        "; ".join(e.what for e in errors),
        why=errors[0].why,
        fix="; ".join(dict.fromkeys(e.fix for e in errors if e.fix)),
    )


def _nccl_of(files: Sequence[Path]) -> NcclDebug | None:
    """Read what NCCL wrote in the same logs; None where that is only a line or two."""
    if not files:
        return None
    try:
        return read_nccl_debug(files)
    except DataError:
        return None


def _table_rows(table: LoggedRun, name: str, given: int | None) -> tuple[list[CommRow], Sequence[str], str | None]:
    """Return (rows, notes, devices) of a table.

    Raises UsageError for facts that the log leaves open, DataError for those that contradict others.
    """
    facts = facts_of(table, name, given)
    others = [row for row in table.rows if _of_another_factor(row, facts.bus_factor)]
    notes = []
    if others:
        notes.append(
            _OTHERS.format(n=counted(len(others), "row"), line=others[0].line, op=facts.op, ranks=facts.world_size)
        )
        table.rows = [row for row in table.rows if row not in others]
    if not table.rows:
        raise DataError(notes[0], fix="copy the log again; if it holds several jobs, split it")
    ways = (("out of place", False), ("in place", True))
    rows = [
        row
        for label, in_place in ways
        for line in table.rows
        if (row := _comm_row(table, line, facts, f"{name}, {label}", in_place=in_place)) is not None
    ]
    return rows, (*facts.notes, *notes, *_table_notes(table)), facts.hardware


def _comm_row(table: LoggedRun, row: LoggedRow, facts: Facts, cell_id: str, *, in_place: bool) -> CommRow | None:
    """Make the record of a row; None for a size of 0 bytes, and for a form that was not measured."""
    figures = row.in_place if in_place else row.out_of_place
    if table.cpu_time:
        figures = replace(figures, time_us=_time_from_rate(row, figures))
    if figures.time_us is None or float(figures.time_us) <= 0 or row.size_bytes == 0:
        return None
    time_ns = float(figures.time_us) * 1e3
    algbw = _rate_bytes_per_s(figures.algbw, row.size_bytes / time_ns, figures.time_us)
    busbw = _rate_bytes_per_s(figures.busbw, row.size_bytes / time_ns * facts.bus_factor, figures.time_us)
    correct, error = _was_right_and_error(table, figures)
    peak = _link_peak(facts)
    fields: dict[str, Any] = {
        "cell_id": cell_id, "status": "ok" if correct is not False else "error", "error": error,
        "op": facts.op, "dtype": _TYPES.get(row.dtype, row.dtype),
        "reduce_op": None if row.redop is None else _REDUCE_OPS.get(row.redop, row.redop),
        "in_place": in_place, "pattern": "ring" if facts.op == "send_recv" else None, "pacing": "back_to_back",
        "root": max(0, row.root or 0), "world_size": facts.world_size, "hosts": facts.hosts, "device": "cuda",
        "backend": "nccl", "size_bytes": row.size_bytes, "asked_bytes": row.size_bytes, "numel": row.count,
        "iterations": table.iterations, "warmup": table.warmup, "time_ns_mean": time_ns,
        "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": busbw, "link_peak_bytes_per_s": peak,
        "link_fraction": None if peak is None or busbw is None else busbw / peak,
        "correct": correct, "notes": (MEAN_NOTE,), "job_hosts": table.apart,
    }  # fmt: skip
    return CommRow(**(UNKNOWN | fields))


def _of_another_factor(row: LoggedRow, factor: float) -> bool:
    """Return whether a printed busbw is not algbw times the factor, beyond what rounding explains."""
    forms = [f for f in (row.out_of_place, row.in_place) if f.algbw is not None and f.busbw is not None]
    off = (abs(float(f.busbw or 0) - float(f.algbw or 0) * factor) for f in forms)
    return any(gap > ROUNDING_GB * 1.01 * (1 + factor) for gap in off)


def _time_from_rate(row: LoggedRow, figures: LoggedFigures) -> str | None:
    """Return us, where a table's times are the host's; None where the printed rate has too few digits to say."""
    algbw = float(figures.algbw or 0)
    return f"{row.size_bytes / algbw / 1e3:.3f}" if algbw and ROUNDING_GB / algbw <= _COARSE else None


def _rate_bytes_per_s(printed: str | None, derived_gb: float, time_us: str) -> float | None:
    """Return bytes/s as printed, or from size and time where those have more digits than the printed rate. None: N/A."""
    if printed is None:
        return None
    value = float(printed)
    coarse = value == 0 or ROUNDING_GB / value > half_unit(time_us) / float(time_us)
    return (derived_gb if coarse else value) * 1e9


def _was_right_and_error(table: LoggedRun, figures: LoggedFigures) -> tuple[bool | None, str | None]:
    """Return whether the result was right, and what was wrong. None: not checked, or the log does not say where."""
    if figures.errors is None:
        return None, None
    if figures.errors.endswith("*"):
        return False, f"wrong result: deviation {figures.errors.rstrip('*')} beyond the limit"
    if not table.old_errors:
        wrong = float(figures.errors)
        return wrong == 0, f"wrong result: {counted(int(wrong), 'element')}" if wrong else None
    if table.out_of_bounds and float(figures.errors) > 0:
        where = f"{counted(table.out_of_bounds, 'value')} out of bounds in this run, sizes not named"
        return False, f"wrong result: {where}; deviation {figures.errors} at this size"
    return (True if table.out_of_bounds == 0 else None), None


def _link_peak(facts: Facts) -> float | None:
    """Return the peak of a GPU towards the others of one host, bytes/s; None on several hosts, or without a certain link."""
    if facts.hosts != 1 or facts.gpu is None:
        return None
    from stepscope.machine.peaks import find

    gpu = find(facts.gpu)
    if isinstance(gpu, Unavailable) or gpu.link is None or gpu.link.optional:
        return None
    return min(gpu.link.bytes_per_s, (facts.world_size - 1) * gpu.link.peer_bytes_per_s) or None


def _table_notes(table: LoggedRun) -> Iterator[str]:
    """Yield notes on rows left out, on what the log did not finish, and on what a figure means."""
    empty = sum(row.size_bytes == 0 for row in table.rows)
    if empty:
        yield f"{counted(empty, 'row')} of 0 bytes left out: the size asked for was below one element a rank"
    if table.torn:
        lines = ", ".join(map(str, table.torn[:5]))
        yield (
            f"{counted(len(table.torn), 'damaged row')} left out (line {lines}): torn, or size, time and algbw contradict "
            "each other"
        )
    if not table.ended:
        asked = (
            f" of {table.sizes[1]} bytes asked for"
            if table.sizes and table.sizes[1] > table.rows[-1].size_bytes
            else ""
        )
        yield (
            f"its table ends at {table.rows[-1].size_bytes} bytes{asked} without the summary (Avg bus bandwidth): the log "
            "was cut off, or the job was stopped"
        )
    if table.cut:
        yield "parts of the table are missing (<snip>)"
    if table.together > 1:
        yield f"each call was repeated {table.together} times without waiting (agg iters)"
    if table.cpu_time:
        lost = sum(
            form.algbw is not None and _time_from_rate(row, form) is None
            for row in table.rows
            for form in (row.out_of_place, row.in_place)
        )
        yield (
            "its times are the host's (-C 1), so that those shown are size / algbw"
            + (f"; {counted(lost, 'row')} left out, whose algbw has too few digits" if lost else "")
        )
    unsized = Counter(row.size_bytes for row in table.rows if row.size_bytes)
    twice = [size for size, count in unsized.items() if count > len({_row_kind(r) for r in table.rows})]
    if twice and not table.apart:
        yield f"{counted(len(twice), 'size')} appear more than once in the table"
    yield from _average_notes(table)
    if table.out_of_bounds:
        yield f"wrong results: nccl-tests found {counted(table.out_of_bounds, 'value')} out of bounds"


def _row_kind(row: LoggedRow) -> tuple[str, str | None, int | None]:
    return row.dtype, row.redop, row.root


def _average_notes(table: LoggedRun) -> Iterator[str]:
    """Compare the file's own mean of busbw with that of the rows that were read."""
    rates = [
        float(form.busbw) for row in table.rows for form in (row.out_of_place, row.in_place) if form.busbw is not None
    ]
    try:
        stated = float(table.average) if table.average is not None else None
    except ValueError:
        stated = None
    if stated is None or not rates:
        return
    mean = sum(rates) / len(rates)
    if abs(mean - stated) > ROUNDING_GB + 1e-4 * stated:
        yield (
            f"its average bus bandwidth is {stated:g} GB/s and that of the rows read {mean:.4g} GB/s: "
            "rows are missing, or were changed"
        )


def _recognises_tests(candidate: Candidate) -> bool:
    """Return whether a line of a table's header is near the beginning."""
    return begins_table(candidate.text) or is_json(candidate.text)


IMPORTER = Importer(
    title="nccl-tests output",
    recognises=_recognises_tests,
    read_files=_import_tests,
    rank=40,
    marks=("nThread", "busbw", "minimum_bytes"),
)
