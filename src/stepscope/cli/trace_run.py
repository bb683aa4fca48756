"""What ``stepscope trace`` does: find the files, analyse them, show the sections asked for."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.traces import traces_of
from stepscope.cli.command import given, parse_ranges, spelled
from stepscope.cli.console import err, log, out, print_document, say
from stepscope.cli.evidence import Watch, scheduler_of
from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, NoTraceError, UsageError
from stepscope.core.forks import stop_signals_raise
from stepscope.core.registry import uncollected
from stepscope.core.units import format_bytes
from stepscope.core.words import counted, unknown, url_of
from stepscope.report import trace_sections
from stepscope.traces.sections import FOR_FINDINGS, SCANNED, SECTIONS

if TYPE_CHECKING:
    from stepscope.cli.commands.trace import Trace
    from stepscope.diagnose.verdict import Judged
    from stepscope.records.finding import Diagnosis
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.report.conditions import Condition
    from stepscope.traces.sections import StatedClass, Wanted

EARLY_FROM_BYTES = 1 << 30
"""From so many bytes of text on the budget is shown before the rest is read: 2 s of reading, of which it takes a third."""

FINDINGS_SHOWN = 3


@record
class Request:
    """What a command line asks for: its options, and what they name.

    files: whose traces they are. ranks, steps: of the tables. rules: whether a condition is a rule's name. early: whether
    the budget comes before the findings.
    """

    options: Trace
    files: Sequence[str]
    wanted: Wanted
    sections: tuple[str, ...] = ()
    conditions: Sequence[Condition] = ()
    rules: bool = False
    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    early: bool = False


def run(
    options: Trace,
    *,
    also: Sequence[str] = (),
    read: Mapping[str, TraceSummary] | None = None,
    judged: Judged | None = None,
) -> int:
    """Analyse and show; returns the exit code. also: sections beside the usual ones. read: the captures, where they are
    analysed already; judged: the verdict on the job that they are a window of. Raises StepscopeError."""
    with uncollected():
        import_numpy_alone()
    request = _reading(options)
    if options.diff is None and options.diff_steps is None:
        _show_request(_asked(request, also), read, judged)
        return 0
    from stepscope.cli.compare_run import run_diff
    from stepscope.traces.job import only_capture

    wanted = replace(request.wanted, sections=frozenset({"profile"}))
    sides: list[TraceSummary] = []

    def side(path: str | None) -> TraceSummary:
        of = request if path is None else replace(request, files=traces_of(path, options.cell, log))
        sides.append(only_capture(_analysed(of, wanted)))
        return sides[-1]

    code = run_diff(options, side)
    _require_stated_fit(wanted.ranks, (), sides)
    return code


def _reading(options: Trace) -> Request:
    """Return which files are read, and how. Raises UsageError for what does not go together."""
    from stepscope.traces.sections import Wanted

    stated = {}
    for text in options.rank_of:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit():
            raise UsageError(f"--rank-of {text!r}: expected FILE=N", fix="for example --rank-of trace_a.json=3")
        stated[name] = int(number)
    if options.executor is not None and options.processes is not None:
        raise UsageError("--processes does not go with --executor", fix="the cluster's workers are what they are")
    wanted = Wanted(
        ranks=stated,
        scheduler=scheduler_of(options.executor),
        sample=parse_ranges(options.ranks, "--ranks"),
        window=options.window,
        processes=options.processes,
        cache=options.cache,
        classes=_classes(options),
    )
    if (url := next((path for path in map(url_of, options.paths) if path is not None), None)) is not None:
        for name in ("cache", "merge", "open_"):
            if getattr(options, name):
                raise UsageError(
                    f"{spelled(type(options), name)} does not go with {url}",
                    why="no copy of what a URL names is kept",
                    fix="copy the traces here first",
                )
    cell = options.cell
    if cell is None and options.window is not None and any(map(_is_profiled, options.paths)):
        cell, wanted = str(options.window), replace(wanted, window=None)
    return Request(
        options=options, wanted=wanted, files=[trace for path in options.paths for trace in traces_of(path, cell, log)]
    )


def _classes(options: Trace) -> tuple[StatedClass, ...]:
    if not options.communication and options.class_ is None:
        return ()
    from stepscope.traces.stated_classes import stated_classes

    return stated_classes(options.communication, options.class_)


def _require_stated_fit(
    ranks: Mapping[str, int], communication: Sequence[str], summaries: Iterable[TraceSummary]
) -> None:
    if ranks or communication:
        from stepscope.api.reading import require_read, require_used

        read = tuple(summaries)
        require_read(ranks, read)
        require_used(communication, read)


def _is_profiled(path: str) -> bool:
    from stepscope.store.layout import ProfileLayout

    return url_of(path) is None and ProfileLayout(Path(path)).is_there


def _asked(request: Request, also: Sequence[str]) -> Request:
    """Return the request with what is shown of the traces. Raises UsageError."""
    options, wanted = request.options, request.wanted
    sections = trace_sections.chosen(options.show.split(","))
    about = {name: section.name for name in given(options) for section in SECTIONS if name in section.options}
    if "sort" in about:
        from stepscope.traces.operators import SORTS

        if options.sort not in SORTS:
            raise UsageError(unknown("order of --sort", options.sort, SORTS))
    for name, section in about.items():
        if options.show and section not in sections:
            raise UsageError(f"--show without {section!r} does not go with {spelled(type(options), name)}")
    if options.json and "limit" in given(options):
        raise UsageError(f"--json does not go with {spelled(type(options), 'limit')}: it lists every row")
    sections = trace_sections.chosen([*sections, *(() if options.show else about.values()), *also])
    conditions: Sequence[Condition] = ()
    if options.fail_if:
        from stepscope.diagnose.engine import trace_rules
        from stepscope.report.conditions import parse_condition
        from stepscope.results.figures import figures_of

        rules = [rule.name for rule in trace_rules()]
        conditions = [parse_condition(text, figures=figures_of("job"), rules=rules) for text in options.fail_if]
    ranks, steps = parse_ranges(options.rank, "--rank"), parse_ranges(options.steps, "--steps")
    written = options.json or options.csv is not None
    # With what the findings read, unless --show names what to read.
    computed = frozenset(trace_sections.SECTIONS) if written else FOR_FINDINGS.union(sections)
    if options.show and not options.open_:
        computed = frozenset({*sections, *(("steps",) if options.json or options.merge is not None else ())})
    wanted = replace(
        wanted,
        sections=computed,
        sort=options.sort,
        model_flop=options.flop,
        hardware_flop=options.hardware_flop,
        regions=_regions(options.region),
    )
    plain = not (options.show or written or options.cache or options.merge is not None or options.open_)
    return replace(
        request,
        wanted=wanted,
        sections=sections,
        conditions=conditions,
        rules=any(condition.op is None for condition in conditions),
        ranks=ranks,
        steps=steps,
        early=plain and _shows_early(request),
    )


def _analysed(
    request: Request, wanted: Wanted, meanwhile: Callable[[], None] | None = None
) -> Mapping[str, TraceSummary]:
    """Read the files, with words on progress."""
    from stepscope.traces.job import ReadingListener, analyse_captures

    watch = Watch()
    listener = ReadingListener(started=watch.started, advanced=watch.advanced, done=watch.done, log=log)
    if meanwhile is not None:
        listener = replace(listener, meanwhile=meanwhile)
    # The reading processes end too where this one is stopped.
    with _kind_named(request), stop_signals_raise("terminated while reading traces"):
        captures = analyse_captures(request.files, wanted, listener=listener)
    watch.end()
    return captures


def _show_request(request: Request, read: Mapping[str, TraceSummary] | None, judged: Judged | None) -> None:
    from stepscope.traces.job import only_capture

    options, wanted, early = request.options, request.wanted, request.early and read is None
    captures = read
    if captures is None:
        captures = _analysed(request, replace(wanted, scan=early), partial(_get_ready, request))
    if early and (early := len(captures) == 1 and any(p.partial for p in only_capture(captures).ranks)):
        _show_early(_selected(only_capture(captures), replace(request, steps=None)), limit=options.limit)
    if early or (any(p.partial for summary in captures.values() for p in summary.ranks) and not wanted.device_only):
        captures = _analysed(request, wanted)
    if read is None:
        _require_stated_fit(wanted.ranks, options.communication, captures.values())
    if options.json or options.csv is not None or options.merge is not None or options.open_ or request.conditions:
        only_capture(captures)  # these are of one capture
    elif len(captures) > 1:
        say(f"{len(captures)} captures: {', '.join(captures)}", "bold")
    for name, summary in captures.items():
        if options.merge is not None:
            _merge(summary, options.merge)
        window_of, whole = judged or _judged(options.paths, summary, several=len(captures) > 1), summary
        if window_of is None:
            named = name or Path(request.files[0]).name or request.files[0]
            diagnosis = _diagnosed(summary, named, rules_asked=request.rules)
        else:
            from stepscope.diagnose.verdict import borne_out

            diagnosis, whole = window_of.diagnosis, borne_out(summary, window_of.verdict)
        shown = _selected(whole, request)
        if options.csv is not None:
            _write_csv(shown, options.csv, request.sections if options.show else trace_sections.SECTIONS)
        if options.json:
            from stepscope.report.documents import trace_document

            print_document(trace_document(shown, diagnosis))
        else:
            if name:
                say(f"\n{name}", "bold")
            _show(shown, diagnosis, request, judged=window_of, early=early)
        if options.open_:
            _open(summary, diagnosis, options)
        if request.conditions:
            from stepscope.cli.fail_if import check
            from stepscope.report.documents import trace_figures

            check(request.conditions, trace_figures(whole), diagnosis)


def _judged(paths: Sequence[str], summary: TraceSummary, *, several: bool) -> Judged | None:
    """Return the verdict on the job whose only window that is shown these traces are; None where they are of no such job."""
    from stepscope.store.layout import profiled_job

    if len(paths) != 1 or several or all(p.partial for p in summary.ranks):
        return None
    given_path = Path(paths[0])
    folder = profiled_job(given_path) or (given_path if _is_profiled(paths[0]) else None)
    if folder is None:
        return None
    from stepscope.diagnose.jobs import judge_job

    return judge_job(folder, (summary,))


def _get_ready(request: Request) -> None:
    """Load what finds and shows the answer, a tenth of a second: one core has nothing to read when the last rank is."""
    if request.rules or not request.wanted.device_only:
        from stepscope.diagnose.engine import trace_rules

        trace_rules()
    if request.options.json:
        import stepscope.report.documents

        return
    import stepscope.cli.findings
    import stepscope.report.render.terminal  # noqa: F401

    out()
    for section in request.sections:
        trace_sections.load(section)


@contextmanager
def _kind_named(request: Request) -> Iterator[None]:
    """Say within the block, of a path without traces, what it holds, where another command reads that."""
    paths = request.options.paths
    try:
        yield
    except NoTraceError as error:
        if len(paths) != 1 or url_of(paths[0]) is not None:
            raise
        from stepscope.store.importers import detect

        detected = detect(Path(paths[0]))
        if detected is None:
            raise
        import shlex  # only an error needs it

        command = shlex.join(["stepscope", "diagnose", paths[0]])
        raise DataError(error.what, why=f"it is: {detected[1].title}", fix=f"read it with `{command}`") from error


def import_numpy_alone() -> None:
    """Import numpy without the threads of its linear algebra: they have no work here, and forbid to fork the process."""
    key = "OPENBLAS_NUM_THREADS"
    if "numpy" in sys.modules or key in os.environ:
        return
    os.environ[key] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[key]


def _diagnosed(summary: TraceSummary, name: str, *, rules_asked: bool) -> Diagnosis:
    """Return what the rules say; nothing where only device events were read, which tell none, and no rule is asked for."""
    if not rules_asked and all(p.partial for p in summary.ranks):
        from stepscope.records.finding import Diagnosis

        return Diagnosis(findings=(), skipped=(), quiet=())
    from stepscope.diagnose.engine import diagnose_traces

    return diagnose_traces(summary, name=name)


def _merge(summary: TraceSummary, output: Path, *, announced: bool = True) -> None:
    from stepscope.traces.merge import merge_traces

    clocks = summary.collectives.clocks if summary.collectives else None
    files = {p.facts.rank: Path(p.facts.file) for p in summary.ranks}
    if len(set(files.values())) < len(files):
        raise UsageError(
            "--merge: ranks of one file are together already", fix=f"open {next(iter(files.values()))} itself"
        )
    merged = merge_traces(files, output, clocks=clocks)
    if announced:
        err().print(
            f"{merged.path}: {counted(len(merged.ranks), 'rank')} on one clock, {format_bytes(merged.size_bytes)}; "
            "open it in ui.perfetto.dev or chrome://tracing"
        )
    for note in merged.notes:
        log(f"! {note}", "yellow")


def _open(summary: TraceSummary, diagnosis: Diagnosis, options: Trace) -> None:
    """Show all ranks in Perfetto: the merged file of ``--merge``, else one that is gone when the page has it."""
    from tempfile import TemporaryDirectory

    from stepscope.cli import perfetto

    place = perfetto.place_of(summary, diagnosis.findings)
    if options.merge is not None:
        perfetto.show(options.merge, place)
        return
    with TemporaryDirectory() as folder:
        name = Path(options.paths[0]).name.partition(".")[0] or "trace"
        merged = Path(folder) / f"{name}.json.gz"
        _merge(summary, merged, announced=False)
        perfetto.show(merged, place)


def _regions(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (name, phase) of every --region."""
    if not given:
        return ()
    from stepscope.traces.steps import OTHER, PHASES

    stated = []
    for text in given:
        name, _, phase = text.rpartition("=")
        if not name:
            raise UsageError(
                f"--region {text!r}: expected NAME=PHASE", fix=f"PHASE is one of {', '.join(PHASES[:OTHER])}"
            )
        if phase not in PHASES[:OTHER]:
            raise UsageError(f"--region {text!r}: {unknown('phase', phase, PHASES[:OTHER])}")
        stated.append((name, phase))
    return tuple(stated)


