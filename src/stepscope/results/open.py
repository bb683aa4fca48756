"""Paths -> evidence: run folders of ours, traces, and whatever an importer knows.

One door for diagnose, report and compare: :func:`load_evidence` takes paths of any kind and says what each was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from os import SEEK_END
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.places import telling_names
from stepscope.core.words import counted, named, url_of
from stepscope.records.calibration import Calibration
from stepscope.records.cell import RunRecord
from stepscope.records.codec import decode
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.imported import Imported, Stated
from stepscope.records.nccl import MISMATCHES, FlightFinding, NcclDebug
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import CellEvidence, Evidence, Source, TraceEvidence, in_line
from stepscope.results.job_folder import Readers, read_folder
from stepscope.results.joining import as_given, derived, join
from stepscope.results.profiled_job import read_profiled_job
from stepscope.store.importer import require_there
from stepscope.store.layout import DryLayout, ProfileLayout, RunLayout, profiled_job, shown_as
from stepscope.store.reader import (
    read_bytes,
    read_calibration,
    read_cell,
    read_created,
    read_if_there,
    read_record,
    read_run,
)
from stepscope.store.stated import stated_of_source

if TYPE_CHECKING:
    from stepscope.machine.topology import Topology
    from stepscope.traces.job import ReadingListener
    from stepscope.traces.sections import StatedClass, Wanted

OnTrace = Callable[[Path], None]
Row = TypeVar("Row")
Part = TypeVar("Part")

NAMED = 5
"""Names and reasons that one message gives in full."""


def load_evidence(
    paths: Sequence[Path],
    *,
    stated: Stated | None = None,
    cell: str | None = None,
    drop_epochs: int = 1,
    targets: Sequence[float] = (),
    traces: bool = True,
    spans: bool = False,
    on_trace: Callable[[Path], None] | None = None,
    scheduler: str | None = None,
    classes: tuple[StatedClass, ...] = (),
    window: int | None = None,
    ranks: Mapping[str, int] | None = None,
    log: Callable[[str], None] | None = None,
) -> Evidence:
    """Read what lies at ``paths``: run folders, traces (files, folders), anything an importer knows; several are joined.
    Trace files of one folder are ranks of one job.

    cell: which cell's traces of a run folder; None: those of all cells. drop_epochs: first epochs left out of epoch times.
    targets: accuracies to give times to; empty: round ones that tell most. traces: whether traces of cells are read. spans:
    traces also carry what timelines draw. on_trace: told each trace file as it is finished. classes: of kernels, as the user
    states them. window, ranks: as of ``Wanted``. scheduler, log: as of ``analyse_captures``.
    Raises DataError for a path that nothing reads.
    """
    how = Reading(
        stated=stated or Stated(),
        cell=cell,
        traces=traces,
        spans=spans,
        on_trace=on_trace,
        scheduler=scheduler,
        classes=classes,
        window=window,
        ranks=ranks or {},
        log=log,
    )
    parts = _path_evidences([Path(path) for path in paths], how)
    if cell is not None and not any(source.kind == "bench" for part in parts for source in part.sources):
        raise UsageError(
            f"--cell {cell}: no cells in these results",
            why=f"{', '.join(str(path) for path in paths)}: no run folder of stepscope bench",
            fix="remove --cell",
        )
    scaling = None if stated is None else stated.scaling
    return derived(as_given(parts), drop_epochs=drop_epochs, targets=targets, stated=scaling)


@record
class Reading:
    """How paths are read; see :func:`load_evidence`."""

    stated: Stated
    cell: str | None = None
    traces: bool = True
    spans: bool = False
    by_step: bool = False
    on_trace: OnTrace | None = None
    scheduler: str | None = None
    classes: tuple[StatedClass, ...] = ()
    window: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    log: Callable[[str], None] | None = None

    @property
    def wanted(self) -> Wanted:
        """What is worked out of traces."""
        from stepscope.traces.sections import EVERYTHING, Wanted

        more = {name for name, asked in (("spans", self.spans), ("profile", self.by_step)) if asked}
        return Wanted(
            sections=EVERYTHING | more,
            scheduler=self.scheduler,
            classes=self.classes,
            window=self.window,
            ranks=self.ranks,
        )

    def job(self, files: Path | Sequence[Path | str]) -> TraceSummary:
        """The traces of one job."""
        from stepscope.traces.job import analyse_job

        return analyse_job(files, self.wanted, listener=self._listener())

    def captures(
        self, files: Sequence[Path], ranks: Mapping[str, int], left_out: Callable[[Path, DataError], None]
    ) -> Mapping[str, TraceSummary]:
        """The traces of one job by capture. left_out: told of damaged files."""
        from stepscope.traces.job import analyse_captures

        return analyse_captures(
            files,
            replace(self.wanted, ranks={**ranks, **self.ranks}),
            listener=replace(self._listener(), left_out=left_out),
        )

    def _listener(self) -> ReadingListener:
        from stepscope.traces.job import ReadingListener

        return (
            ReadingListener(log=self.log)
            if self.on_trace is None
            else ReadingListener(log=self.log, done=self.on_trace)
        )


def _path_evidences(paths: Sequence[Path], how: Reading) -> list[Evidence]:
    """Read what lies at each path, in order; trace files of one folder are ranks of one job (``diagnose
    traces/rank*.json``)."""
    groups: dict[Path, list[Path]] = {}
    behind: dict[str, list[str]] = {}
    for path in paths:
        if (url := url_of(path)) is not None:
            single = url.endswith((".json", ".gz", ".zst"))  # files of one folder are of one job
            behind.setdefault(url.rpartition("/")[0] if single else url, []).append(url)
            continue
        if path.parent in paths and RunLayout(path).is_there and RunLayout(path.parent).is_there:
            continue  # it comes with the run that it lies in
        together = len(paths) > 1 and _is_trace_file(path)
        groups.setdefault(path.parent if together else path, []).append(path)
    parts = [_job_evidence(Path(place), how.job(urls)) for place, urls in behind.items()]
    for place, members in groups.items():
        job = _one_job(place, members, how) if len(members) > 1 and place not in members else None
        parts += [job] if job is not None else [load_source(path, _of_source(how, path, paths)) for path in members]
    return parts


def _of_source(how: Reading, path: Path, paths: Sequence[Path]) -> Reading:
    """Return ``how`` with what the user states of that path's runs alone."""
    if len(paths) < 2 or not how.stated.world_size:
        return how
    names = telling_names(list(dict.fromkeys(paths)))
    own = names[list(dict.fromkeys(paths)).index(path)]
    return replace(how, stated=stated_of_source(how.stated, own, names))


