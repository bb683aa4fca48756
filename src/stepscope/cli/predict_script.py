"""``stepscope predict ... -- COMMAND``: the user's own script on GPUs that are not there; ``--from`` shows it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.prediction import Question, answered_dry_run, asked_of_dry_run
from stepscope.cli.console import log, out, print_document, say, typed
from stepscope.cli.findings import show_screen, show_table
from stepscope.core.errors import ExitCode, Interrupted, MissingError, StepscopeError, UsageError
from stepscope.core.forks import stop_signals_raise
from stepscope.core.words import counted
from stepscope.diagnose.dry_words import failure_words, headline
from stepscope.diagnose.screen import of_dry
from stepscope.launch.dry_run import DrySettings, dry_run, dry_runs, last_lines
from stepscope.matrix.run_folder import default_run_dir, name_of_command
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.what_if import DryWhatIf, parse_dry_what_if, parse_gpus
from stepscope.records.dry_run import DryFailure, DryRank, DryRun
from stepscope.report.views import dry_run as dry_views
from stepscope.results.dry_changes import worth_trying
from stepscope.results.dry_job import DryJob, read_dry_job, speed
from stepscope.store.layout import DryLayout
from stepscope.store.writer import write_record

if TYPE_CHECKING:
    from stepscope.cli.commands.predict import Predict
    from stepscope.traces.events import RankTrace

_EXAMPLE = (
    "stepscope predict --gpus 8,64 --gpu h100-sxm --network infiniband-ndr -- torchrun --nproc-per-node 8 train.py"
)


def run(options: Predict) -> int:
    """Run the script on each world and print; the exit code. Raises StepscopeError."""
    if not options.command:
        raise UsageError("no command after `--`", fix=_EXAMPLE)
    what = parse_dry_what_if(options.what_if)
    trace = _profiled_host(options, what)
    for name in ("gpu", "gpus"):
        if getattr(options, name) is None and (name == "gpus" or trace is None):
            raise UsageError(
                f"--{name} is missing", why="a script alone does not say what it will run on", fix=_EXAMPLE
            )
    if options.calib is not None and trace is None:
        raise UsageError("--calib: GPUs are priced by their network", fix="give --network, or a profile of the host")
    gpu = known_gpu(str(options.gpu)) if trace is None else None
    worlds = parse_gpus(str(options.gpus))
    asked = DryRun(
        command=tuple(options.command),
        folder=str(Path.cwd()),
        argv=typed(),
        gpus=tuple(worlds) if trace is None else tuple(sorted({trace.meta.world_size or 1, *worlds})),
        ranks_per_node=options.gpus_per_node,
        gpu=None if gpu is None else gpu.key,
        network=options.network,
        adapters=options.adapters,
    )
    job = DryJob(folder=Path(), run=asked, ranks=())
    for one in (job, replace(job, what=what.priced)) if gpu else ():
        one.cluster(max(asked.gpus))  # a mistake starts nothing
    layout = DryLayout(options.output or default_run_dir(f"dry-{name_of_command(options.command)}"))
    settings = DrySettings(gpu=gpu, batch_from=options.batch_from, timeout_s=options.timeout)
    with stop_signals_raise("the dry run was stopped"), _interrupts_said(layout):
        done = dry_run(layout, asked, settings, tell=_tell)
        for failure in done.failures[:1]:
            log(f"what the script printed: {layout.log(failure.world_size, failure.rank)}")
            for line in last_lines(layout, failure.world_size, failure.rank) if failure.place is None else ():
                log(f"    {line}")
        if len({failure.world_size for failure in done.failures}) == len(done.gpus):
            raise error_of(done.failures[0])
        if trace is not None:
            _write_profile(layout, trace, options)
        first = read_dry_job(layout.root)
        gpus = tuple(first.worlds)
        others = []
        for number, changed in enumerate([what.forced] if what.forced else worth_trying(first), 1):
            log("again with " + ", ".join(f"{key}={value}" for key, value in changed.items()))
            again = replace(asked, gpus=gpus if what.forced else gpus[-1:], changes=changed)
            others.append((DryLayout(layout.other(number)), again))
        dry_runs(others, settings, tell=_tell)
    job = _calibrated(read_dry_job(layout.root), options)
    _show(job, _otherwise(job, what), options)
    return ExitCode.SOME_CELLS_FAILED if done.failures else ExitCode.OK


@contextmanager
def _interrupts_said(layout: DryLayout) -> Iterator[None]:
    """Within the block Ctrl-C raises Interrupted that says what is left."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: the script's processes have ended; {layout.root} holds what was recorded"
        ) from None


