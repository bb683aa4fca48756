"""What ``stepscope comm`` does: from the text of options to sweeps; progress, rows, tables, the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from stepscope.cli.command import (
    choice,
    duration_ns,
    given,
    listed,
    spelled,
    whole_numbers,
    whole_or_auto,
)
from stepscope.cli.console import print_document, print_json, say, typed
from stepscope.cli.findings import print_block, show_table
from stepscope.cli.host_options import host_world
from stepscope.cli.progress import run_and_show
from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.errors import ExitCode, MissingError, UsageError
from stepscope.core.places import cache_dir
from stepscope.core.units import format_duration, format_percent, format_size, parse_sizes
from stepscope.core.words import counted, unknown
from stepscope.launch.torchrun import require_torch
from stepscope.matrix.comm_plan import (
    CommPlan,
    CommRequest,
    derive_comm_rows,
    dtype_name,
    make_comm_plan,
    op_names,
    parse_env,
    parse_mode,
)
from stepscope.matrix.keys import LaunchSettings
from stepscope.matrix.kinds import COMM
from stepscope.matrix.run_folder import exit_code, take_place
from stepscope.matrix.work import RunRequest
from stepscope.records import codec
from stepscope.records.cell import MeasureSettings
from stepscope.records.comm import CommKind, CommMeasure, CommRow, CommSpec, Pacing
from stepscope.report.names import sweep_labels
from stepscope.report.table import Table
from stepscope.results.comm_rows import comm_document
from stepscope.store.layout import RunLayout
from stepscope.store.writer import make_dir, write_bytes

if TYPE_CHECKING:
    from stepscope.cli.commands.comm import Comm


MOST_RANKS = 4096


def comm_request(options: Comm) -> CommRequest:
    """Return what to measure. Raises UsageError for the first option that makes no sense."""
    extra: tuple[tuple[CommKind, bool], ...] = (
        ("pairs", options.pairs),
        ("matmul", options.matmul),
        ("overlap", options.overlap),
    )
    nothing = options.ops.strip() == "none"
    if nothing and not any(wanted for _, wanted in extra):
        raise UsageError(
            "--ops none alone measures nothing",
            fix="add --pairs, --matmul or --overlap; --ops all has every collective",
        )
    for text in listed(options.dtype):
        dtype_name(text)
    threads = whole_or_auto("--threads", options.threads, least=1)
    ops = () if nothing else op_names(options.ops)
    _refuse_without_use(options, ops)
    return CommRequest(
        ops=ops,
        sizes_bytes=parse_sizes(options.sizes),
        dtypes=listed(options.dtype),
        reduce_ops=listed(options.reduce_op),
        places=choice(
            "--in-place", options.in_place, {"auto": None, "no": (False,), "yes": (True,), "both": (False, True)}
        ),
        modes=tuple(dict.fromkeys(parse_mode(text) for text in listed(options.mode))),
        patterns=listed(options.pattern),
        root=options.root,
        pacing=choice(
            "--pacing",
            options.pacing,
            cast(dict[str, Pacing | None], {"auto": None, "barrier": "barrier", "back-to-back": "back_to_back"}),
        ),
        env=parse_env(options.env),
        network=options.emulate_network,
        threads_per_rank="auto" if threads is None else threads,
        extra=tuple(kind for kind, wanted in extra if wanted),
    )


def _refuse_without_use(options: Comm, ops: tuple[str, ...]) -> None:
    """Raises UsageError for an option that no collective asked for has a use of."""
    specs = [COLLECTIVES.load(op) for op in ops]
    named = ", ".join(ops) or "none"
    uses = {
        "root": (any(spec.rooted for spec in specs), f"none of {named} has a root"),
        "pattern": (any(spec.patterns for spec in specs), f"only send_recv has patterns, not {named}"),
        "reduce_op": (any(spec.reduces for spec in specs), f"none of {named} reduces"),
        "ci": (options.iters.strip() == "auto", "--iters says how many calls are timed"),
        **{name: (bool(ops), "--ops none calls no collective") for name in ("mode", "in_place", "overlap")},
    }
    for name in given(options):
        used, why = uses.get(name, (True, ""))
        if not used:
            raise UsageError(f"{spelled(type(options), name)} has no effect: {why}")


def launch_settings(options: Comm) -> LaunchSettings:
    backend = choice("--backend", options.backend, {name: name for name in ("auto", "gloo", "nccl")})
    device = choice("--device", options.device, {name: name for name in ("auto", "cpu", "cuda")})
    return LaunchSettings(
        backend=cast(Literal["auto", "gloo", "nccl"], backend), device=cast(Literal["auto", "cpu", "cuda"], device)
    )


def worlds(options: Comm) -> tuple[int, ...] | None:
    """Return the world sizes asked for; None: whatever the machine has."""
    if options.ranks is None:
        return None
    return whole_numbers("--ranks", options.ranks, most=MOST_RANKS)


def comm_measure(options: Comm) -> CommMeasure:
    return CommMeasure(
        warmup=whole_or_auto("--warmup", options.warmup, least=0),
        iterations=whole_or_auto("--iters", options.iters, least=1),
        ci_fraction=options.ci,
        budget_ns=duration_ns("--budget", options.budget),
        timeout_ns=duration_ns("--timeout", options.timeout),
        check=options.check,
        nccl_debug=None if options.nccl_debug is None else options.nccl_debug.replace("all", "").strip(),
    )


NAME = "comm"
NCCL_SUBSYSTEMS = "INIT,ENV,NET,GRAPH,TUNING"
"""What tells rings, transports and the algorithm of each size; NCCL's own default leaves TUNING out."""

