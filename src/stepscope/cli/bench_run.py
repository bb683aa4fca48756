"""What ``stepscope bench`` does: plan, run, derive, print. ``demo`` and ``compare --run`` run plans here, too."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import bench_plan
from stepscope.cli.command import listed, whole_numbers
from stepscope.cli.console import OutputError, ReaderGone, print_document, say, typed
from stepscope.cli.findings import show_runs, show_table
from stepscope.cli.host_options import host_world
from stepscope.cli.progress import run_and_show
from stepscope.core.errors import DataError, ExitCode, Interrupted, UsageError
from stepscope.core.places import cache_dir
from stepscope.core.units import format_bytes
from stepscope.core.words import counted
from stepscope.diagnose.engine import diagnose
from stepscope.launch.join import joined_world
from stepscope.launch.torchrun import require_torch
from stepscope.machine.collect import collect
from stepscope.matrix.kinds import BENCH
from stepscope.matrix.load import preset_names, resolved_matrix
from stepscope.matrix.machine import machine_of
from stepscope.matrix.run_folder import RunPlace, exit_code, take_place
from stepscope.matrix.session import ReadyMatrix, derive_results, make_plan
from stepscope.matrix.work import RunRequest
from stepscope.records.finding import Diagnosis
from stepscope.records.training import TrainingRun
from stepscope.report.contents import experiment_tables
from stepscope.report.summary import write_summary
from stepscope.report.views import bars, findings, step_parts
from stepscope.report.views.buckets import bucket_sweep_table as buckets_table
from stepscope.report.views.memory import held_table as held_tables
from stepscope.report.views.pipeline import pipeline_table as pipeline_tables
from stepscope.report.views.runs import of_cells
from stepscope.results.evidence import Evidence
from stepscope.results.experiments import checks_of
from stepscope.results.held import differing, held_states, in_words
from stepscope.results.open import load_evidence
from stepscope.results.pipeline import conclusions, pipelines
from stepscope.results.run_figures import bench_document
from stepscope.results.sweeps import gains, overlap_conclusions
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_run
from stepscope.store.yaml_loader import Document, parse_yaml
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import PREFIX, own_names

if TYPE_CHECKING:
    from stepscope.cli.commands.bench import Bench


BATCH = 32
BUDGET_S = 20


def model_matrix(options: Bench) -> Document:
    """Return one cell on one rank, and the collective strategies on 2, 4, ... ranks.

    Raises UsageError for what is misspelled.
    """
    assert options.model is not None
    key = f"{PREFIX}{options.model.removeprefix(PREFIX)}"
    own_names(key)
    strategies = listed(options.strategies or "single,ddp")
    if not strategies:
        raise UsageError("--strategies is empty")
    ranks = whole_numbers("--ranks", options.ranks, most=1_000_000) if options.ranks else default_ranks()
    alone = [name for name in strategies if not STRATEGIES.load(name).collective]
    several = [name for name in strategies if name not in alone]
    parts = [
        {"axes": {"strategy": names, "world_size": worlds}}
        for names, worlds in (
            (alone, [n for n in ranks if n == 1]),
            (several, [n for n in ranks if n > 1 or not alone]),
        )
        if names and worlds
    ]
    if not parts:
        raise UsageError(f"{', '.join(strategies)} cannot run on {', '.join(map(str, ranks))} ranks")
    base: dict[str, object] = {"workload": key, "micro_batch": options.batch or BATCH, "steps": "auto"}
    if options.input is not None:
        base["dataset_options"] = {"input": options.input}
    document = {"version": 1, "base": base, "include": parts, "measure": {"budget_s": BUDGET_S}}
    return parse_yaml(json.dumps(document), source=".".join(own_names(key)))


def default_ranks() -> list[int]:
    """Return 1, 2, 4, ... up to the GPUs (or cores where there are none) and that number itself; a launched world's size."""
    joined = joined_world(os.environ)
    if joined is not None:
        return [joined[1]]
    machine = machine_of(collect(remember=True))
    most = max(2, machine.num_gpus or machine.usable_cores)
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


_OF_MODEL = {
    "batch": "micro_batch=N", "strategies": "strategy=NAME", "ranks": "world_size=N",
    "input": "dataset_options.input=SHAPE",
}  # fmt: skip
"""Options that say something of --model, and the key of a matrix that says the same."""


