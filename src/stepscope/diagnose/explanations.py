"""What signs of a text mean, as tables: one renderer makes findings of them, so that a new message is one entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.words import counted, in_words, listed, plural
from stepscope.diagnose.rule import Finding, finding, inspect
from stepscope.records.imported import Sign

LINES = 3
"""Different lines of the text that a finding repeats."""


@record
class Explanation:
    """What signs of ``kinds`` mean. title, advice: templates; besides what signs say (of the first one), they know ``hosts``
    and ``ranks`` of all of them, and ``here``: the hosts, else the ranks, else "a process".

    advice: (text, command or None). source: where the meaning is from, with a date. fatal: the job ended of it.
    """

    kinds: tuple[str, ...]
    title: str
    advice: tuple[tuple[str, str | None], ...]
    source: str
    fatal: bool = True


def findings_of(signs: Sequence[Sign], explanations: Iterable[Explanation]) -> list[Finding]:
    """Return a finding for each meaning that signs have, in the order of the table."""
    return [
        _explained(meaning, of)
        for meaning in explanations
        if (of := [sign for sign in signs if sign.kind in meaning.kinds])
    ]


def _explained(meaning: Explanation, signs: Sequence[Sign]) -> Finding:
    facts = _facts(signs)
    texts = list(dict.fromkeys(sign.text for sign in signs))
    more = len(texts) - LINES
    return finding(
        meaning.title.format_map(facts),
        [f"line {next(s.line for s in signs if s.text == text)}: {text}" for text in texts[:LINES]],
        more > 0 and f"and {counted(more, 'more line')} of this kind",
        severity="problem" if meaning.fatal else "warning",
        confidence=f"certain: the text says it ({meaning.source})",
        advice=[
            inspect(text.format_map(facts), command.format_map(facts) if command else None)
            for text, command in meaning.advice
        ],
        priority="failure",
        ranks=tuple(sorted({sign.rank for sign in signs if sign.rank is not None})),
    )


def _facts(signs: Sequence[Sign]) -> dict[str, Any]:
    hosts = list(dict.fromkeys(sign.host for sign in signs if sign.host))
    ranks = sorted({sign.rank for sign in signs if sign.rank is not None})
    of_ranks = f"{plural(len(ranks), 'rank')} {in_words(ranks)}" if ranks else ""
    values: dict[str, Any] = {}
    for sign in signs:
        values = {**sign.values, **values}
    here = listed(hosts, at_most=4) or of_ranks or "a process"
    return {**values, "hosts": listed(hosts, at_most=4), "ranks": of_ranks, "here": here}
