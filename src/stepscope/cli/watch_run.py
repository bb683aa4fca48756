"""What ``stepscope watch`` does: look at a job's folder, show it, look again until the job has ended."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import require_only
from stepscope.cli.console import log, out, print_document, typed
from stepscope.core.errors import DataError, UsageError
from stepscope.core.units import format_decimal, format_duration
from stepscope.core.words import counted, nearest_path, ranges
from stepscope.store.layout import ProfileLayout, RunLayout

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from stepscope.cli.commands.watch import Watch
    from stepscope.diagnose.rank_rows import RankRow
    from stepscope.diagnose.verdict import Judged
    from stepscope.results.profiled_job import StepRate
    from stepscope.results.watched import Happened, Watched

LAST = 1_000
"""Steps of each process that a look at a running job takes in: the verdict is that of now. An ended job is read whole."""

COST_SHARE, POLL_S = 5, 0.5
"""At least so many times what a look took passes before the next: ranks are timed beside it. The end is seen sooner."""

SHOWN_EVENTS = 6
BARS = "▁▂▃▄▅▆▇█"
WIDEST = 120


def run(options: Watch) -> int:
    """Look, and show; 0. Raises StepscopeError."""
    from stepscope.cli.trace_run import import_numpy_alone

    if RunLayout(options.run).is_there:
        from stepscope.cli import watch_matrix

        return watch_matrix.run(RunLayout(options.run), options)
    import_numpy_alone()
    for mode in ("json", "once"):
        if getattr(options, mode):
            require_only(options, f"--{mode}", {"run", "html", mode})
    layout = ProfileLayout(options.run)
    _require_job(layout)
    if options.html is not None and options.html.is_dir():
        raise UsageError(f"--html {options.html} is a folder", fix="name a file")
    looks = _Looks(layout, options)
    if options.json:
        from stepscope.report.documents import watch_document

        seen, judged = looks.look()
        print_document(watch_document(seen, None if judged is None else judged.verdict))
        return 0
    live = out().is_terminal and not options.once
    try:
        return _follow(looks, options, live=live)
    except KeyboardInterrupt:
        return 0


def _follow(looks: _Looks, options: Watch, *, live: bool) -> int:
    """Look until the job has ended; once where there is neither a terminal nor a page to renew."""
    again = not options.once and (live or options.html is not None)
    if again and not live:
        log(f"{options.html}: renewed every {options.every:g} s until the job ends")
    with _live() if live else nullcontext() as shown:
        while True:
            began = time.monotonic()
            try:
                seen, judged = looks.look()
            except (OSError, DataError):
                _require_there(looks.layout)
                if not again:
                    raise
                time.sleep(options.every)  # a file system that is away for a moment, a file that is written just now
                continue
            ended = seen.state == "ended"
            if shown is not None:
                shown.update(screen(seen, judged, out().width, every=None if ended else options.every), refresh=True)
            if ended or not again:
                if shown is None:
                    out().print(screen(seen, judged, min(out().width, WIDEST)))
                return 0
            looks.wait(max(options.every, COST_SHARE * (time.monotonic() - began)))


def _live() -> Live:
    from rich.live import Live

    return Live(console=out(), auto_refresh=False, vertical_overflow="crop")


def _require_job(layout: ProfileLayout) -> None:
    """Raises DataError for what is no folder of `run` or `profile`."""
    root = layout.root
    if layout.is_there:
        return
    if not root.exists():
        raise DataError(f"{root} does not exist", fix=nearest_path(root))
    raise DataError(
        f"{root} is not a folder of a job of `run` or `profile`",
        why="it has no profile.json",
        fix="pass the folder they print",
    )


def _require_there(layout: ProfileLayout) -> None:
    if not layout.is_there:
        raise DataError(f"{layout.root} has been removed", fix="nothing more can be seen of this job here")


class _Looks:
    """Looks at one job, and writes each look to the page where one is wanted."""

    def __init__(self, layout: ProfileLayout, options: Watch) -> None:
        self.layout = layout
        self._options = options

    def look(self) -> tuple[Watched, Judged | None]:
        """Return the job as it is now, and the verdict on its last steps. Raises DataError."""
        from stepscope.diagnose.engine import diagnose
        from stepscope.diagnose.jobs import evidence_of
        from stepscope.diagnose.verdict import judge
        from stepscope.results.profiled_job import read_profiled_job
        from stepscope.results.watched import watched

        ended = self.layout.end.is_file()
        job = read_profiled_job(self.layout.root, last=None if ended else LAST)
        if job is None:
            _require_there(self.layout)
            raise DataError(f"{self.layout.record}: not readable")
        seen = watched(job, written_unix_ns=self._written(), now_unix_ns=time.time_ns())
        evidence = evidence_of(job)
        diagnosis = diagnose(evidence, rules=())
        judged = judge(evidence, diagnosis)
        if self._options.html is not None:
            from stepscope.report.page import write_page

            every = self._options.every
            again = seen.state != "ended" and not self._options.once and not self._options.json
            write_page(
                self._options.html,
                title=job.name,
                evidence=evidence,
                diagnosis=diagnosis if judged is None else judged.diagnosis,
                made_by=typed(),
                verdict=None if judged is None else judged.verdict,
                live=(every if again else 0, state_line(seen)),
            )
        return seen, judged

    def wait(self, seconds: float) -> None:
        """Wait until the next look; the end of the job is one."""
        until = time.monotonic() + seconds
        before = self.layout.end.is_file()
        while (left := until - time.monotonic()) > 0 and self.layout.end.is_file() == before:
            time.sleep(min(left, POLL_S))

    def _written(self) -> int | None:
        times = []
        for path in self.layout.diaries():
            with suppress(OSError):
                times.append(path.stat().st_mtime_ns)
        return max(times, default=None)


def state_line(seen: Watched) -> str:
    """Write ``running; step 1,234; 8 of 8 ranks on 2 hosts; 18.6 steps/s``."""
    parts = [seen.ended_as if seen.state == "ended" and seen.ended_as else seen.state]
    if seen.state == "waiting":
        parts = ["no rank has made a step yet"]
    if seen.state == "silent" and seen.ended_as:
        parts = [seen.ended_as]
    if seen.step:
        parts.append(f"step {seen.step:,}")
    if seen.ranks_seen:
        world = f" of {seen.world_size:,}" if seen.world_size else ""
        hosts = f" on {counted(seen.hosts, 'host')}" if seen.hosts > 1 else ""
        parts.append(f"{seen.ranks_seen:,}{world} ranks{hosts}")
    if seen.state == "running" and seen.job.pace is not None:
        parts.append(f"{format_decimal(seen.job.pace.now)} steps/s")
    return "; ".join(parts)


def screen(seen: Watched, judged: Judged | None, width: int, *, every: float | None = None) -> Group:
    """Return the whole picture, ``width`` characters wide. every: seconds to the next look; None: there is none."""
    from rich.console import Group
    from rich.text import Text

    from stepscope.cli.findings import STYLES
    from stepscope.diagnose.narrator import by_group
    from stepscope.diagnose.rank_rows import rank_rows
    from stepscope.diagnose.screen import tone_of

    steps = seen.job.steps
    parts: list[Any] = []
    if judged is not None:
        parts.append(Text(f"{judged.verdict.headline}.", STYLES[tone_of(judged.verdict)]))
        parts += [Text(f"next   {advice.text}") for advice in judged.verdict.advice[:1]]
        if (memory := judged.verdict.memory) is not None and memory.line:
            parts.append(Text(f"memory {memory.line}", "yellow" if memory.growth else ""))
        if (change := judged.verdict.change) is not None:
            parts.append(Text(change.line, "yellow" if change.slower else ""))
        parts += map(Text, by_group(judged.verdict))
        parts += [Text(clock.line, "yellow") for clock in judged.verdict.clocks]
    style = "yellow" if seen.state == "silent" else "dim"
    parts.append(Text(f"{seen.job.name}: {state_line(seen)}", style))
    if steps is not None:
        parts += [Text(), _table(rank_rows(steps), f"steps {int(steps.numbers[0]):,} to {int(steps.numbers[-1]):,}")]
    if seen.job.pace is not None:
        parts += [Text(), _paced(seen.job.pace, width)]
    if seen.happened:
        parts.append(Text())
        parts += [_event(event, seen.ranks_seen) for event in reversed(seen.happened[-SHOWN_EVENTS:])]
    if every is not None:
        parts += [Text(), Text(f"every {every:g} s; Ctrl-C leaves, the job continues", "dim")]
    return Group(*parts)


def _table(rows: tuple[RankRow, ...], over: str) -> Table:
    """Return the ranks' times in one unit, which stands once; parts that no rank has are left out."""
    from rich.table import Table
    from rich.text import Text

    from stepscope.records.parts import STEP
    from stepscope.report.shared.runs import time_unit

    scale, unit = time_unit(max(row.step_ns for row in rows))
    shown = [part for part in STEP if any((row.parts.get(part.key) or 0.0) * scale >= 0.05 for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=f"{unit} a step, {over}", title_justify="left")
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for title in ("step", *(part.short or part.key for part in shown), "own"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        times = [row.step_ns, *(row.parts[part.key] for part in shown), row.own_ns]
        many = f" ({row.ranks:,})" if row.ranks > 1 else ""
        table.add_row(
            f"{row.name}{many}",
            *("-" if ns is None else f"{ns * scale:.1f}" for ns in times),
            Text("late" if row.late else ""),
            style="red" if row.late else "",
        )
    return table


def _paced(pace: StepRate, width: int) -> Any:
    from rich.text import Text

    highest = float(pace.steps_per_s.max())
    bars = "".join(BARS[min(7, int(8 * rate / highest))] if rate else " " for rate in pace.steps_per_s)
    sentence = f" {format_decimal(pace.now)} steps/s now, {format_decimal(pace.mean)} mean"
    took = format_duration(pace.end_unix_ns - pace.begin_unix_ns)
    return Text(f"{bars[-max(10, width - len(sentence) - len(took) - 9) :]}{sentence} of {took}")


def _event(event: Happened, ranks: int) -> Any:
    from rich.text import Text

    at = datetime.fromtimestamp(event.at_unix_ns / 1e9).strftime("%H:%M:%S")
    step = "" if event.step is None else f"  step {event.step:,}:"
    took = "" if event.ns is None else f", {format_duration(event.ns)}"
    where = "" if len(event.ranks) == ranks else f" on rank {ranges(event.ranks)}"
    return Text(f"{at}{step} {event.what}{took}{where}", overflow="ellipsis", no_wrap=True)
