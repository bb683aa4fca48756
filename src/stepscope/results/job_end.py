"""How a profiled job ended: read back from its folder, and said in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten

from stepscope.core.words import counted
from stepscope.records.profile import JobEnd
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_if_there
from stepscope.traces.flight_calls import ranks_text

MESSAGE_CHARS = 160
_STOPPING = ("SIGTERM", "SIGINT", "SIGHUP")


def read_job_end(layout: ProfileLayout) -> JobEnd | None:
    """None while the job runs, and for a folder of an older stepscope. Raises DataError for a damaged record."""
    return read_if_there(layout.end, JobEnd)


def end_sentence(end: JobEnd) -> str:
    """``Crash: rank 1 raised KeyError in step 4 (...); rank 0 was stopped by it; exit code 1. 3 steps recorded ...``"""
    parts = [_what(end)]
    if end.victims and end.hang is None:
        was = "was" if len(end.victims) == 1 else "were"
        parts.append(f"{ranks_text(end.victims)} {was} stopped by it")
    if end.restarts:
        parts.append(f"after {counted(end.restarts, 'restart')}")
    if end.code is not None and (end.kind != "exit-code" or end.ranks):
        parts.append(f"exit code {end.code}")
    if end.independent:
        parts.append(
            f"{end.independent} processes train as rank 0 of 1 each: no process group joins them, each has its own diary"
        )
    text = "; ".join(parts)
    if end.steps_timed is None and not end.steps_profiled:
        return text
    recorded = "" if end.steps_timed is None else f"{counted(end.steps_timed + end.steps_profiled, 'step')} recorded, "
    return f"{text}. {recorded}{end.steps_profiled} profiled"


def _what(end: JobEnd) -> str:
    match end.kind:
        case "ok":
            return "Ended well" if end.no_window is None else f"Ended well, without a window: {end.no_window}"
        case "short":
            return "The job ended before the window"
        case "no-steps":
            return "No optimizer step was recorded"
        case "interrupted":
            return f"Interrupted by {end.signal or 'a signal'}"
        case "hang":
            return f"Hang: {_hang(end)}"
        case "exit-code":
            code = end.code if end.rank_code is None else end.rank_code
            return f"Failed: {_who(end)} exited with code {code}{_where(end)}"
        case "killed" if end.signal is None:
            return f"Killed: {_who(end)} ended without an error message{_where(end)}: by a signal, or by os._exit"
        case "killed" if not end.ranks and end.signal in _STOPPING:
            by = f"{end.signal} from outside (scheduler, user or launcher)"
            return f"Killed: {by} ended the job{_where(end)}; no rank failed"
        case "killed":
            were = "were" if len(end.ranks) > 1 else "was"
            return f"Killed: {_who(end)} {were} ended by {end.signal}{_where(end)}"
        case "out-of-memory" if end.exception is None:
            sure = "likely the kernel, for" if end.likely else "the kernel, for"
            return f"Out of memory: {_who(end)} was killed by {sure} want of memory{_where(end)}"
        case "out-of-memory":
            return f"Out of memory: {_raised(end)}"
        case "crash":
            return f"Crash: {_raised(end)}"


def _raised(end: JobEnd) -> str:
    said = (end.message or "").strip().splitlines()
    first = f": {shorten(said[0], MESSAGE_CHARS, placeholder=' ...')}" if said else ""
    return f"{_who(end)} raised {end.exception or 'an exception'}{first}{_where(end)}"


def _where(end: JobEnd) -> str:
    if end.step is None:
        when = " before the first step" if end.steps_timed == 0 else ""
    else:
        when = f" after step {end.step - 1}" if end.kind == "exit-code" else f" in step {end.step}"
    return when + (f" ({end.place})" if end.place else "")


def _hang(end: JobEnd) -> str:
    hang = end.hang
    assert hang is not None
    return hang_words(hang.said, hang.ranks, hang.step, hang.silent_s, end.place)


def hang_words(said: str | None, ranks: Sequence[int], step: int, silent_s: float, place: str | None) -> str:
    """What is known of ranks that stand still."""
    at = f" (at {place})" if place else ""
    if said is not None:
        return f"{said}{at}; no rank has ended step {step} for {silent_s:.0f} s"
    who = f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} behind{at}; " if ranks else ""
    return f"{who}no rank has ended step {step} for {silent_s:.0f} s{'' if ranks else at}"


def _who(end: JobEnd) -> str:
    return ranks_text(end.ranks) if end.ranks else "the command"