NOT_MEASURED = frozenset({"ssh", "remote_python", "output", "plan", "charts", "format_", "force", "json"})
"""Options that do not say what is measured."""

_REASONS = 3
"""As many of the reasons why sweeps were not measured are written out."""

FORMATS = ("table", "csv", "document-001")


def run(options: Comm, *, printed: bool = True) -> int:
    """Measure, write and print (``printed``); the command's exit code."""
    if options.format_ not in FORMATS:
        raise UsageError(unknown("format", options.format_, FORMATS))
    if options.json and options.format_ != "table":
        raise UsageError("--json and --format both say what stdout gets", fix="give one of them")
    asked, measure = comm_request(options), comm_measure(options)
    hosts = host_world(options, against={"--emulate-network": (options.emulate_network, "the hosts are real")})
    if not options.plan and hosts is None:
        require_torch()
    planned = make_comm_plan(asked, launch=launch_settings(options), worlds=worlds(options), hosts=hosts)
    if measure.nccl_debug is not None and planned.backend != "nccl":
        raise UsageError(f"--nccl-debug: the ranks talk over {planned.backend}, which writes no NCCL log")
    if options.plan:
        return _print_plan(planned, measure)
    place = take_place(options.output, name=NAME, env_source="--env", env=tuple(asked.env))
    layout = place.layout
    request = RunRequest(
        layout=layout,
        name=NAME,
        matrix={"comm": {name: value for name, value in vars(options).items() if name not in NOT_MEASURED}},
        cells=planned.cells,
        measure=MeasureSettings(),
        usable_cores=planned.environment.usable_cores * place.cores_factor,
        argv=typed(),
        cache_dir=cache_dir(os.environ),
        env=_debug_variables(layout, measure),
        joined=place.group,
        force=options.force,
        environment=planned.environment,
        hosts=hosts,
        kind=COMM,
        comm_measure=measure,
    )
    derive = partial(_derive, layout)
    rows = run_and_show(
        request,
        renew=derive,
        finish=derive,
        show=partial(_print, layout, options) if printed else None,
        saved=str(layout.results_jsonl),
        draw=partial(_draw, layout) if options.charts else None,
    )
    ids = {cell.spec.cell_id for cell in planned.cells}
    ours = [row for row in rows if row.cell_id in ids]
    code = exit_code(row.status for row in ours)
    if code == ExitCode.ENVIRONMENT and printed:
        raise _nothing_measured(ours)
    return code


def _nothing_measured(rows: Sequence[CommRow]) -> MissingError:
    """Return the error where every sweep cannot run here, or has no size that can be sent."""
    reasons = list(dict.fromkeys(row.error for row in rows if row.error))
    more = [f"and {counted(len(reasons) - _REASONS, 'other reason')}"] if len(reasons) > _REASONS else []
    sizes = all(row.status == "skipped" for row in rows)
    return MissingError(
        "nothing was measured",
        why="; ".join([*reasons[:_REASONS], *more]) or None,
        fix="ask for other sizes, for example --sizes 1K:64M:4"
        if sizes
        else "`--plan` shows which sweeps can run here",
    )


def _debug_variables(layout: RunLayout, measure: CommMeasure) -> dict[str, str]:
    """Return what makes NCCL write its log, one file per rank, into the run folder."""
    if measure.nccl_debug is None:
        return {}
    make_dir(layout.nccl_debug)  # NCCL does not make it, and writes to stdout where it is missing
    variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(layout.nccl_debug.resolve() / "%h-%p.log")}
    return variables | {"NCCL_DEBUG_SUBSYS": measure.nccl_debug or NCCL_SUBSYSTEMS}