def run(options: Bench) -> int:
    """Do what the command line says; the exit code. Raises StepscopeError."""
    if options.list_:
        return bench_plan.print_presets(json=options.json)
    source = source_of(options)
    overrides = bench_plan.overrides(options)
    if options.show:
        return bench_plan.print_matrix(source, overrides=overrides)
    hosts = host_world(options, against=_not_on_hosts(options))
    if not options.plan and hosts is None:
        require_torch()
    plan = make_plan(
        source,
        overrides=overrides,
        data_dir=options.data_dir,
        download=options.download,
        only=options.sections,
        share=bench_plan.share(options.share),
        hosts=hosts,
    )
    return bench_plan.print_plan(plan, options) if options.plan else run_plan(plan, options)


def _not_on_hosts(options: Bench) -> dict[str, tuple[object, str]]:
    """Return the options that cannot be with --hosts, and why."""
    not_sent = "stepscope copies no data and no code to the hosts; synthetic data is made there"
    return {
        "--data-dir": (options.data_dir, not_sent),
        "--download": (options.download, not_sent),
        "--model": (options.model, not_sent),
        "--tensorboard": (options.tensorboard, "it is a folder of this machine; the run folder has the traces"),
        "--emulate-network": (options.emulate_network, "the hosts are real"),
    }


def source_of(options: Bench) -> Path | str | Document:
    """Return the matrix that is meant. Raises UsageError unless there is exactly one."""
    given = [source for source in (options.matrix, options.preset, options.model) if source is not None]
    if len(given) != 1:
        raise UsageError(
            "give one of a matrix file, --preset NAME and --model MODULE:FUNCTION",
            fix="`stepscope bench --list` shows the presets",
        )
    if options.model is None:
        for name in _OF_MODEL:
            if getattr(options, name) is not None:
                raise UsageError(
                    f"--{name} goes with --model", fix=f"a matrix says it itself: --set base.{_OF_MODEL[name]}"
                )
        if options.matrix is not None:
            _require_matrix(options.matrix)
        return given[0]
    return model_matrix(options)


def _require_matrix(file: Path) -> None:
    """Raises UsageError for what is no file but something else that bench has a word for."""
    if not file.exists() and str(file) in preset_names():
        raise UsageError(
            f"{file} does not exist", fix=f"a preset is named by --preset: stepscope bench --preset {file}"
        )
    if RunLayout(file).is_there:
        raise UsageError(
            f"{file} is a run folder, not a matrix file",
            fix=f"to resume the run, name its matrix again: stepscope bench MATRIX.yaml -o {file}",
        )


def run_plan(plan: ReadyMatrix, options: Bench, *, printed: bool = True, judged: bool = True) -> int:
    """Run what is missing, write results and report, print them (``printed``, a verdict if ``judged``); the exit code."""
    bench_plan.refuse_two_kinds(plan)
    joined = joined_world(os.environ)
    if not plan.cells and joined is not None and joined[0] != 0 and options.output is not None:
        return bench_plan.sweep(plan, RunLayout(options.output), options)  # a rank of it: no return
    env = tuple(plan.matrix.launch.env)
    place = take_place(options.output, name=plan.matrix.name, env_source="launch.env", env=env)
    whole = bool(plan.matrix.sections) or plan.comm is not None  # shown when all of it is there
    swept: int = ExitCode.OK
    try:
        code = _run_cells(plan, options, place, printed=printed)
        if plan.comm is not None:
            swept = bench_plan.sweep(plan, place.layout, options)
    except Interrupted:
        if whole and printed:
            with suppress(DataError, OutputError, ReaderGone):  # nothing is there yet, or the terminal has gone, too
                _show(plan, place.layout, json=options.json, judged=judged)
        raise
    if whole and printed:
        _show(plan, place.layout, json=options.json, judged=judged)
    return code or swept


def _show(plan: ReadyMatrix, layout: RunLayout, *, json: bool, judged: bool) -> None:
    if plan.matrix.sections:
        bench_plan.show_sections(layout, json=json)
    else:
        _print(layout, *_derive_all(layout), json=json, judged=judged)


