"""What signs of a text mean, as tables: one renderer makes findings of them, so that a new message is one entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepscope.core.words import counted, in_words, listed, plural, ranges
from stepscope.diagnose.rule import Finding, finding, inspect
from stepscope.records.imported import Sign

NAMED = 8

LINES = 3
"""Different lines of the text that a finding repeats."""


class Explanation:
    """What signs of ``kinds`` mean. title, advice: templates; besides what signs say, as a list where they differ, they know
    ``on_hosts`` and ``ranks`` of all of them; ``here``: the hosts, else the ranks, else "a process"; ``ranks_or_here``; and
    ``NAME_after`` for ``(to) value`` where there is one.

    source: where the meaning is from, with a date. advice: a text, or (text, command). only: of signs with one of these
    values. fatal: the job ended of it. The first explanation of a sign counts.
    """

    def __init__(
        self,
        source: str,
        kinds: str,
        title: str,
        *advice: str | tuple[str, str],
        fatal: bool = True,
        **only: set[str],
    ) -> None:
        self.source, self.kinds, self.title = source, kinds.split(), title
        self.advice, self.fatal, self.only = advice, fatal, only

    def explains(self, sign: Sign) -> bool:
        return sign.kind in self.kinds and all(sign.values.get(name) in of for name, of in self.only.items())


def findings_of(signs: Sequence[Sign], explanations: Iterable[Explanation]) -> list[Finding]:
    """Return a finding for each explanation that signs have, in the order of the table."""
    findings, left = [], list(signs)
    for explanation in explanations:
        if of := [sign for sign in left if explanation.explains(sign)]:
            findings.append(_explained_finding(explanation, of))
            left = [sign for sign in left if not explanation.explains(sign)]
    return findings


def without_set(findings: Iterable[Finding], signs: Iterable[Sign]) -> list[Finding]:
    """Return findings without the advice to set what the text says is set so already."""
    present = {(s.values["name"], s.values["value"]) for s in signs if s.kind == "setting"}
    kept = []
    for one in findings:
        vain = [f"{n}={v}" for n, v in present if any(f"export {n}={v}" in (a.command or "") for a in one.advice)]
        already = f"set already: {', '.join(sorted(vain))}"
        advice = tuple(a for a in one.advice if not any(f"export {text}" in (a.command or "") for text in vain))
        kept.append(replace(one, advice=advice, evidence=(*one.evidence, already)) if vain else one)
    return kept


def _explained_finding(explanation: Explanation, signs: Sequence[Sign]) -> Finding:
    """Return the finding of one explanation, with the lines that it is of."""
    facts, ranks = _sign_facts(signs), _sign_ranks(signs)
    texts = list(dict.fromkeys(sign.text for sign in signs))
    more = len(texts) - LINES
    return finding(
        explanation.title.format_map(facts),
        [f"line {next(s.line for s in signs if s.text == text)}: {text}" for text in texts[:LINES]],
        more > 0 and f"and {counted(more, 'more line')} of this kind",
        severity="problem" if explanation.fatal else "warning",
        confidence=f"certain: the text says it ({explanation.source})",
        advice=[
            inspect(*(text.format_map(facts) for text in ([one] if isinstance(one, str) else one)))
            for one in explanation.advice
        ],
        priority="failure" if explanation.fatal else "performance",
        ranks=tuple(ranks),
    )


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``rank 3``, ``ranks 0 and 2``; of more than ``NAMED``, ranges."""
    numbers = sorted(set(ranks))
    return f"{plural(len(numbers), 'rank')} {in_words(numbers) if len(numbers) <= NAMED else ranges(numbers)}"


def _sign_ranks(signs: Sequence[Sign]) -> list[int]:
    """Return the ranks of signs, and those that they name beside."""
    beside = {int(sign.values["with_rank"]) for sign in signs if "with_rank" in sign.values}
    return sorted({sign.rank for sign in signs if sign.rank is not None} | beside)


_AFTER = {"peer": " to ", "call": " in ", "error": " (", "name": " ("}


class _Facts(dict[str, str]):
    """Facts of signs; what they do not say is unknown, and empty where it would stand behind."""

    def __missing__(self, name: str) -> str:
        if not name.endswith("_after"):
            return "another host" if name == "peer" else "unknown"
        of = name.removesuffix("_after")
        end = ")" if _AFTER[of].endswith("(") else ""
        return f"{_AFTER[of]}{self[of]}{end}" if of in self else ""


def _sign_facts(signs: Sequence[Sign]) -> _Facts:
    """Return what an explanation's texts may name: hosts, ranks, and the values of the signs."""
    hosts = list(dict.fromkeys(sign.host for sign in signs if sign.host))
    if hosts and hosts[0].replace("-", "").isalpha():
        hosts[0] = f"host {hosts[0]}"  # else a word like others, where a sentence begins with it
    ranks = _sign_ranks(signs)
    of_ranks = f"{plural(len(ranks), 'rank')} {in_words(ranks)}" if ranks else ""
    values: dict[str, dict[str, None]] = {}
    for sign in signs:
        for name, value in sign.values.items():
            values.setdefault(name, {})[value] = None
    facts = _Facts({name: listed(list(of), at_most=4) for name, of in values.items()})
    here = listed(hosts, at_most=4) or of_ranks or "a process"
    on = f"{of_ranks} ({listed(hosts, at_most=4)})" if hosts and of_ranks else here
    on_hosts = f" on {listed(hosts, at_most=4)}" if hosts else ""
    facts |= {"on_hosts": on_hosts, "ranks": of_ranks, "here": here, "ranks_or_here": on}
    return facts