def _derive(layout: RunLayout) -> tuple[CommRow, ...]:
    from stepscope.report.comm_document import rows_csv

    rows = derive_comm_rows(layout)
    write_bytes(layout.results_csv, rows_csv(rows).encode())
    return rows


def _draw(layout: RunLayout, rows: tuple[CommRow, ...]) -> None:
    from stepscope.report.charts import draw_charts

    draw_charts(rows, layout.report)


def _print(layout: RunLayout, options: Comm, rows: tuple[CommRow, ...]) -> None:
    from stepscope.report.comm_document import comm_suite_document, rows_csv

    if options.json:
        print_document(comm_document(str(layout.root), rows))
    elif options.format_ == "csv":
        sys.stdout.write(rows_csv(rows))
    elif options.format_ == "document-001":
        print_json(codec.encode_document(comm_suite_document(rows, str(layout.root))))
    else:
        _print_tables(layout, rows)


def _print_tables(layout: RunLayout, rows: tuple[CommRow, ...]) -> None:
    from stepscope.cli.findings import show_runs
    from stepscope.diagnose.engine import diagnose
    from stepscope.report.contents import comm_tables
    from stepscope.results.open import load_evidence

    evidence = load_evidence([layout.root])
    diagnosis = diagnose(evidence)
    show_runs(evidence, diagnosis, layout.root)
    tables = comm_tables(rows)
    for table in tables:
        show_table(table, titled=len(tables) > 1)
        say()
    for table in _nccl_tables(layout):
        show_table(table, titled=True)
        say()
    say(f"results  {layout.results_jsonl}")


def _nccl_tables(layout: RunLayout) -> tuple[Table, ...]:
    """Return what NCCL's own log says of algorithms, rings and transports; none without ``--nccl-debug``."""
    if not layout.nccl_debug.is_dir() or not any(layout.nccl_debug.iterdir()):
        return ()
    from stepscope.report.views.nccl_debug import build_all
    from stepscope.store.importers.nccl_debug import read_nccl_debug

    return build_all(read_nccl_debug(layout.nccl_debug))


def _shared(specs: Sequence[CommSpec]) -> str:
    """Write what all sweeps have in common, as far as it has a value."""
    getters: dict[str, Callable[[CommSpec], object]] = {
        "": lambda spec: counted(spec.world_size, "rank"),
        "device": lambda spec: f"{spec.device}/{spec.backend}",
        "type": lambda spec: spec.dtype,
        "reduction": lambda spec: spec.reduce_op,
        "in place": lambda spec: "yes" if spec.in_place else "no",
        "calls": lambda spec: spec.mode if spec.in_flight == 1 else f"{spec.mode}:{spec.in_flight}",
        "pattern": lambda spec: spec.pattern,
        "root": lambda spec: spec.root,
        "pacing": lambda spec: spec.pacing,
        "network": lambda spec: spec.network,
        "threads": lambda spec: spec.threads_per_rank,
    }
    distinct = {name: {value for spec in specs if (value := get(spec)) is not None} for name, get in getters.items()}
    return ", ".join(f"{name} {values.pop()}".strip() for name, values in distinct.items() if len(values) == 1)


def _print_plan(planned: CommPlan, measure: CommMeasure) -> int:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("sweep", "sizes", ""):
        table.add_column(title, no_wrap=title == "sizes", overflow="fold")
    labels = sweep_labels([cell.spec for cell in planned.cells])
    for cell, label in zip(planned.cells, labels, strict=True):
        sizes = cell.spec.sizes_bytes
        shown = f"{len(sizes)}: {format_size(sizes[0])} to {format_size(sizes[-1])}" if any(sizes) else "-"
        table.add_row(label, shown, cell.unsupported or "")
    print_block(table)
    say(f"\nevery sweep: {_shared([cell.spec for cell in planned.cells])}", "dim")
    calls = "until the median is known to " + format_percent(measure.ci_fraction, digits=1)
    if measure.iterations is not None:
        calls = f"timed {counted(measure.iterations, 'time')}"
    say(
        f"each size {calls}, warm-up {'auto' if measure.warmup is None else measure.warmup}, at most "
        f"{format_duration(measure.budget_ns)}, given up after {format_duration(measure.timeout_ns)}; results "
        f"{'checked' if measure.check else 'not checked'}"
        + ("" if measure.nccl_debug is None else f"; NCCL log of {measure.nccl_debug or NCCL_SUBSYSTEMS}"),
        "dim",
    )
    return ExitCode.OK
