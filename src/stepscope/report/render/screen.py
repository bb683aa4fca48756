"""The first screen as lines, for a terminal and for a notebook: each with the tone or the style that it is printed in."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose import narrator
from stepscope.diagnose.screen import Screen
from stepscope.records.finding import Advice

Line = tuple[str, str]
"""A text and its tone or style."""

LABEL = " " * 9
"""Blanks as wide as the labels of the first screen."""

WIDEST = 100
MOST_RANKS = 3
"""So many ranks are named one by one beside a part: there is room for no more."""


SCREEN_LINES = 40
"""Lines of the first screen; what has no room is counted, and the last line says where it is."""


def screen_lines(screen: Screen, *, width: int = WIDEST, everything: bool = False) -> list[Line]:
    """Return the lines, none longer than ``width`` but commands. everything: all notes, however many."""
    return _Layout(width).lines(screen, everything=everything)


@dataclass(frozen=True, slots=True)
class _Layout:
    width: int

    def lines(self, screen: Screen, *, everything: bool) -> list[Line]:
        """Return the lines of a screen. everything: not only what fits above tables."""
        lines = self._wrapped(f"{screen.headline}.", screen.tone)
        if screen.running:
            lines += [("  so far: the job still runs", "")]
        if screen.stake:
            lines += self._labelled("stake", [screen.stake])
        lines += self._labelled("also", screen.also)
        lines += [("", ""), *self._tree(screen), ("", "")] if screen.tree else []
        lines += self._labelled("why", screen.reasons)
        lines += self._next(screen.advice)
        if screen.memory:
            lines += self._labelled("memory", [screen.memory], "yellow" if screen.memory_grows else "")
        last = self._labelled("from", screen.rests_on)
        last += [
            line for warning in screen.warnings for line in self._wrapped(warning, "yellow", first="  ! ", then="    ")
        ]
        last += self._labelled("more", [screen.more]) if screen.more else []
        lines += self._notes(screen.notes, SCREEN_LINES - len(lines) - len(last) if not everything else None)
        return [*lines, *last]

    def _next(self, advice: Sequence[Advice]) -> list[Line]:
        """Return what to do, each with its command in one piece: it is there to be pasted."""
        lines: list[Line] = []
        several = len(advice) > 1
        for number, action in enumerate(advice):
            label = f"  {'next' if not number else '':<7}" + ("→ " if several else "")
            lines += self._wrapped(action.text, "", first=label, then=" " * len(label))
            lines += [(" " * len(label) + f"$ {action.command}", "cyan")] if action.command else []
        return lines

    def _notes(self, notes: Sequence[str], room: int | None) -> list[Line]:
        """Return the notes that have room, in so many lines, and how many more there are."""
        lines: list[Line] = []
        for number, note in enumerate(notes):
            wrapped = self._labelled("note" if not number else "", [note], "dim")
            if room is not None and len(lines) + len(wrapped) > room - (number < len(notes) - 1):
                return [*lines, (f"{LABEL}{counted(len(notes) - number, 'more note')}: --all", "dim")]
            lines += wrapped
        return lines

    def _tree(self, screen: Screen) -> list[Line]:
        """Return the parts of the time, each under the one it is a part of."""
        rows = [
            ("  " * (depth + 1) + narrator.part_name(part), part) for depth, part in narrator.tree_rows(screen.tree)
        ]
        whole = sum(part.ns for part in screen.tree)
        width = max(len(name) for name, _ in rows) + 2
        head = f"  {screen.whole:<{width}}{format_duration(whole):>9}  100%"
        over = f"{head}   {screen.over}" if screen.over else head
        fitting = (text for text in (over, over.rpartition(", ")[0]) if head < text and len(text) <= self.width)
        lines: list[Line] = [(next(fitting, head), "")]
        for name, part in rows:
            mark = f"   <- {screen.mark}" if part.cause else ""
            line = f"  {name:<{width}}{format_duration(part.ns):>9} {format_percent(part.share):>5}{mark}"
            ranks = (
                narrator.by_rank(part, most=MOST_RANKS),
                narrator.by_rank(part, most=1),
                narrator.most_of_ranks(part),
            )
            full = (f"{line}   {text}" for text in ranks if text)
            lines.append((next((text for text in full if len(text) <= self.width), line), "bold" if part.cause else ""))
        return lines

    def _labelled(self, label: str, texts: Iterable[str], style: str = "") -> list[Line]:
        """Return each text with further lines under its beginning; the first one behind the label."""
        return [
            line
            for number, text in enumerate(texts)
            for line in self._wrapped(text, style, first=f"  {label if not number else '':<7}", then=LABEL)
        ]

    def _wrapped(self, text: str, style: str, *, first: str = "", then: str = "") -> list[Line]:
        """Return the lines of a text in one style. first, then: what they begin with."""
        wrapped = textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=then,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [(line, style) for line in wrapped]