def _run_cells(plan: ReadyMatrix, options: Bench, place: RunPlace, *, printed: bool) -> int:
    """Run the matrix' cells and show what they gave; their exit code."""
    launch, layout = plan.matrix.launch, place.layout
    measure = plan.matrix.measure
    request = RunRequest(
        kind=BENCH,
        layout=layout,
        name=plan.matrix.name,
        matrix=resolved_matrix(plan.matrix),
        cells=plan.cells,
        others=plan.others,
        measure=replace(measure, profile=measure.profile or options.profile or options.tensorboard is not None),
        usable_cores=plan.environment.usable_cores * place.cores_factor,
        argv=typed(),
        cache_dir=cache_dir(os.environ),
        env=launch.env,
        isolate=launch.isolate,
        hosts=plan.hosts,
        joined=place.group,
        rerun=options.rerun_words,
        force=options.force,
        data_dir=plan.data_dir,
        tensorboard_dir=options.tensorboard,
        environment=plan.environment,
    )
    if plan.matrix.sections or plan.comm is not None:
        return bench_plan.run_cells(request)
    runs, *_ = run_and_show(
        request,
        renew=lambda: derive_results(layout),
        finish=lambda: _derive_all(layout),
        show=(lambda derived: _print(layout, *derived, json=options.json)) if printed else None,
        saved=f"{layout.results_jsonl} and {layout.summary_md}",
    )
    ours = {cell.spec.cell_id for cell in plan.cells}
    return exit_code(run.status for run in runs if run.run_id in ours)


def _derive_all(layout: RunLayout) -> tuple[tuple[TrainingRun, ...], Evidence, Diagnosis]:
    """Write everything that follows from the run folder; return the runs, the evidence and what the rules say of it."""
    runs = derive_results(layout)
    run = read_run(layout.root)
    traced = bool(run.matrix.get("measure", {}).get("profile"))  # the matrix itself is about what traces show
    whole = load_evidence([layout.root], traces=traced)
    evidence = replace(whole, traces=())
    diagnosis = diagnose(evidence)
    write_summary(layout, runs, run=run, findings=diagnosis.findings)
    return runs, whole, diagnosis


def _print(
    layout: RunLayout,
    runs: tuple[TrainingRun, ...],
    evidence: Evidence,
    diagnosis: Diagnosis,
    *,
    json: bool,
    judged: bool = True,
) -> None:
    """Print JSON, or the table, findings and where the rest is."""
    if json:
        print_document(bench_document(read_run(layout.root), runs, experiment=findings.document(checks_of(evidence))))
        return
    if judged:
        show_runs(evidence, diagnosis, layout.root)
    gained = overlap_conclusions(gains(evidence.cells, evidence.traces)) if evidence.traces else ()
    for sentence in (*conclusions(pipelines(evidence.cells)), *gained):
        say(sentence)
    # A cell that was stopped before its first step has nothing to show; the error says how many there are.
    if shown := [run for run in runs if run.status != "interrupted" or run.notes]:
        show_table(of_cells(shown))
    holding = held_states(evidence.cells)
    different = differing(holding)
    further = [bars.compared_table("precision", runs)]
    further += [*pipeline_tables(evidence.cells), *(held_tables(evidence.cells) if different else ())]
    if evidence.traces:
        table = step_parts.gain_table(evidence.cells, evidence.traces)
        further.append(replace(table, footnotes=table.footnotes[len(gained) :]))  # the first ones are said above
    further.append(buckets_table(evidence.cells))
    for table in further:
        if table.rows:
            say()
            show_table(table)
    for line in () if different else in_words(holding):
        say(line)
    for table in experiment_tables(evidence):
        say()
        show_table(table, titled=True)
    say(f"\nresults  {layout.results_jsonl}\nreport   {layout.summary_md}")
    if traces := layout.trace_files():
        say(f"traces   {_of_traces(layout, traces)}")


def _of_traces(layout: RunLayout, traces: tuple[Path, ...]) -> str:
    """Say how many traces there are, how large, and which command reads them."""
    cells = len({path.parent for path in traces})
    size = format_bytes(sum(path.stat().st_size for path in traces))
    command = f"stepscope trace {shlex.quote(str(layout.root))}" + (" --cell ID" if cells > 1 else "")
    return f"{counted(len(traces), 'file')} of {counted(cells, 'cell')}, {size}: {command}"