def _is_trace_file(path: Path) -> bool:
    """Whether a path is a file of a profiler, and of no importer."""
    from stepscope.store.importers import detect
    from stepscope.traces.load import why_no_trace

    try:
        return path.is_file() and detect(path) is None and why_no_trace(path, None) is None
    except (DataError, OSError, ValueError):
        return False  # whoever reads it says why


def _one_job(folder: Path, files: Sequence[Path], how: Reading) -> Evidence | None:
    """Read the files as ranks of one job; None where they are not: two are of one rank."""
    try:
        return _job_evidence(folder, how.job(files))
    except DataError:
        return None  # each is read on its own, and says what is wrong with it


def _job_evidence(path: Path, summary: TraceSummary) -> Evidence:
    """Return the evidence of a job's traces, with its diaries where its folder has them."""
    job = profiled_job(path if path.is_dir() else path.parent)
    return Evidence(
        sources=(Source(path=path, kind="trace"),),
        traces=(TraceEvidence(name=shown_as(path).resolve().name, summary=summary, job=job),),
        notes=_trace_notes(summary),
    )


def load_source(path: Path, how: Reading) -> Evidence:
    """Read what lies at one path. Raises DataError where nothing reads it."""
    from stepscope.store.importers import detect

    require_there(path)
    if RunLayout(path).is_there:
        return _with_inner_runs(path, _bench_evidence(path, how), how)
    if DryLayout(path).is_there:
        from stepscope.results.dry_job import read_dry_job

        return Evidence(sources=(Source(path=path, kind="dry"),), dry=(read_dry_job(path),))
    if path.is_dir():
        how = replace(how, by_step=how.by_step or ProfileLayout(path).is_there or profiled_job(path) is not None)
        again = partial(load_source, how=how)
        readers = Readers(load=again, traces=how.captures, trace_notes=_trace_notes, imported=_imported_evidence)
        return _evidence_with_diaries(path, lambda: read_folder(path, stated=how.stated, readers=readers))
    if (rows := _results_file(path)) is not None:
        return rows
    if _is_calibration(path):
        return Evidence(sources=(Source(path=path, kind="calibration"),), calibration=read_calibration(path))
    if (machine := _machine_record(path)) is not None:
        return Evidence(
            sources=(Source(path=path, kind="machine"),), environment=machine, topology=_parsed_topology(machine)
        )
    detected = detect(path, how.stated)
    if detected is not None:
        return _imported_evidence(path, detected[1].read(path, how.stated))
    return _trace_evidence(path, how)


