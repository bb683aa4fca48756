"""What ``stepscope run`` does: start the command under the hook, say the verdict as soon as there is one, and at the end."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast, get_args

from stepscope.cli.console import log, say
from stepscope.cli.fail_if import check_job, read_conditions
from stepscope.cli.hooked import ended, hang_seconds, job_folder, job_outlasts, show_out_of_memory, start_job, tell_hang
from stepscope.cli.profile_words import checked_place, results_at, show_profiled
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.words import counted, ranges, unknown
from stepscope.launch import hooked_job
from stepscope.launch.deep_look import Deep, DeepLooks
from stepscope.launch.hang_watch import HangWatch
from stepscope.launch.job_window import WindowReading, room_beside
from stepscope.launch.notices import Notices, recipient
from stepscope.launch.rank_watch import RankWatch
from stepscope.records.profile import Hang, JobEnd
from stepscope.store.layout import ProfileLayout

if TYPE_CHECKING:
    from stepscope.cli.commands.run import Run
    from stepscope.diagnose.jobs import LiveVerdict
    from stepscope.records.finding import JobVerdict
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.report.export_job import Exports

POLL_S = 0.5
"""Seconds between looks at a job; its end is seen at once."""
JOIN_S = 60.0
"""Seconds from a deep look to what it shows: its traces are read beside a job that runs."""
NICE = 10
"""How nice this process is while the job runs: its ranks are timed."""
SILENT = ("ok", "no-steps")
"""Ends of a job of which nothing is said where no step was timed."""


JOIN_PATIENCE_S = 600.0
"""Seconds that a joining host waits for the one that starts the job: its image may still be fetched."""


def run(options: Run) -> int:
    """Run the command and watch it; the job's own exit code."""
    if options.join:
        return _join(options)
    after_s = hang_seconds(options.hang_after)
    place = checked_place(options.verdict)
    mode = _deep(options.deep)
    if options.fail_if:
        from stepscope.cli.trace_run import import_numpy_alone

        import_numpy_alone()
    conditions = read_conditions(options.fail_if)
    recipients = [recipient(text) for text in dict.fromkeys(options.notify)]
    layout = job_folder(options.output, "run", options.command)
    exports = _opened(layout, options.export) if options.export else None
    notices = Notices(layout, recipients)
    child = start_job(layout, options.command, None, options)
    with suppress(OSError):
        os.nice(NICE)
    with RankWatch(layout, child.pid) as watch, hooked_job.signals_passed_on(child) as signals:
        with job_outlasts():
            log(f"to profile it: stepscope profile --attach {shlex.quote(str(layout.root))}")
        hang = HangWatch(layout, after_s)
        live = _live(layout) if options.monitor else None
        deeper = _Deeper(layout, mode)
        while child.poll() is None:
            watch.wait(POLL_S)
            if live is None:
                continue
            if exports is not None:
                exports.look()
            with job_outlasts():
                _say_failed(notices.failures())
                if (sighting := hang.look()) is not None and sighting[0] == "hang":
                    verdict = _hanging(sighting[1])
                    notices.send("hang", verdict, verdict.headline)
                tell_hang(sighting)
                if hang.hang is None and (judged := live.look()) is not None:
                    notices.send("verdict", judged.verdict, _so_far(judged.verdict))
                    log(_so_far(judged.verdict))
                    deeper.consider(judged.verdict)
                deeper.look()
        code = hooked_job.exit_code(child.wait())
        with job_outlasts():
            deeper.end()
        end = ended(layout, code, child, watch, signals, hang, timed=options.monitor, asked=False)
    with job_outlasts():
        _tell_end(notices, end)
    with job_outlasts(), results_at(place):
        _show(layout, end, deeper.captures() if options.monitor else None)
    with job_outlasts():
        show_out_of_memory(layout, options)
    if exports is not None:
        exports.end()
    with job_outlasts():
        _say_failed(notices.close())
    check_job(conditions, layout, code)
    return code


def _join(options: Run) -> int:
    """Become the command, with the hook of a job that another host starts and watches."""
    if options.output is None:
        raise UsageError("--join needs the folder of the job", fix="add -o DIR, the same as on the host that starts it")
    hooked_job.check_program(options.command)
    environment = hooked_job.environment_of(ProfileLayout(options.output), patience_s=JOIN_PATIENCE_S)
    os.execvpe(options.command[0], list(options.command), environment)


def _hanging(hang: Hang) -> JobVerdict:
    """The verdict on a job that stands still and has not ended."""
    from stepscope.records.finding import JobVerdict
    from stepscope.results.profiled_job import hang_words

    headline = f"Hang: {hang_words(hang, hang.place)}"
    return JobVerdict(kind="hang", ranks=hang.ranks, confidence="so far: it has not ended", headline=headline)


def _tell_end(notices: Notices, end: JobEnd) -> None:
    """Tell that a job failed."""
    if end.kind in SILENT:
        return
    from stepscope.diagnose.verdict import failed_verdict

    if (verdict := failed_verdict(end)) is not None:
        notices.send("end", verdict, verdict.headline)


