"""What ``stepscope profile`` says: which steps, what is missing and why; the verdict, and where it goes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.console import out
from stepscope.cli.findings import show_screen
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.units import format_bytes, format_duration
from stepscope.core.words import counted
from stepscope.diagnose.screen import of_job
from stepscope.launch.hooked_job import why_no_rank
from stepscope.launch.job_window import WindowState
from stepscope.records.profile import JobEnd
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record, writing

if TYPE_CHECKING:
    from stepscope.diagnose.verdict import Judged
    from stepscope.records.trace_summary import TraceSummary


def lacks(layout: ProfileLayout, state: WindowState) -> list[str]:
    """Say what is missing of a window, a line each."""
    written = state.written
    lines = [
        f"the window has fewer steps than it needs: {reason}"
        for reason in dict.fromkeys(r.bounded for r in written if r.bounded)
    ]
    for report in state.reports:
        if report.status != "written":
            lines.append(f"rank {report.rank} ({report.host}): no trace: {report.reason}")
    reported = {report.rank for report in state.reports}
    registered = {int(path.stem.partition("-")[2]) for path in layout.ranks()}
    if state.unknown:
        lines.append(no_such_rank(state))
    unseen = [rank for rank in state.silent if rank not in reported]
    if late := [rank for rank in unseen if rank in registered]:
        lines.append(f"no report from {_ranks(late)}: it ended before the window, or hangs")
    if absent := [rank for rank in unseen if rank not in registered]:
        place = layout.traces(state.reports[0].window)
        lines.append(
            f"{_ranks(absent)} left nothing in {layout.root}: the hook did not reach it, or its host does not see this "
            f"folder; then its trace of the same steps is in {place} on its host: copy it here, and run stepscope trace"
        )
    return lines


def recorded(layout: ProfileLayout, state: WindowState) -> list[str]:
    """Say which steps the window holds, and what it cost, a line each."""
    written = state.written
    lines = [
        f"profiled: steps {first + 1} to {last} of {counted(len(written), 'rank')}"
        for first, last in sorted({(r.first_step, r.last_step) for r in written})
    ]
    if any(r.file is not None for r in written):
        size = format_bytes(sum(r.size_bytes for r in written))
        pause = max(r.paused_s for r in written)
        lines.append(f"{layout.root}: {size} of traces; writing them paused the job for {format_duration(pause * 1e9)}")
    return lines


MOST_LACKING = 4
"""Lines of the first screen on what a window lacks."""


def rest_of(root: Path, *, window: bool) -> str:
    """Return the commands that show what the first screen leaves out. window: there is one."""
    first, *others = ("trace", "diagnose --all", "report") if window else ("diagnose --all", "report")
    return f"stepscope {first} {shlex.quote(str(root))}; or {', '.join(others)}"


def no_such_rank(state: WindowState) -> str:
    world = state.world_size or 1
    return f"there is no {_ranks(state.unknown)}: the job has {'only rank 0' if world == 1 else f'ranks 0-{world - 1}'}"


def _ranks(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 16} more" if len(numbers) > 16 else ""
    return f"rank {', '.join(str(number) for number in numbers[:16])}{more}"


def missing(
    layout: ProfileLayout, state: WindowState, command: Sequence[str], end: JobEnd | None, *, timed: bool = False
) -> tuple[str, str]:
    """Return (reason, what to do) where no rank wrote a trace.

    end: None for a job that runs on. timed: --duration, for which there is no --wait.
    """
    if state.expected == ():
        return no_such_rank(state), "choose other --ranks"
    failed = end is not None and end.kind not in ("ok", "short", "no-steps", "interrupted")
    inside = all(r.status in ("open", "ended") for r in state.reports)
    if end is not None and end.kind == "interrupted" and inside:
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
        reasons = "; ".join(list(dict.fromkeys(f"rank {r.rank}: {r.reason}" for r in state.reports))[:4])
        if failed and inside:
            return reasons, f"see why the job itself failed{_code(end)}"
        return reasons, (_TIMED if timed else _FIXES)[state.reports[0].status]
    if failed:
        assert end is not None
        if layout.ranks() or layout.processes() or layout.failures():
            when = "before the window" if layout.ranks() else "before the first step"
            return f"the job failed {when}", f"see why the job itself failed{_code(end)}"
        reason, _ = why_no_rank(layout, command)
        return f"the command itself failed{_code(end)}; {reason}", "see what it said above"
    if layout.ranks():
        return (
            "the job ended before the window began",
            "begin it earlier: --after 0"
            if timed
            else "train for more steps, or begin at once: --wait 0 --warmup 0 --steps 1",
        )
    if timed and layout.processes():
        return (
            f"{counted(len(layout.processes()), 'process')} imported torch, but no module of torch.nn made a forward pass",
            "for a job that trains with an optimizer: leave out --duration",
        )
    return why_no_rank(layout, command)


def _code(end: JobEnd | None) -> str:
    return "" if end is None or end.code is None else f" (exit code {end.code})"


_FIXES = {
    "open": "check how the job itself ended, and what its ranks said on stderr",
    "ended": "start the window earlier with --wait N, or profile fewer steps with --steps N",
    "stepped_back": "choose steps that the job does not profile itself, with --wait N",
    "missed": "ranks must make the same number of optimizer steps, and see the output folder without delay: another "
    "--step-optimizer, another folder, or --wait N",
    "failed": "fix the cause and run again",
}
"""What to do, by what happened to a window."""

_TIMED = _FIXES | {
    "ended": "begin the window earlier with --after S, or make it shorter with --duration S",
    "stepped_back": "choose a time at which the job does not profile itself, with --after S",
    "missed": "ranks must make the same number of forward passes, and see the output folder without delay",
}
"""What to do, by what happened to a window with --duration."""


def show_profiled(
    layout: ProfileLayout,
    captures: Mapping[str, TraceSummary],
    *,
    running: bool = False,
    state: WindowState | None = None,
) -> Judged | None:
    """Print the verdict on the job and return it; None, and nothing printed, where its folder tells nothing.

    captures: what was read of the window's traces. running: the verdict is one so far. state: of the window; None: there is
    none. Raises DataError for damaged files.
    """
    from stepscope.diagnose.jobs import judge_job

    judged = judge_job(layout.root, tuple(captures.values()))
    if judged is None:
        return None
    with suppress(StepscopeError):  # it is derived: a full disk is no reason to say nothing
        write_record(layout.verdict, judged.verdict)
    missing_of = [] if state is None else lacks(layout, state)
    if len(missing_of) > MOST_LACKING:
        missing_of[MOST_LACKING - 1 :] = [f"{counted(len(missing_of) - MOST_LACKING + 1, 'more line')}: --tables"]
    more = rest_of(layout.root, window=state is not None or bool(captures))
    show_screen(of_job(judged.verdict, running=running, warnings=missing_of, more=more))
    return judged


def checked_place(given: str | None) -> str:
    """Return ``stdout``, ``stderr`` or a file; without --verdict stdout, or stderr where that alone is a terminal.

    Raises UsageError.
    """
    if given is None:
        return "stderr" if sys.stderr.isatty() and not sys.stdout.isatty() else "stdout"
    if given not in ("stdout", "stderr"):
        path = Path(given)
        if path.is_dir() or not path.absolute().parent.is_dir():
            why = "it is a folder" if path.is_dir() else f"there is no folder {path.absolute().parent}"
            raise UsageError(
                f"--verdict {given}: this file cannot be written", why=why, fix="name a file, stdout or stderr"
            )
    return given


@contextmanager
def results_at(place: str) -> Iterator[None]:
    """Send results there in place of stdout within the block; a file holds those of the last block. Raises WriteError."""
    if place == "stdout":
        yield
        return
    out.cache_clear()  # it knows the width and the colours of one stream
    try:
        if place == "stderr":
            with redirect_stdout(sys.stderr):
                yield
            return
        with writing(Path(place)), Path(place).open("w", encoding="utf-8") as file, redirect_stdout(file):
            yield
    finally:
        out.cache_clear()
