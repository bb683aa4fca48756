"""What ``stepscope profile`` does: start the command under the hook, wait for windows, show them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import parse_ranges, whole_or_auto
from stepscope.cli.console import ReaderGone, log, out, say
from stepscope.cli.fail_if import check_job, read_conditions
from stepscope.cli.hooked import ended, hang_seconds, job_folder, job_outlasts, show_out_of_memory, start_job, tell_hang
from stepscope.cli.profile_words import (
    checked_place,
    lacks,
    missing,
    no_such_rank,
    recorded,
    results_at,
    show_profiled,
)
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.words import counted
from stepscope.launch import hooked_job
from stepscope.launch.hang_watch import HangWatch
from stepscope.launch.job_window import (
    POLL_S,
    WindowReading,
    WindowState,
    WindowWait,
    is_gone,
    room_beside,
    wait_for_window,
)
from stepscope.launch.rank_watch import RankWatch
from stepscope.records.profile import (
    JobEnd,
    ProfileRecord,
    WindowOfRank,
    WindowRequest,
)
from stepscope.results.profiled_job import end_sentence
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record
from stepscope.store.writer import make_dir, writing

if TYPE_CHECKING:
    from stepscope.cli.commands.profile import Profile, Window
    from stepscope.diagnose.verdict import Judged
    from stepscope.records.trace_summary import TraceSummary

FIXED_STEP = 20
"""The step at which ranks begin that do not see the output folder, and by which step times count as settled."""
AFTER_POLL_S = 0.5
"""Seconds between looks at a job whose window is over; its end is seen at once."""
WENT_WELL = ("ok", "short", "no-steps", "interrupted")
"""Ends that are nobody's fault."""
EARLY_S = 60.0
"""Seconds from the window to an early verdict on a job that still runs."""


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
    request = _request(options, running=options.attach is not None)
    hang_seconds(options.hang_after)
    checked_place(options.verdict)
    if options.fail_if:
        from stepscope.cli.trace_run import import_numpy_alone

        import_numpy_alone()
    conditions = read_conditions(options.fail_if)
    if options.attach is not None:
        _attach(options, request)
        check_job(conditions, ProfileLayout(options.attach), 0)
        return 0
    command = options.command or []
    layout = job_folder(options.output, "profile", command)
    if options.nsys:
        command = _around_ranks(command, layout)
    child = start_job(layout, command, request, options)
    with RankWatch(layout, child.pid) as watch, hooked_job.signals_passed_on(child) as signals:
        followed = _Followed(layout, request, options)
        followed.until_the_end(child, watch)
        code = hooked_job.exit_code(child.wait())
        end = ended(layout, code, child, watch, signals, followed.hang)
    state = followed.window.state
    shown = _left_traces(layout, 1, state, options)
    with job_outlasts():
        _verdict(layout, end, state=state if shown else None, reading=followed.reading, options=options)
    with job_outlasts():
        show_out_of_memory(layout, options)
    if not shown:
        reason, fix = missing(layout, state, options.command or [], end, timed=options.duration is not None)
        if end.kind in WENT_WELL:  # else the folder says how it failed
            hooked_job.make_room(layout)
        with job_outlasts():
            log(f"no trace: {reason}\n  fix: {fix}", "yellow")
    check_job(conditions, layout, code)
    return code


class _Followed:
    """Watches a job while it runs, and says what is seen."""

    def __init__(self, layout: ProfileLayout, request: WindowRequest, options: Profile) -> None:
        self.window = WindowWait(layout, 1, request)
        self.hang = HangWatch(layout, hang_seconds(options.hang_after))
        self.reading: WindowReading | None = None
        self._layout = layout
        self._options = options
        self._show_at: float | None = None

    def until_the_end(self, child: subprocess.Popen[bytes], watch: RankWatch) -> None:
        while child.poll() is None:
            watch.wait(AFTER_POLL_S if self.window.over else POLL_S)
            with job_outlasts():
                self._follow()
        with job_outlasts():
            self.window.look()

    def _follow(self) -> None:
        if not self.window.over and self.window.look():
            self._window_is_over()
        if self._show_at is not None and time.monotonic() > self._show_at and self.hang.hang is None:
            self._show_at = None
            _verdict(self._layout, None, state=self.window.state, reading=self.reading, options=self._options)
        tell_hang(self.hang.look())

    def _window_is_over(self) -> None:
        state = self.window.state
        if state.expected == ():  # it is said now: the job may run for days
            log(f"! {no_such_rank(state)}", "yellow")
        if not state.written or self._options.nsys:
            return
        log(
            f"window of {counted(state.steps, 'step')} recorded; the verdict follows when the job ends; "
            f"now: stepscope diagnose {shlex.quote(str(self._layout.root))}"
        )
        self.reading = WindowReading(self._layout.traces(1), beside=room_beside(state))
        _get_ready()
        self._show_at = time.monotonic() + EARLY_S


def _get_ready() -> None:
    """Load what reads, judges and shows, a third of a second: nobody waits for it while the job runs."""
    from stepscope.cli.trace_run import import_numpy_alone

    import_numpy_alone()
    import stepscope.diagnose.engine as findings
    import stepscope.diagnose.verdict
    import stepscope.traces.job
    import stepscope.traces.stragglers
    import stepscope.traces.waiting  # noqa: F401

    findings.trace_rules()