def _say_failed(failures: Iterable[str]) -> None:
    for failure in failures:
        log(f"! --notify {failure}", "yellow")


class _Deeper:
    """Makes deep looks, and says what they show while the job runs."""

    def __init__(self, layout: ProfileLayout, mode: Deep) -> None:
        self._layout = layout
        self._looks = DeepLooks(layout, mode)
        self._reading: WindowReading | None = None
        self._join_at = math.inf
        self._announced = False

    def consider(self, verdict: JobVerdict) -> None:
        request = self._looks.consider(verdict)
        if request is not None:
            who = "all ranks" if request.ranks is None else f"rank {ranges(request.ranks)}"
            log(f"deep look: a few steps of {who} are profiled soon (--deep off: never)")
            self._announced = True

    def look(self) -> None:
        """Begin to read a window that has ended; after a while say what it shows."""
        ended = self._looks.look()
        if ended is not None and ended[1].written:
            number, state = ended
            self._reading = WindowReading(self._layout.traces(number), beside=room_beside(state))
            self._join_at = time.monotonic() + JOIN_S
        if time.monotonic() < self._join_at:
            return
        self._join_at = math.inf
        from stepscope.diagnose.jobs import LATEST, judge_job
        from stepscope.diagnose.narrator import shown_by_window

        judged = judge_job(self._layout.root, tuple(self.captures().values()), last=LATEST)
        if judged is not None and (sentence := shown_by_window(judged.verdict, judged.diagnosis)):
            log(f"deep look: {sentence}")

    def end(self) -> None:
        """Take what the job's last steps left; say so where a look that was announced did not come."""
        if self._announced:
            self.look()
        if self._announced and self._reading is None:
            log("deep look: the job ended before it; `stepscope profile -- COMMAND` records steps of a short job")

    def captures(self) -> Mapping[str, TraceSummary]:
        """Return what the traces of the last window say; nothing where there are none, or none that is read."""
        if self._reading is None:
            return {}
        from stepscope.traces.sections import BY_STEP, Wanted

        try:
            return self._reading.result(Wanted(sections=BY_STEP))
        except StepscopeError as error:
            log(f"! deep look: {error}", "yellow")
            return {}


def _deep(given: str) -> Deep:
    """Read --deep. Raises UsageError."""
    if given not in get_args(Deep):
        raise UsageError(unknown("--deep", given, get_args(Deep)), fix="for example --deep off")
    return cast("Deep", given)


class _Kept:
    """Exports of a job that runs: why one fails is said once, and again only when it has worked in between."""

    def __init__(self, exports: Exports) -> None:
        self._exports = exports
        self._failed = self._wrote = False

    def look(self, *, last: bool = False) -> None:
        try:
            if self._exports.look(last=last):
                self._failed, self._wrote = False, True
        except (StepscopeError, OSError) as error:
            if not self._failed:
                with job_outlasts():
                    log(f"! --export: {error}", "yellow")
            self._failed = True

    def end(self) -> None:
        self.look(last=True)
        with job_outlasts():
            places = self._exports.close()
            log(f"exported: {', '.join(places)}" if self._wrote else "nothing exported: no step was recorded")


def _opened(layout: ProfileLayout, targets: Sequence[str]) -> _Kept:
    """Open the targets before the job starts: one that cannot be opened is known at once. Raises StepscopeError."""
    from stepscope.cli.trace_run import import_numpy_alone

    import_numpy_alone()
    from stepscope.report.export_job import Exports

    return _Kept(Exports(layout.root, tuple(dict.fromkeys(targets))))


def _live(layout: ProfileLayout) -> LiveVerdict:
    """Load what judges, a third of a second, while the job itself starts."""
    from stepscope.cli.trace_run import import_numpy_alone

    import_numpy_alone()
    from stepscope.diagnose.jobs import LiveVerdict

    return LiveVerdict(layout)


def _so_far(verdict: JobVerdict) -> str:
    """Write the verdict so far in one line."""
    after = f"after {counted(verdict.steps_made, 'step')}" if verdict.steps_made else "so far"
    grows = verdict.memory is not None and verdict.memory.growth and verdict.memory.line not in verdict.headline
    memory = f"; memory {verdict.memory.line}" if verdict.memory and grows else ""
    change = f"; {verdict.change.line}" if verdict.change is not None and verdict.change.slower else ""
    return f"{after}: {verdict.headline}{memory}{change}"


def _show(layout: ProfileLayout, end: JobEnd, captures: Mapping[str, TraceSummary] | None) -> None:
    """Print the verdict. captures: of the last deep look; None: no step was timed."""
    judged = None if captures is None else show_profiled(layout, captures)
    if judged is None and end.kind not in SILENT:
        from stepscope.results.profiled_job import end_sentence

        say(end_sentence(end), "bold red")