def _evidence_with_diaries(path: Path, read: Callable[[], Evidence]) -> Evidence:
    """Return what ``read`` reads of a folder, with the diaries of its steps where `profile` or `run` made it."""
    job = read_profiled_job(path)
    if job is None:
        return read()
    try:
        evidence = read()
    except DataError:
        if job.steps is None and job.end is None:
            raise
        return Evidence(sources=(Source(path=path, kind="profile"),), profiled=(job,))
    return replace(evidence, profiled=(*evidence.profiled, job))


def _trace_evidence(path: Path, how: Reading) -> Evidence:
    """Read what no importer knows: a trace, or nothing that is read here."""
    from stepscope.store.importer import head_of
    from stepscope.traces.load import why_no_trace

    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty", fix="write it again, or leave it out")
    if (why := why_no_trace(path, None)) is not None:
        if not head_of(path, 4096).strip(b"\0"):
            raise DataError(f"{path}: not a format that stepscope reads", why="it contains only zero bytes")
        from stepscope.store.known_texts import refusal
        from stepscope.traces.other_files import instead_of

        if (fix := instead_of(why)) is not None:
            raise DataError(f"{path}: {why}", why="stepscope does not read it", fix=fix)
        raise refusal(path, why=f"no importer recognises it, and it is not a trace of torch.profiler or nsys: {why}")
    return _job_evidence(path, how.job(path))


def _trace_notes(summary: TraceSummary, *, of: str | None = None) -> tuple[str, ...]:
    """Note what is missing of a job's traces, of which findings would not tell."""
    prefix = "" if of is None else f"{of}: "
    notes = (*summary.losses, *(note for note in summary.notes if note.kind == "window"))
    return tuple(f"{prefix}{'' if note.rank is None else f'rank {note.rank}: '}{note.text}" for note in notes)


def _results_file(path: Path) -> Evidence | None:
    """Read a results.jsonl without its run folder: its runs or collectives, and nothing of their samples."""
    with path.open("rb") as file:
        head = file.read(200)
        file.seek(-min(file.seek(0, SEEK_END), 200), SEEK_END)
        end = file.read()
    whole = head.lstrip().startswith(b"[") or end.endswith(b"\n")
    notes = () if whole else (f"{path}: the last line is truncated and left out",)
    if any(mark in head for mark in (OLD_ROWS, b'"stepscope.training_run/')):
        from stepscope.results.runs import read_runs

        return Evidence(sources=(Source(path=path, kind="bench"),), runs=read_runs(path), notes=notes)
    if b'"stepscope.comm_row/' in head:
        from stepscope.results.comm_rows import read_comm_rows

        return Evidence(sources=(Source(path=path, kind="comm"),), comm=read_comm_rows(path), notes=notes)
    return None