def _shows_early(request: Request) -> bool:
    """Return whether only the budget can be had soon."""
    from stepscope.traces.discover import candidates
    from stepscope.traces.job import FILES_HERE, text_bytes

    if request.wanted.sample is not None or any(url_of(file) is not None for file in request.files):
        return False  # a sample is soon read; what is read twice is sent twice
    with _kind_named(request):
        traces = candidates(request.files)[0]
        # Workers of a cluster would begin twice.
        here = request.wanted.scheduler is None and len(traces) <= FILES_HERE
        return here and text_bytes(traces) >= EARLY_FROM_BYTES


def _show_early(summary: TraceSummary, *, limit: int) -> None:
    """Print budget and overlap of the device events, while the rest is still to be read."""
    console = out()
    say(_about(summary), "bold")
    say()
    communicates = any(p.budget is not None and p.budget.parts.comm_ns for p in summary.ranks)
    _show_sections(summary, ("budget", "overlap") if communicates else ("budget",), limit=limit)
    console.file.flush()


def _selected(summary: TraceSummary, request: Request) -> TraceSummary:
    """Return the summary with only the ranks and steps asked for in its lists; findings stay the whole job's."""
    kept, ranks, steps = summary.ranks, request.ranks, request.steps
    if ranks is not None:
        recorded = {p.facts.rank for p in kept}
        if missing := sorted(ranks - recorded):
            raise UsageError(
                f"--rank: no trace of rank {missing[0]}",
                fix=f"ranks given: {', '.join(str(r) for r in sorted(recorded)[:20])}",
            )
        kept = tuple(p for p in kept if p.facts.rank in ranks)
    if steps is not None:
        recorded = {s.step for p in kept for s in p.steps}
        if missing := sorted(steps - recorded):
            raise UsageError(
                f"--steps: no step {missing[0]} in the trace",
                fix=f"steps recorded: {', '.join(str(s) for s in sorted(recorded)[:20]) or 'none'}",
            )
        kept = tuple(replace(p, steps=tuple(s for s in p.steps if s.step in steps)) for p in kept)
    return replace(summary, ranks=kept)