def _profiled_host(options: Predict, what: DryWhatIf) -> RankTrace | None:
    """Return the trace of --calibrate where that is of ranks of the host, which are asked about then; None for GPUs. Raises
    StepscopeError."""
    if options.calibrate is None or options.gpu is not None:
        return None
    from stepscope.results.dry_host import of_host, profiled_rank, require_shapes
    from stepscope.store.reader import read_calibration

    trace = profiled_rank(options.calibrate)
    if not of_host(trace):
        return None
    if options.calib is None:
        raise UsageError(
            "--calib is missing",
            why=f"{options.calibrate} computes on the host, and what its ranks send costs what their network does",
            fix="stepscope comm --ranks 2 -o COMM, stepscope calibrate COMM, then --calib COMM/calib.json",
        )
    if what.compiled or what.priced.gpu or what.priced.link or options.network or options.adapters:
        raise UsageError(f"{options.calibrate} computes on the host: no GPU or link of one is asked about")
    require_shapes(options.calibrate, trace)
    read_calibration(options.calib)
    return trace


def _write_profile(layout: DryLayout, trace: RankTrace, options: Predict) -> None:
    from stepscope.results.dry_host import read_profile

    assert options.calibrate is not None
    assert options.calib is not None
    ranks = read_dry_job(layout.root).ranks
    write_record(layout.profile, read_profile(options.calibrate, trace, ranks, options.calib))


def _otherwise(job: DryJob, what: DryWhatIf) -> DryJob | None:
    """Return the job with what is asked to be other; None where nothing is. Raises UsageError where that has no step."""
    if not what.asked:
        return None
    base = next((other for other in job.others if dict(other.run.changes) == dict(what.forced)), job)
    if not base.worlds:
        raise error_of(base.run.failures[0])
    return replace(base, what=what.priced, compiled=what.compiled)


def _tell(outcome: DryRank | DryFailure, seconds: float) -> None:
    where = f"world of {outcome.world_size}, rank {outcome.rank}"
    if isinstance(outcome, DryFailure):
        log(f"{where}: {failure_words(outcome)}", "red")
    else:
        calls = counted(len(outcome.calls), "collective")
        log(f"{where}: {counted(len(outcome.order), 'operator')}, {calls}, {seconds:.1f} s")


def error_of(failure: DryFailure) -> StepscopeError:
    """Return the error of a world without a step: of usage where another number of GPUs would have one."""
    kind = UsageError if failure.reason == "world" else MissingError
    what = failure.text if failure.place is None else f"{failure.place}: {failure.text}"
    return kind(what, why=None if failure.fix else f"on {counted(failure.world_size, 'GPU')}", fix=failure.fix)


def run_folder(path: Path, options: Predict) -> int:
    """Show a dry run again, on other GPUs where they are asked for; the exit code. Raises StepscopeError."""
    what = parse_dry_what_if(options.what_if)
    if what.forced and not any(dict(other.run.changes) == dict(what.forced) for other in read_dry_job(path).others):
        raise UsageError(
            f"--what-if {next(iter(what.forced))}: {path} does not hold the script",
            why="its wrappers do something else then: the script runs again",
            fix="give the command again after --",
        )
    job = read_dry_job(path)
    if not job.worlds:
        raise error_of(job.run.failures[0])
    question = Question(
        gpus=None if options.gpus is None else parse_gpus(options.gpus),
        network=options.network,
        adapters=options.adapters,
        gpus_per_node=options.gpus_per_node,
    )
    job = _calibrated(asked_of_dry_run(job, question, gpu=options.gpu), options)
    _show(job, _otherwise(job, what), options)
    return 0


def _calibrated(job: DryJob, options: Predict) -> DryJob:
    """Return the job with the operators of --calibrate, where it is given. Raises DataError."""
    if options.calibrate is None or job.profile is not None:
        return job
    from stepscope.results.dry_calibration import calibrated_job

    job, text = calibrated_job(job, options.calibrate)
    log(text)
    return job


def _show(job: DryJob, other: DryJob | None, options: Predict) -> None:
    if options.chart is not None:
        from stepscope.cli.predict_step import write_chart
        from stepscope.report.charts import curve_of_dry_run
        from stepscope.report.views.predicted_step import predicted_scaling_chart

        if len(job.steps) < 2:
            raise UsageError("--chart needs several numbers of GPUs", fix="--gpus 8,64,512")
        write_chart(options.chart, predicted_scaling_chart(curve_of_dry_run(job)))
    if options.json:
        print_document(answered_dry_run(job, other).to_json())
        return
    show_screen(of_dry(job, more=f"stepscope report {job.folder}; stepscope diagnose {job.folder}"))
    if len(job.steps) > 1:
        say()
        show_table(dry_views.dry_steps_table([job]), width=min(out().width, 140))
    if other is not None:
        shared = max(world for world in other.steps if world in job.steps)
        gain = speed(other.steps[shared]) / speed(job.steps[shared]) - 1
        say()
        say(f"with {', '.join(options.what_if)}: {headline(other)}; {gain:+.1%} speed on {shared} GPUs", "bold")
        show_table(dry_views.dry_steps_table([other]), width=min(out().width, 140))
    if options.memory or job.largest.memory.verdict != "fits":
        for table in (dry_views.dry_memory_table([job]), dry_views.dry_at_peak_table([job])):
            say()
            show_table(table, titled=True, width=min(out().width, 140))