def _machine_record(path: Path) -> EnvironmentRecord | None:
    """Return the machine of ``doctor --json`` or of a run folder's ``environment.json``; None for another file."""
    if path.suffix != ".json":
        return None
    with path.open("rb") as file:
        head = file.read(200)
    if b'"stepscope.environment/' in head:
        return read_record(path, EnvironmentRecord)
    if b'"stepscope.doctor/' not in head:
        return None
    try:
        document = json.loads(read_bytes(path))["environment"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a whole document of stepscope doctor", why=str(error)) from error
    return decode(json.dumps(document).encode(), EnvironmentRecord, source=str(path))


def _is_calibration(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        return b'"stepscope.calib/' in file.read(200)


def _bench_evidence(path: Path, how: Reading) -> Evidence:
    """Return the evidence of a run folder, with its traces where they are asked for; damaged cells are noted and left
    out."""
    layout, run = RunLayout(path), read_run(path)
    if run.kind == "comm":
        return _comm_run_evidence(path, layout, run)
    runs = _result_runs(layout) if run.cells or run.earlier_cells or not layout.comm_run.is_there else ()
    wanted = _chosen_runs(runs, how.cell)
    notes = list(_cells_without_result_note(run, runs))
    results = _readable_rows(
        wanted, lambda cell_run: read_cell(layout.cell(cell_run.run_id)), lambda cell_run: cell_run.run_id, notes
    )
    cells = tuple(CellEvidence(run=replace(cell_run, source=str(path)), result=result) for cell_run, result in results)
    environment = read_if_there(layout.environment, EnvironmentRecord)
    traces = []
    if how.traces:
        traced = [(in_line(cell.run), cell.cell_id) for cell in cells if _traces_folder(layout, cell) is not None]
        for (name, cell_id), summary in _readable_rows(
            traced, lambda part: how.job(layout.cell(part[1]).traces), lambda part: part[0], notes
        ):
            traces.append(TraceEvidence(name=name, summary=summary, cell_id=cell_id, source=str(path)))
            notes += _trace_notes(summary, of=name)
    return Evidence(
        sources=(Source(path=path, kind="bench", created=read_created(layout.run)),),
        runs=tuple(cell.run for cell in cells),
        cells=cells,
        environment=environment,
        topology=_parsed_topology(environment),
        records=(run,),
        traces=tuple(traces),
        nccl=_nccl_log(layout),
        flight=tuple(finding for cell_run, _ in results for finding in _flight_findings(layout, cell_run)),
        notes=tuple(notes),
    )


def _with_inner_runs(path: Path, outer: Evidence, how: Reading) -> Evidence:
    """Join ``outer`` with the run folders directly in it, such as the sweep of collectives of `stepscope demo`."""
    parts, notes = [outer], []
    for inner in sorted(file.parent for file in path.glob("*/run.json") if RunLayout(file.parent).is_there):
        try:
            parts.append(_bench_evidence(inner, replace(how, cell=None)))
        except DataError as error:
            notes.append(f"{inner}: left out: {error.why or error.what}")
    names = [path.name, *(part.sources[0].path.name for part in parts[1:])]
    whole = join(parts, names=names)
    return replace(whole, notes=(*whole.notes, *notes)) if notes else whole


def _traces_folder(layout: RunLayout, cell: CellEvidence) -> Path | None:
    folder = layout.cell(cell.cell_id).traces
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def _cells_without_result_note(run: RunRecord, runs: Sequence[TrainingRun]) -> tuple[str, ...]:
    """Note the cells of a run that have no result yet; nothing where all have one."""
    there = {cell_run.run_id for cell_run in runs}
    lacking = [cell_id for cell_id in run.cells if cell_id not in there]
    if not lacking:
        return ()
    named = ", ".join(lacking[:NAMED]) + (", ..." if len(lacking) > NAMED else "")
    return (f"no result yet of {len(lacking)} of {counted(len(run.cells), 'cell')}: {named}",)


def _readable_rows(
    parts: Sequence[Part], read: Callable[[Part], Row], name: Callable[[Part], str], notes: list[str]
) -> list[tuple[Part, Row]]:
    """Return what ``read`` makes of each part; damaged ones are noted and left out. Raises DataError where none is left."""
    rows: list[tuple[Part, Row]] = []
    damaged: list[tuple[str, DataError]] = []
    for part in parts:
        try:
            rows.append((part, read(part)))
        except DataError as error:
            damaged.append((name(part), error))
    if damaged and not rows:
        raise damaged[0][1]
    notes += [f"{part_name}: {error.line}; left out" for part_name, error in damaged[:NAMED]]
    if len(damaged) > NAMED:
        notes.append(f"{len(damaged) - NAMED} more damaged files left out")
    return rows


def _chosen_runs(runs: tuple[TrainingRun, ...], cell: str | None) -> tuple[TrainingRun, ...]:
    """Return the runs that --cell names. Raises UsageError where it names none, or several."""
    if cell is None:
        return runs
    ids = named(cell, [run.run_id for run in runs])
    chosen = tuple(run for run in runs if run.run_id in ids)
    if len(chosen) != 1:
        choices = "\n".join(["choose one:", *(f"    --cell {run.run_id}" for run in runs)])
        raise UsageError(f"--cell {cell!r} names {counted(len(chosen), 'cell')}", fix=choices)
    return chosen


def _parsed_topology(environment: EnvironmentRecord | None) -> Topology | None:
    """Return the links of a recorded machine; None where they are not recorded or not readable."""
    if environment is None or environment.topology is None:
        return None
    from stepscope.machine.topology import parse_topology

    topology = parse_topology(environment.topology)
    return None if isinstance(topology, Unavailable) else topology


def _nccl_log(layout: RunLayout) -> tuple[NcclDebug, ...]:
    """Read what NCCL itself said in this run (``--nccl-debug``); a log that says nothing is none."""
    if not layout.nccl_debug.is_dir() or not any(layout.nccl_debug.iterdir()):
        return ()
    from stepscope.store.importers.nccl_debug import read_nccl_debug

    try:
        return (read_nccl_debug(layout.nccl_debug),)
    except DataError:
        return ()


def _flight_findings(layout: RunLayout, run: TrainingRun) -> tuple[FlightFinding, ...]:
    """What the flight recorders of a cell that did not finish say; a finished cell's ranks met in every call.

    Of an interrupted cell only what differs: a signal finds a healthy job's ranks inside their collectives, too.
    """
    if run.status == "ok" or run.world_size is None:
        return ()
    from stepscope.traces.flight import cell_findings

    findings = cell_findings(layout.cell(run.run_id), run.world_size)
    return tuple(f for f in findings if f.kind in MISMATCHES) if run.status == "interrupted" else findings


def _comm_run_evidence(path: Path, layout: RunLayout, run: RunRecord) -> Evidence:
    """Return the evidence of a run folder of `comm`."""
    from stepscope.results.comm_rows import read_comm_rows

    environment = read_if_there(layout.environment, EnvironmentRecord)
    return Evidence(
        sources=(Source(path=path, kind="comm"),),
        comm=_result_rows(layout, read_comm_rows),
        calibration=read_if_there(path / "calib.json", Calibration),
        environment=environment,
        topology=_parsed_topology(environment),
        nccl=_nccl_log(layout),
        records=(run,),
    )


OLD_ROWS = b'"stepscope.result_row/'


def _result_runs(layout: RunLayout) -> tuple[TrainingRun, ...]:
    """Return the runs of results.jsonl; of an earlier stepscope, whose rows lack phases and epochs, the samples say it
    again."""
    from stepscope.results.runs import folder_runs, read_runs

    old = layout.results_jsonl.is_file() and OLD_ROWS in read_bytes(layout.results_jsonl)[:200]
    return folder_runs(layout) if old else _result_rows(layout, read_runs)


def _result_rows(layout: RunLayout, read: Callable[[Path], tuple[Row, ...]]) -> tuple[Row, ...]:
    """Return what ``read`` makes of results.jsonl. Raises DataError where the file is not there, or holds nothing."""
    if not layout.results_jsonl.is_file():
        raise DataError(
            f"{layout.root}: no results.jsonl",
            why="the run ended before it wrote any result",
            fix="rerun with the same folder to resume",
        )
    rows = read(layout.results_jsonl)
    if not rows:
        raise DataError(
            f"{layout.results_jsonl}: no results in it",
            why="the run ended before the first one, or the file is damaged",
            fix="rerun with the same folder to resume",
        )
    return rows


def _imported_evidence(path: Path, imported: Imported) -> Evidence:
    """Return the evidence of another tool's files, with its links and the findings of its flight recorders."""
    topology: Topology | Unavailable | None = None
    if imported.topology is not None:
        from stepscope.machine.topology import parse_topology

        topology = parse_topology(imported.topology)
    notes = imported.notes
    if isinstance(topology, Unavailable):
        notes = (*notes, f"link matrix not read: {topology.reason}")
    elif topology is not None:
        notes = (*notes, *_first_notes(topology.problems))
    broken = [run for run in imported.runs if run.status in ("error", "interrupted") and run.error is not None]
    notes = (*notes, *_first_notes([f"{run.run_id}: {(run.error or '').partition(chr(10))[0]}" for run in broken]))
    findings: tuple[FlightFinding, ...] = ()
    if imported.flight:
        from stepscope.traces.flight import compare_dumps

        findings = compare_dumps(imported.flight)
    return Evidence(
        sources=(Source(path=path, kind="imported", format=imported.format, columns=imported.columns),),
        runs=imported.runs,
        comm=imported.comm_rows,
        arrivals=imported.arrivals,
        nccl=() if imported.nccl is None else (imported.nccl,),
        flight=findings,
        signs=imported.signs,
        readings=imported.readings,
        memory=imported.memory,
        topology=None if isinstance(topology, Unavailable) else topology,
        hardware=() if imported.hardware is None else (imported.hardware,),
        notes=notes,
        remarks=imported.remarks,
    )


def _first_notes(notes: Sequence[str]) -> tuple[str, ...]:
    more = (f"and {len(notes) - NAMED} more of this kind",) if len(notes) > NAMED else ()
    return (*notes[:NAMED], *more)
