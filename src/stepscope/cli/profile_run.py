"""What ``stepscope profile`` and ``stepscope run`` do: start the command under the hook, wait for windows, show them."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import require_only
from stepscope.cli.console import ReaderGone, err, log, out, say, typed
from stepscope.cli.ranges import parse_ranges
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.units import format_bytes
from stepscope.core.words import counted
from stepscope.launch import hooked_job
from stepscope.launch.hooked_job import WindowState
from stepscope.matrix.run_place import default_run_dir
from stepscope.records.profile import ProfileRecord, WindowOfRank, WindowRequest
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record
from stepscope.store.writer import make_dir, writing

if TYPE_CHECKING:
    from stepscope.cli.commands.profile import Profile, Window
    from stepscope.cli.commands.run import Run

FIXED_STEP = 20
"""Where ranks begin that do not see the output folder, and by when step times count as settled."""


def run(options: Profile) -> int:
    """Profile a new job or a running one; the job's own exit code where it was started here."""
    if options.attach is not None and options.command:
        raise UsageError(
            "profile starts a command or attaches to a job that runs, and both are given",
            fix="leave out --attach, or the command after `--`",
        )
    if options.attach is None and not options.command:
        raise UsageError(
            "profile needs a command after `--`, or --attach RUN",
            fix="for example `stepscope profile -- torchrun --nproc-per-node 8 train.py`",
        )
    require_only(options, *_mode(options))
    request = _request(options, running=options.attach is not None)
    if options.attach is not None:
        return _attach(options, request)
    layout = ProfileLayout(options.output or default_run_dir("profile"))
    command = options.command or []
    if options.nsys:
        command = _around_ranks(command, layout)
    child = _start(layout, command, request, options)
    with hooked_job.signals_passed_on(child) as signals:
        state = hooked_job.wait_for_window(layout, 1, request, child)
        shown = not options.nsys and _left_traces(layout, 1, state, options)
        if shown:
            with _job_outlasts():
                _show(layout, 1, state, options)
        if child.poll() is None:
            with _job_outlasts():
                if state.expected == ():  # it is said now: the job may run for days
                    log(f"! {_no_such_rank(state)}", "yellow")
                err().print("the job runs on; stepscope waits for it", style="dim")
        code = hooked_job.exit_code(child.wait())
    with _job_outlasts():
        if options.nsys and (shown := _left_traces(layout, 1, state, options)):  # nsys writes as the ranks end
            _show(layout, 1, state, options)
    with _job_outlasts():
        _show_out_of_memory(layout, options)
    if not shown:
        reason, fix = _missing(layout, state, options.command or [], code=code, interrupted=bool(signals))
        hooked_job.make_room(layout)
        with _job_outlasts():
            log(f"no trace: {reason}\n  fix: {fix}", "yellow")
    return code


@contextmanager
def _job_outlasts() -> Iterator[None]:
    """Within the block a lost stdout or stderr (``| head -1``), or a full disk, ends what is shown of a job.

    The job is still waited for, and its exit code is the command's.
    """
    with suppress(ReaderGone):
        try:
            yield
        except ReaderGone:
            raise
        except StepscopeError as error:
            log(f"error: {error}", "red")


def _mode(options: Profile) -> tuple[str, Collection[str]]:
    """What is profiled, and the options that say how."""
    every = vars(options).keys()
    if options.attach is not None:  # `stepscope run` has chosen these
        return "--attach", every - {"output", "nccl_debug", "step_optimizer", "duration", "after", "nsys"}
    if options.nsys:
        torchs_own = {"shapes", "stacks", "memory", "flops", "modules", "tensorboard", "after", "duration"}
        return "--nsys", every - torchs_own
    if options.duration is not None:
        return "--duration", every - {"steps", "wait", "step_optimizer"}
    return "profile without --duration", every - {"after"}


def run_asleep(options: Run) -> int:
    """Run the command with the hook asleep; the job's own exit code."""
    layout = ProfileLayout(options.output or default_run_dir("run"))
    child = _start(layout, options.command, None, options)
    with hooked_job.signals_passed_on(child):
        with _job_outlasts():
            log(f"to profile it: stepscope profile --attach {layout.root}")
        code = hooked_job.exit_code(child.wait())
    with _job_outlasts():
        _show_out_of_memory(layout, options)
    return code


def _start(
    layout: ProfileLayout, command: Sequence[str], first: WindowRequest | None, options: Profile | Run
) -> subprocess.Popen[bytes]:
    record = ProfileRecord(
        command=tuple(command), folder=str(Path.cwd()), host=socket.gethostname(), first=first, argv=typed()
    )
    environment = hooked_job.prepare(
        layout, record, nccl_debug=options.nccl_debug, step_optimizer=options.step_optimizer, memory=options.memory
    )
    return hooked_job.start(command, environment)