def _write_csv(summary: TraceSummary, folder: Path, sections: Iterable[str]) -> None:
    from stepscope.report.render.files import as_csv
    from stepscope.store.writer import make_dir, write_bytes

    make_dir(folder)
    for section in sections:
        table = trace_sections.table(summary, section)
        if table.rows:
            write_bytes(folder / f"{section}.csv", as_csv(table).encode())


def _show(summary: TraceSummary, diagnosis: Diagnosis, request: Request, *, judged: Judged | None, early: bool) -> None:
    """Print what the rules say, then the tables. judged: the verdict on the job that the traces are a window of.
    early: the budget is shown already."""
    from stepscope.records.trace_summary import UNTOLD

    limit = request.options.limit
    about = _about(summary)
    if early:  # what bounds the ranks is the column that the early budget could not have
        kinds = Counter(v.verdict.kind for v in summary.verdicts).most_common()
        bounds = (kind if len(kinds) == 1 else f"{kind} ({counted(n, 'rank')})" for kind, n in kinds)
        about += " · bound by " + ", ".join(bounds)
    if judged is not None:
        from stepscope.cli.findings import print_findings
        from stepscope.diagnose.narrator import slowed

        verdict = judged.verdict
        worth = "" if verdict.slowdown is None else f" {slowed(verdict)}"
        profiled = counted(verdict.steps_profiled, "profiled step")
        say(f"tables of {profiled}{worth}", "" if verdict.window_sized else "yellow")
        say(f"by {counted(verdict.steps_timed, 'timed step')}: {verdict.headline}", "bold")
        say(about, "bold")
        grave = [f for f in diagnosis.findings if f.severity != "info"]
        print_findings(diagnosis.findings[:FINDINGS_SHOWN])
        if len(grave) > FINDINGS_SHOWN:
            more = ", ".join(dict.fromkeys(f.rule for f in grave[FINDINGS_SHOWN:]))
            say(f"more: {more}; `stepscope diagnose` explains all of them", "dim")
    elif any(p.partial for p in summary.ranks):
        say(about, "bold")
        say("only device events were read; leave out --show to read all", "dim")
    else:
        import shlex

        from stepscope.cli.findings import show_screen
        from stepscope.diagnose.screen import of_traces

        command = shlex.join(["stepscope", "diagnose", *request.options.paths])
        show_screen(of_traces(summary, diagnosis, rests_on=about, more=command))
    say()
    rest = [section for section in request.sections if not (early and section in SCANNED)]
    _show_sections(summary, rest, limit=limit)
    for note in [*summary.notes, *(n for p in summary.ranks for n in p.notes)][: limit or None]:
        if note.kind not in UNTOLD:
            where = "" if note.rank is None else f"rank {note.rank}: "
            say(f"! {where}{note.text}", "yellow")


def _show_sections(summary: TraceSummary, sections: Sequence[str], *, limit: int) -> None:
    from stepscope.cli.findings import limited, show_table

    for section in sections:
        table = limited(trace_sections.table(summary, section), limit, "--limit 0 shows all, --rank and --steps choose")
        if not (table.rows or table.footnotes or table.notes):
            continue
        show_table(table, titled=True, folded=True)
        say()


def _about(summary: TraceSummary) -> str:
    """Write ``8 ranks · NVIDIA A100 · 10,520 events · 6 steps``."""
    ranks = len(summary.ranks)
    world = summary.world_size
    of = f" of {world}" if world and world != ranks else ""
    devices = sorted({p.facts.device_name for p in summary.ranks if p.facts.device_name})
    events = sum(p.facts.event_count for p in summary.ranks)
    steps = len({s.step for p in summary.ranks for s in p.steps})
    kind = "device events" if all(p.partial for p in summary.ranks) else "events"
    parts = [f"{counted(ranks, 'rank')}{of}", *devices[:2], f"{events:,} {kind}"]
    if steps:
        parts.append(counted(steps, "step"))
    return " · ".join(parts)
