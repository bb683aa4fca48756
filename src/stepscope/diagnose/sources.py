"""One path -> evidence: a run folder of ours, a trace, or something that an importer knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.words import counted
from stepscope.diagnose.bench_runs import cell_evidence
from stepscope.diagnose.evidence import Evidence, Source, TraceEvidence
from stepscope.environment.topology import Topology, parse_topology
from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.flight import FlightFinding
from stepscope.records.imported import Imported, Stated
from stepscope.records.nccl_debug import NcclDebug
from stepscope.records.run import ResultRow, RunRecord
from stepscope.records.trace_summary import TraceSummary
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_bytes, read_cell, read_if_there, read_record, read_run

OnTrace = Callable[[Path], None]
ReadTraces = Callable[[Path], TraceSummary]
Row = TypeVar("Row")


def load_source(
    path: Path,
    *,
    stated: Stated,
    cell: str | None = None,
    spans: bool = False,
    on_trace: OnTrace | None = None,
) -> Evidence:
    """What lies at one path. Raises DataError where nothing reads it."""
    from stepscope.store.importers._detect import detect

    read = partial(_read_traces, spans=spans, on_trace=on_trace)
    if not path.exists():
        raise DataError(f"{path} does not exist", fix="check the path")
    if RunLayout(path).run.is_file():
        return _run_folder(path, cell=cell, read=read)
    if _is_calibration(path):
        return Evidence(
            sources=(Source(path=path, kind="calibration"),), calibration=read_record(path, Calibration)
        )
    found = detect(path)
    if found is not None:
        return _imported(path, found[1].read(path, stated))
    return Evidence(
        sources=(Source(path=path, kind="trace"),),
        traces=(TraceEvidence(name=path.name, summary=read(path)),),
    )


def _is_calibration(path: Path) -> bool:
    if not path.is_file() or path.suffix != ".json":
        return False
    with path.open("rb") as file:
        return b'"stepscope.calib/' in file.read(200)


def _run_folder(path: Path, *, cell: str | None, read: ReadTraces) -> Evidence:
    layout, run = RunLayout(path), read_run(path)
    if run.kind == "comm":
        return _comm_run(path, layout, run)
    rows = _rows(layout, ResultRow)
    chosen = _chosen(rows, cell)
    results = [read_cell(layout.cell(row.cell_id)) for row in chosen]
    cells = cell_evidence(chosen, results, source=str(path))
    environment = read_if_there(layout.environment, EnvironmentRecord)
    traces = tuple(
        TraceEvidence(
            name=f"{each.run.group}, {each.run.label}", summary=read(folder), cell_id=each.row.cell_id
        )
        for each in cells
        if (folder := layout.cell(each.row.cell_id).traces).is_dir() and any(folder.iterdir())
    )
    return Evidence(
        sources=(Source(path=path, kind="bench"),),
        runs=tuple(each.run for each in cells),
        cells=cells,
        environment=environment,
        topology=_topology(environment),
        records=(run,),
        traces=traces,
        nccl=_nccl_log(layout),
        flight=tuple(finding for row in chosen for finding in _flight(layout, row)),
    )


def _chosen(rows: tuple[ResultRow, ...], cell: str | None) -> tuple[ResultRow, ...]:
    if cell is None:
        return rows
    found = tuple(row for row in rows if row.cell_id.startswith(cell))
    if len(found) != 1:
        ids = "\n".join(["choose one:", *(f"    --cell {row.cell_id}" for row in rows)])
        raise UsageError(f"--cell {cell!r} names {counted(len(found), 'cell')}", fix=ids)
    return found


def _topology(environment: EnvironmentRecord | None) -> Topology | None:
    if environment is None or environment.topology is None:
        return None
    found = parse_topology(environment.topology)
    return None if isinstance(found, Unavailable) else found


def _nccl_log(layout: RunLayout) -> tuple[NcclDebug, ...]:
    """What NCCL itself said in this run (``--nccl-debug``); a log that says nothing is none."""
    if not layout.nccl_debug.is_dir() or not any(layout.nccl_debug.iterdir()):
        return ()
    from stepscope.store.importers.nccl_debug import read_nccl_debug

    try:
        return (read_nccl_debug(layout.nccl_debug),)
    except DataError:
        return ()


def _flight(layout: RunLayout, row: ResultRow) -> tuple[FlightFinding, ...]:
    """What the flight recorders of a cell that did not finish say; a finished cell's ranks met in every call."""
    folder = layout.cell(row.cell_id).flights
    if row.status == "ok" or not folder.is_dir():
        return ()
    from stepscope.store.importers.flight_recorder import read_folder
    from stepscope.traces.flight import compare

    try:
        return compare(read_folder(folder).dumps, world_size=row.world_size)
    except DataError:
        return ()


def _comm_run(path: Path, layout: RunLayout, run: RunRecord) -> Evidence:
    environment = read_if_there(layout.environment, EnvironmentRecord)
    return Evidence(
        sources=(Source(path=path, kind="comm"),),
        comm=_rows(layout, CommRow),
        calibration=read_if_there(path / "calib.json", Calibration),
        environment=environment,
        topology=_topology(environment),
        nccl=_nccl_log(layout),
        records=(run,),
    )


def _rows(layout: RunLayout, kind: type[Row]) -> tuple[Row, ...]:
    if not layout.results_jsonl.is_file():
        raise DataError(
            f"{layout.root}: no results.jsonl",
            why="the run ended before it wrote any result",
            fix="run the same command again with the same -o: it goes on where it stopped",
        )
    return tuple(codec.decode_lines(read_bytes(layout.results_jsonl), kind, source=str(layout.results_jsonl)))


def _imported(path: Path, imported: Imported) -> Evidence:
    topology = None if imported.topology is None else parse_topology(imported.topology)
    notes = imported.notes
    if isinstance(topology, Unavailable):
        notes = (*notes, f"link matrix not read: {topology.reason}")
    findings: tuple[FlightFinding, ...] = ()
    if imported.flight:
        from stepscope.traces.flight import compare

        findings = compare(imported.flight)
    return Evidence(
        sources=(Source(path=path, kind="imported", format=imported.format),),
        runs=imported.runs,
        comm=imported.comm_rows,
        nccl=() if imported.nccl is None else (imported.nccl,),
        flight=findings,
        memory=imported.memory,
        topology=None if isinstance(topology, Unavailable) else topology,
        hardware=() if imported.hardware is None else (imported.hardware,),
        notes=notes,
    )


def _read_traces(folder: Path, *, spans: bool, on_trace: OnTrace | None) -> TraceSummary:
    from stepscope.traces.job import analyse_job
    from stepscope.traces.rank_pass import EVERYTHING, Wanted

    sections = EVERYTHING | {"spans"} if spans else EVERYTHING
    return analyse_job(folder, wanted=Wanted(sections=sections), done=on_trace)