def _around_ranks(command: Sequence[str], layout: ProfileLayout) -> list[str]:
    """The command with nsys in it, which is said: it can be typed without us."""
    from stepscope.launch.nsys_command import around_ranks, installed

    nsys = installed()
    line = around_ranks(command, nsys, layout.traces(1).absolute())
    log(f"nsys {nsys.version}: {shlex.join(line)}")
    return line


def _attach(options: Profile, request: WindowRequest) -> int:
    assert options.attach is not None
    layout = ProfileLayout(options.attach)
    if hooked_job.is_gone(layout):
        raise DataError(f"{options.attach}: this job has ended", fix="start it again with `stepscope run`")
    number = hooked_job.wake(layout, request)
    if not layout.ranks():
        err().print("no rank has made a step yet: waiting", style="dim")
    state = hooked_job.wait_for_window(layout, number, request, None)
    if not _left_traces(layout, number, state, options):
        reason, fix = _missing(layout, state, read_record(layout.record, ProfileRecord).command)
        raise DataError(f"no trace: {reason}", fix=fix)
    _show(layout, number, state, options)
    return 0


def _request(options: Window, *, running: bool) -> WindowRequest:
    wait: int | str = options.wait
    if wait != "auto":
        if not str(wait).isdigit():
            raise UsageError(f"--wait {wait!r}: expected auto or a number of steps", fix="for example --wait 50")
        wait = int(wait)
    if options.duration is not None and options.duration <= 0:
        raise UsageError("--duration must be above 0 s", fix="for example --duration 10")
    nsys = getattr(options, "nsys", False)
    kinds = () if nsys else ("shapes", "stacks", "memory", "flops", "modules")
    collect = [name for name in kinds if getattr(options, name)]
    timed = options.duration is not None
    return WindowRequest(
        steps=10**9 if timed else options.steps,
        wait=1 if timed else wait,  # type: ignore[arg-type]
        warmup=options.warmup,
        fixed_step=None if running else (FIXED_STEP if isinstance(wait, str) else max(wait, 1)),
        collect=tuple(collect),
        tool="nsys" if nsys else "torch",
        ranks=None if options.ranks is None else tuple(sorted(parse_ranges(options.ranks, "--ranks") or ())),
        duration_s=options.duration,
        after_s=options.after if timed else None,
    )


def _left_traces(layout: ProfileLayout, number: int, state: WindowState, options: Profile) -> bool:
    return bool(state.written) and (not options.nsys or any(layout.traces(number).glob("*")))


def _show(layout: ProfileLayout, number: int, state: WindowState, options: Profile) -> None:
    """Print what the window's traces say."""
    if options.tensorboard is not None:
        _copy_for_tensorboard(state.written, options.tensorboard)
    console = out()
    console.print()
    console.rule(f"stepscope: window {number}")
    from stepscope.cli.commands.trace import Trace
    from stepscope.cli.trace_run import run as run_trace

    try:
        run_trace(
            Trace(paths=(str(layout.traces(number)),)), also=("utilisation", *(("memory",) if options.memory else ()))
        )
    except ReaderGone:
        raise
    except StepscopeError as error:
        log(f"error: {error}", "red")
    for line in _notes(layout, state):
        say(line)
    console.rule()
    sys.stdout.flush()


def _show_out_of_memory(layout: ProfileLayout, options: Profile | Run) -> None:
    """What the snapshots of out-of-memory errors say; with --memory why no history was kept."""
    failed = tuple(sorted(layout.memory.glob("oom-rank-*.pickle")))
    if not failed:
        if options.memory and not layout.memory.exists():
            err().print("no history of GPU memory: no process of the job used CUDA", style="dim")
        return
    from stepscope.cli.commands.report import Report
    from stepscope.cli.evidence import read_evidence
    from stepscope.cli.findings import print_findings
    from stepscope.diagnose.engine import diagnose
    from stepscope.report.render import terminal
    from stepscope.report.views import memory_kinds

    console = out()
    console.print()
    console.rule("stepscope: out of memory")
    try:
        evidence = read_evidence(Report(paths=failed))
        print_findings(diagnose(evidence).findings)
        console.print()
        table = memory_kinds.build(evidence.memory[:1])
        console.print(terminal.render(table, width=console.width, footnotes=False), soft_wrap=True)
    except ReaderGone:
        raise
    except StepscopeError as error:
        log(f"error: {error}", "red")
    named = shlex.quote(str(failed[0] if len(failed) == 1 else layout.memory))
    say(f"next: stepscope report {named}")
    console.rule()
    sys.stdout.flush()