def _around_ranks(command: Sequence[str], layout: ProfileLayout) -> list[str]:
    """Return the command with nsys in it, and say it: it can be typed without us."""
    from stepscope.launch.nsys_command import around_ranks, installed

    nsys = installed()
    line = around_ranks(command, nsys, layout.traces(1).absolute())
    log(f"nsys {nsys.version}: {shlex.join(line)}")
    return line


def _attach(options: Profile, request: WindowRequest) -> None:
    assert options.attach is not None
    layout = ProfileLayout(options.attach)
    if is_gone(layout):
        raise DataError(f"{options.attach}: this job has ended", fix="start it again with `stepscope run`")
    number = hooked_job.wake(layout, request)
    if not layout.ranks():
        log("no rank has made a step yet: waiting")
    state = wait_for_window(layout, number, request)
    if not _left_traces(layout, number, state, options):
        reason, fix = missing(layout, state, read_record(layout.record, ProfileRecord).command, None)
        raise DataError(f"no trace: {reason}", fix=fix)
    _verdict(layout, None, state=state, reading=None, options=options, number=number)


def _request(options: Window, *, running: bool) -> WindowRequest:
    wait = whole_or_auto("--wait", options.wait, least=0)
    steps = whole_or_auto("--steps", options.steps, least=1)
    if options.duration is not None and options.duration <= 0:
        raise UsageError("--duration must be above 0 s", fix="for example --duration 10")
    nsys = getattr(options, "nsys", False)
    kinds = () if nsys else ("shapes", "stacks", "memory", "flops", "modules")
    collect = [name for name in kinds if getattr(options, name)]
    timed = options.duration is not None
    sampled = ("shapes",) if kinds and options.shapes is None else ()
    return WindowRequest(
        steps=10**9 if timed else steps or "auto",
        wait=1 if timed else "auto" if wait is None else wait,
        warmup=options.warmup,
        fixed_step=None if running else (FIXED_STEP if wait is None else max(wait, 1)),
        collect=(*collect, *sampled) if timed else tuple(collect),
        sampled=() if timed else sampled,
        tool="nsys" if nsys else "torch",
        ranks=None if options.ranks is None else tuple(sorted(parse_ranges(options.ranks, "--ranks") or ())),
        duration_s=options.duration,
        after_s=options.after if timed else None,
    )


def _left_traces(layout: ProfileLayout, number: int, state: WindowState, options: Profile) -> bool:
    return bool(state.written) and (not options.nsys or any(layout.traces(number).glob("*")))


def _verdict(
    layout: ProfileLayout,
    end: JobEnd | None,
    *,
    state: WindowState | None,
    reading: WindowReading | None,
    options: Profile,
    number: int = 1,
) -> None:
    """Print what the job's end and the traces of window ``number`` say, where --verdict wants it.

    end: None while the job runs: an early verdict. state: of the window; None where no rank wrote a trace.
    reading: of its traces, where one has begun.
    """
    with results_at(checked_place(options.verdict)):
        captures = _captures(layout, number, state, reading, options)
        judged = show_profiled(layout, captures, running=end is None, state=state)
        if judged is None and end is not None and (end.kind != "ok" or end.independent or state is None):
            say(end_sentence(end), "bold" if end.kind in WENT_WELL else "bold red")
        if state is not None:
            if options.tensorboard is not None:
                _copy_for_tensorboard(state.written, options.tensorboard)
            if options.tables or judged is None:
                _show_tables(layout, number, state, captures, options, judged)
        sys.stdout.flush()


def _captures(
    layout: ProfileLayout, number: int, state: WindowState | None, reading: WindowReading | None, options: Profile
) -> Mapping[str, TraceSummary]:
    """Return what the window's traces say; nothing where there are none, or none that is read."""
    if state is None or options.nsys:
        return {}
    from stepscope.traces.sections import BY_STEP, Wanted

    try:
        return (reading or WindowReading(layout.traces(number), beside=False)).result(Wanted(sections=BY_STEP))
    except StepscopeError as error:
        log(f"error: {error}", "red")
        return {}


def _show_tables(
    layout: ProfileLayout,
    number: int,
    state: WindowState,
    captures: Mapping[str, TraceSummary],
    options: Profile,
    judged: Judged | None,
) -> None:
    """Print what the window's traces say."""
    console = out()
    say()
    console.rule(f"stepscope: window {number}, {counted(state.steps, 'profiled step')}")
    from stepscope.cli.commands.trace import Trace
    from stepscope.cli.trace_run import run as run_trace

    try:
        if captures or options.nsys:
            run_trace(
                Trace(paths=(str(layout.traces(number)),)),
                also=("utilisation", *(("memory",) if options.memory else ())),
                read=captures or None,
                judged=judged,
            )
    except ReaderGone:
        raise
    except StepscopeError as error:
        log(f"error: {error}", "red")
    for line in recorded(layout, state):
        say(line)
    for line in lacks(layout, state):
        say(f"! {line}")
    console.rule()


def _copy_for_tensorboard(reports: Sequence[WindowOfRank], folder: Path) -> None:
    """Copy the traces to names that TensorBoard's profiler page looks for: WORKER.TIME.pt.trace.json.gz."""
    make_dir(folder)
    for report in reports:
        assert report.file is not None
        target = folder / f"{report.host}_rank{report.rank}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        with writing(target):
            shutil.copyfile(report.file, target)
