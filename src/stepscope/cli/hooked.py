"""A job under the hook, whatever command started it: its start, its end, what is told of it on the way."""

from __future__ import annotations

import math
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.console import ReaderGone, log, out, say, typed
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.words import ranges
from stepscope.launch import hooked_job
from stepscope.launch.ends.job import EndFacts, diary_facts, job_end, readable_records, without_end
from stepscope.launch.hang_watch import HangWatch, Stage
from stepscope.launch.rank_watch import RankWatch
from stepscope.matrix.run_folder import default_run_dir, name_of_command
from stepscope.records.profile import (
    FailedProcess,
    Hang,
    HookedProcess,
    JobEnd,
    ProfileRecord,
    RankEnd,
    WindowOfRank,
    WindowRequest,
)
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import make_dir, write_record, writing

if TYPE_CHECKING:
    from stepscope.cli.commands.profile import Profile
    from stepscope.cli.commands.run import Run


def job_folder(output: Path | None, kind: str, command: Sequence[str]) -> ProfileLayout:
    """Return the folder of -o, else a new one, made here: jobs that are started in one second have one each.

    Raises StepscopeError.
    """
    if output is not None:
        return ProfileLayout(output)
    hooked_job.check_program(command)  # a mistake makes no folder
    given = default_run_dir(f"{kind}-{name_of_command(command)}")
    make_dir(given.parent)
    for root in chain([given], (given.with_name(f"{given.name}-{number}") for number in count(2))):
        with writing(root):
            try:
                root.mkdir()
            except FileExistsError:
                continue
        break
    return ProfileLayout(root)


def start_job(
    layout: ProfileLayout, command: Sequence[str], first: WindowRequest | None, options: Profile | Run
) -> subprocess.Popen[bytes]:
    argv = typed()
    if recipients := getattr(options, "notify", ()):
        from stepscope.launch.notices import without_secrets

        argv = without_secrets(argv, recipients)
    record = ProfileRecord(
        command=tuple(command), folder=str(Path.cwd()), host=socket.gethostname(), first=first, argv=argv
    )
    environment = hooked_job.prepare(
        layout,
        record,
        nccl_debug=options.nccl_debug,
        step_optimizer=options.step_optimizer,
        memory=options.memory,
        diary=getattr(options, "monitor", True),
    )
    return hooked_job.start(command, environment)


def tell_hang(sighting: tuple[Stage, Hang] | None) -> None:
    """Say on stderr that the job stands still, and where; nothing for None."""
    if sighting is None:
        return
    from stepscope.results.profiled_job import hang_words, stall_words

    stage, hang = sighting
    place = None if hang.place is None else hang.place.removeprefix(f"{Path.cwd()}/")
    hang = replace(hang, place=place)
    if stage == "stall":
        log(f"! {stall_words(hang)}", "yellow")
    else:
        log(f"! the job hangs: {hang_words(hang, place)}; Ctrl-C ends it with this verdict", "yellow")


def ended(
    layout: ProfileLayout,
    code: int,
    child: subprocess.Popen[bytes],
    watch: RankWatch,
    signals: Sequence[tuple[int, int]],
    hang: HangWatch,
    *,
    timed: bool = True,
    asked: bool = True,
) -> JobEnd:
    """Judge the end, write the judgement into the folder and return it. timed, asked: as ``EndFacts``."""
    diaries = diary_facts(layout)
    end = job_end(
        EndFacts(
            code=code,
            ended_ns=time.time_ns(),
            host=socket.gethostname(),
            folder=str(Path.cwd()),
            child=child.pid,
            signals=signals,
            diaries=diaries,
            processes=readable_records(layout.processes(), HookedProcess),
            failures=readable_records(layout.failures(), FailedProcess),
            unrecorded=readable_records(layout.unrecorded(), RankEnd),
            windows=readable_records(layout.window_ranks(1), WindowOfRank),
            gone_ns=watch.gone_ns,
            oom_kills=watch.oom_kills,
            memory_low=watch.memory_low,
            hang=hang.hang,
            stall=hang.stall,
            signalled=(child.returncode or 0) < 0,
            left=watch.left,
            running=watch.running,
            timed=timed,
            asked=asked,
        )
    )
    with job_outlasts():
        if not layout.is_there:
            log(f"! {layout.root} was removed while the job ran, and what was recorded with it", "yellow")
            return end
        try:
            write_record(layout.end, end)
        except StepscopeError:
            if code == 0 and (silent := without_end(diaries)):
                log(f"! rank {ranges(silent)} left no word of its end: its last steps may be missing", "yellow")
            raise
    return end


def hang_seconds(given: str) -> float | None:
    """Read --hang-after; None: auto. Raises UsageError."""
    if given == "auto":
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"--hang-after {given!r}: expected auto or seconds above 0", fix="for example --hang-after 120"
        )
    return seconds


@contextmanager
def job_outlasts() -> Iterator[None]:
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


def show_out_of_memory(layout: ProfileLayout, options: Profile | Run) -> None:
    """Print what the snapshots of out-of-memory errors say; with --memory why no history was kept."""
    failed = tuple(sorted(layout.memory.glob("oom-rank-*.pickle")))
    if not failed:
        if options.memory and not layout.memory.exists():
            log("no history of GPU memory: no process of the job used CUDA")
        return
    from stepscope.cli.commands.report import Report
    from stepscope.cli.evidence import read_evidence
    from stepscope.cli.findings import print_findings
    from stepscope.diagnose.engine import diagnose
    from stepscope.report.render import terminal
    from stepscope.report.views import memory

    console = out()
    say()
    console.rule("stepscope: out of memory")
    try:
        evidence = read_evidence(Report(paths=failed))
        print_findings(diagnose(evidence).findings)
        say()
        table = memory.memory_kinds_table(evidence.memory[:1])
        say(terminal.render(table, width=console.width, footnotes=False))
    except ReaderGone:
        raise
    except StepscopeError as error:
        log(f"error: {error}", "red")
    named = shlex.quote(str(failed[0] if len(failed) == 1 else layout.memory))
    say(f"next: stepscope report {named}")
    console.rule()
    sys.stdout.flush()