def _notes(layout: ProfileLayout, state: WindowState) -> list[str]:
    """What the profiler cost, what is missing, where the files are."""
    written = state.written
    lines = []
    if state.step_ns is not None:
        before, inside = state.step_ns
        lines.append(
            f"step time without the profiler: {before / 1e6:,.1f} ms; in the profiled steps {inside / 1e6:,.1f} ms "
            f"({100 * (inside / before - 1):+.0f}%)"
        )
    ranges = {(r.first_step, r.last_step) for r in written}
    for first, last in sorted(ranges):
        lines.append(f"profiled: steps {first + 1} to {last} of {counted(len(written), 'rank')}")
    for report in state.reports:
        if report.status != "written":
            lines.append(f"! rank {report.rank} ({report.host}): no trace: {report.reason}")
    reported = {report.rank for report in state.reports}
    registered = {int(path.stem.partition("-")[2]) for path in layout.ranks()}
    if state.unknown:
        lines.append(f"! {_no_such_rank(state)}")
    unseen = [rank for rank in state.silent if rank not in reported]
    if late := [rank for rank in unseen if rank in registered]:
        lines.append(f"! no report from {_ranks(late)}: it ended before the window, or hangs")
    if absent := [rank for rank in unseen if rank not in registered]:
        place = layout.traces(state.reports[0].window)
        lines.append(
            f"! {_ranks(absent)} left nothing in {layout.root}: the hook did not reach it, or its host does not see this "
            f"folder; then its trace of the same steps is in {place} on its host: copy it here, and run stepscope trace"
        )
    if any(r.file is not None for r in written):
        size = format_bytes(sum(r.size_bytes for r in written))
        pause = max(r.paused_s for r in written)
        lines.append(f"{layout.root}: {size} of traces; writing them paused the job for {pause:.1f} s")
    lines.append(
        f"next: stepscope diagnose {shlex.quote(str(layout.root))}; stepscope report {shlex.quote(str(layout.root))}"
    )
    return lines


def _no_such_rank(state: WindowState) -> str:
    world = state.world_size or 1
    return f"there is no {_ranks(state.unknown)}: the job has {'only rank 0' if world == 1 else f'ranks 0-{world - 1}'}"


def _ranks(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 16} more" if len(numbers) > 16 else ""
    return f"rank {', '.join(str(number) for number in numbers[:16])}{more}"


def _missing(
    layout: ProfileLayout, state: WindowState, command: Sequence[str], *, code: int = 0, interrupted: bool = False
) -> tuple[str, str]:
    """(reason, what to do) where no rank wrote a trace. code: the job's own, 0 where it is not known.

    interrupted: stepscope was sent a signal, which went to the job.
    """
    if state.expected == ():
        return _no_such_rank(state), "choose other --ranks"
    if interrupted and all(r.status in ("open", "ended") for r in state.reports):
        return (
            f"interrupted {'in' if state.reports else 'before'} the window",
            "let the job run until its window has passed, or start the window earlier",
        )
    if state.written:
        return (
            f"the window passed, and nsys left no report in {layout.traces(1)}",
            "see what nsys said above, and run its line by hand",
        )
    if state.reports:
        reasons = dict.fromkeys(f"rank {r.rank}: {r.reason}" for r in state.reports)
        if code and all(r.status in ("open", "ended") for r in state.reports):
            return "; ".join(list(reasons)[:4]), f"see why the job itself failed (exit code {code})"
        return "; ".join(list(reasons)[:4]), _FIXES[state.reports[0].status]
    if layout.ranks():
        return (
            "the job ended before the window began",
            "start the window earlier, for example with --wait 2, or train for more steps",
        )
    return hooked_job.why_no_rank(layout, command)


_FIXES = {
    "open": "check how the job itself ended, and what its ranks said on stderr",
    "ended": "start the window earlier with --wait N, or profile fewer steps with --steps N",
    "stepped_back": "choose steps that the job does not profile itself, with --wait N",
    "missed": "ranks must make the same number of optimizer steps, and see the output folder without delay: another "
    "--step-optimizer, another folder, or --wait N",
    "failed": "fix the cause and run again",
}
"""By what happened to a window."""


def _copy_for_tensorboard(reports: Sequence[WindowOfRank], folder: Path) -> None:
    """TensorBoard's profiler page looks for WORKER.TIME.pt.trace.json.gz."""
    make_dir(folder)
    for report in reports:
        assert report.file is not None
        target = folder / f"{report.host}_rank{report.rank}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        with writing(target):
            shutil.copyfile(report.file, target)
