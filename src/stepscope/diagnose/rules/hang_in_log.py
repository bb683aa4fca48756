"""A log says that a collective did not end: which ranks waited in it, who never came, whose calls differ.

What
----
Lines of torch's NCCL watchdog (1.13 to 2.10), its reports on ranks out of step, its heartbeat monitor, gloo's monitored
barrier, mismatches of TORCH_DISTRIBUTED_DEBUG=DETAIL, the output of fr_trace, ncclras and py-spy. A rank is named
as the one that the others wait for where a line says so: a report, or that rank's own "last enqueued" below the call.

Why
---
The rank that reports the timeout is a victim; the cause is the rank that the others wait for.

Known problems
--------------
A rank whose lines are not in the text may have come, and its output be elsewhere: it is asked for, never accused. Numbers
of calls count in one process group; lines of old torch do not say which. Where a rank
ended by itself, waits that follow from it come after it.

References
----------
pytorch/pytorch, torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, TraceUtils.h, ProcessGroupWrapper.cpp) and
tools/flight_recorder;
NCCL user guide, RAS and Troubleshooting (read 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from stepscope.core.units import format_duration
from stepscope.core.words import counted, grouped, in_words, listed, plural
from stepscope.diagnose.explanations import ranks_text as _who
from stepscope.diagnose.explanations import without_set
from stepscope.diagnose.rule import Advices, Finding, Limit, Lines, Rule, Statement, finding
from stepscope.records.imported import Sign
from stepscope.results.ends.text import TextEnd, text_end
from stepscope.results.evidence import Evidence
from stepscope.results.text_hang import (
    APART,
    STOOD_STILL,
    Position,
    TextHang,
    WaitedCall,
    numbers_of,
    op_name,
    text_hang_of,
)

_MOST_CALLS = 5
"""Further calls with a timeout that a finding names."""

_SHOWN = 300
_FR_TRACE = ("not-joined", "fr-differs")
_DUMPS = ("dumping", "group-status")

_RECORD = (
    "record the calls of all ranks next time, and compare them",
    "export TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
)
_REASONS = (
    "usual reasons: a swallowed exception, a branch that depends on the rank, uneven data (one rank has an extra batch), "
    "checkpoint or evaluation on one rank only, a slow or full disk"
)
_SAME = (
    "make all ranks call the same: a part of the model that took no part in the loss on one rank (DDP: "
    "find_unused_parameters=True names it), a branch that depends on the rank, another order of calls"
)
_P2P = "NCCL itself does not move data between these GPUs: try without P2P (an IOMMU or PCIe ACS breaks it silently)"
_NCCL_LOG = ("read how NCCL connects the ranks, and measure it alone (nccl-tests)", "export NCCL_DEBUG=INFO")
_TRANSPORT = ((_P2P, "export NCCL_P2P_DISABLE=1"), _NCCL_LOG)
_IF_ALL = ((f"if these are all ranks of the job, {_P2P}", "export NCCL_P2P_DISABLE=1"), _NCCL_LOG)


def check(evidence: Evidence) -> Statement:
    """Look for: a log says that ranks waited in a collective that others never entered, or called differently."""
    signs = evidence.signs
    if evidence.flight:
        return "flight recorders hold more on the hang than its log"
    worlds = {run.world_size for run in evidence.runs}
    text = text_hang_of(signs, worlds.pop() if len(worlds) == 1 else None)
    kinds = grouped(signs, lambda sign: sign.kind)
    stated = [
        *_desync_findings(signs, kinds),
        *_mismatch_findings(kinds),
        *_not_joined(signs),
        *_barrier_findings(kinds),
    ]
    end = text_end(signs)
    if end is not None and end.by_itself and (text.calls or stated):
        return _follows_finding(text, stated, end)
    findings = stated or [
        *_call_findings(text),
        *_stuck_findings(kinds),
        *_ras_findings(signs),
        *_no_dumps(kinds),
        *_incomplete_findings(kinds, text),
        *_main_thread(signs),
    ]
    return (
        without_set(findings, signs) or f"{len(signs)} lines on the job's end: none is of a collective that did not end"
    )


def _follows_finding(text: TextHang, stated: Sequence[Finding], end: TextEnd) -> Finding:
    """Report waits behind the end of the rank that they follow from."""
    who = "another process" if end.first is None or end.first.fate.rank is None else f"rank {end.first.fate.rank}"
    lines = [f"{_who(call.inside)} timed out in {text.named(call)}" for call in text.calls[:_MOST_CALLS]]
    title, *others = [*lines, *(report.title for report in stated)]
    return finding(
        title,
        others,
        f"{who} had ended by itself, as another finding says: these waits follow from it",
        confidence=_WAITED,
        priority="failure",
        of=_who(text.calls[0].inside) if text.calls else stated[0].subject,
        ranks=text.calls[0].inside if text.calls else stated[0].ranks,
    )


def _problem_finding(
    title: str, *evidence: Lines, advice: Iterable[Advices], ranks: Iterable[int] = (), of: str | None = None, sure: str
) -> Finding:
    """of: what it is about, where that is not ``ranks`` as such."""
    ranks = tuple(ranks)
    return finding(
        title,
        *evidence,
        severity="problem",
        confidence=sure,
        advice=advice,
        priority="failure",
        of=of or (_who(ranks) if ranks else None),
        ranks=ranks,
    )


_BY_TEXT = "certain: the text says it"


def _look_at(who: str, one: bool) -> Advices:
    return (f"see what {who} {'does' if one else 'do'} instead", "py-spy dump --native --pid PID")


# What a report states


def _desync_findings(signs: Sequence[Sign], kinds: dict[str, list[Sign]]) -> Iterator[Finding]:
    """Yield what torch's own report of a desynchronisation says: who waits in which call."""
    state, waiting = "", []
    for sign in signs:
        if sign.kind == "snapshot":
            state = sign.values["sequence"]
        elif sign.kind == "snapshot-ranks":
            ranks, op = _who(numbers_of(sign.values["ranks"])), op_name(sign.values["op"])
            waiting.append(f"{ranks} {'wait' if ',' in sign.values['ranks'] else 'waits'} in {op} #{state}")
    for kind in ("desync-never", "desync", "desync-inside"):
        for values in {tuple(sign.values.items()): sign.values for sign in kinds.get(kind, ())}.values():
            numbers = numbers_of(values["ranks"])
            who, at = _who(numbers), values.get("sequence")
            title = {
                "desync": f"{who} never joined collective #{at}, after the end of #{values.get('finished')}",
                "desync-never": f"{who} never joined any collective",
                "desync-inside": f"{who} joined collective #{at} and did not finish it",
            }[kind]
            yield _problem_finding(
                title,
                *dict.fromkeys(waiting),
                "torch's report on ranks out of step says so",
                advice=[_look_at(who, len(numbers) == 1), _REASONS],
                ranks=numbers,
                sure=_BY_TEXT,
            )


def _mismatch_findings(kinds: dict[str, list[Sign]]) -> Iterator[Finding]:
    """Yield the calls that ranks made under one number and that do not match."""
    calls: dict[int, str] = {}
    sequences: dict[str, None] = {}
    for sign in kinds.get("mismatch", ()):
        for who, end in (("one", ""), ("other", "2")):
            if who in sign.values:
                number = sign.values.get(f"sequence{end}", "")
                numbered = sign.values.get("sequence", number) != sign.values.get("sequence2", number)
                call = _fingerprint_text(sign, end)
                calls.setdefault(int(sign.values[who]), f"{call} as number {number}" if numbered else call)
                sequences[number] = None
    if not calls:
        return
    numbers = [number for number in sequences if number]
    at = f" in {plural(len(numbers), 'collective')} {in_words(numbers)}" if numbers else ""
    called = [
        f"{call} on {_who(rank for rank, its in calls.items() if its == call)}"
        for call in dict.fromkeys(calls.values())
    ]
    yield _problem_finding(
        f"{_who(calls)} {'do not match' if len(calls) > 1 else 'does not match the other ranks'}{at}: {', '.join(called)}",
        "the check of TORCH_DISTRIBUTED_DEBUG=DETAIL compares these calls",
        advice=[_SAME, ("the ranks' stacks show where it is made", "export TORCH_SHOW_CPP_STACKTRACES=1")],
        ranks=calls,
        sure=_BY_TEXT,
    )


def _fingerprint_text(sign: Sign, end: str) -> str:
    """Write one side of a mismatch: its shape and type."""
    values = sign.values
    shape = values.get(f"shape{end}", "")
    dims = [f"{int(word):,}" for word in shape.replace(",", " ").split() if word.isdigit()]
    dtype = values.get(f"dtype{end}", "")
    elements = f"{dtype} {'element' if dims == ['1'] else 'elements'}".strip()
    size = f" of {dims[0]} {elements}" if len(dims) == 1 else f" of {' x '.join(dims)} {elements}" if dims else ""
    return f"{op_name(values[f'op{end}'])}{size}"


def _not_joined(signs: Sequence[Sign]) -> Iterator[Finding]:
    """What fr_trace prints, a block a call: facts follow the line that begins one."""
    for number, sign in enumerate(signs):
        if sign.kind not in _FR_TRACE:
            continue
        facts: dict[str, str] = dict(sign.values)
        for fact in signs[number + 1 :]:
            if fact.kind in _FR_TRACE:
                break
            if fact.kind == "fr-frame":
                if "torch/distributed/" not in fact.values["place"]:
                    facts.setdefault("place", f"{fact.values['function']}, {fact.values['place']}")
            elif fact.kind.startswith("fr-"):
                facts = {**fact.values, **facts}
        ranks = numbers_of(facts["ranks"]) if "ranks" in facts else ()
        who = _who(ranks) if ranks else "a rank"
        group = facts.get("group", "").rpartition(":")[2]
        call = f"{facts.get('op', 'collective')} {facts.get('sequence', '')}".strip() + (
            f" of {group}" if group else ""
        )
        if sign.kind == "fr-differs":
            yield _problem_finding(
                f"{call} is not the same on all ranks, as fr_trace says",
                facts.get("error", "")[:_SHOWN],
                advice=[_SAME],
                of=call,
                sure="certain that the calls differ; fr_trace compares with the first rank, which may be the wrong one",
            )
            continue
        yield _problem_finding(
            f"{who} never entered {call}",
            "place" in facts and f"the other ranks call it in {facts['place']}",
            "fr_trace compared the flight recorders",
            advice=[_look_at(who, len(ranks) == 1), _REASONS],
            ranks=ranks,
            of=who if ranks else call,
            sure=_BY_TEXT,
        )


def _no_dumps(kinds: dict[str, list[Sign]]) -> Iterator[Finding]:
    """What fr_trace could not compare: ranks whose dumps it had not are not accused."""
    ranks = {rank for sign in kinds.get("fr-dumps", ()) for rank in numbers_of(sign.values["ranks"])}
    if ranks:
        yield _problem_finding(
            f"fr_trace cannot say what is wrong: it has no dump of {_who(ranks)}",
            "a process that was killed, or whose watchdog did not run, writes none; these ranks may as well be elsewhere",
            advice=[
                (
                    "copy the dumps of these ranks from their hosts, and compare all of them",
                    "stepscope diagnose FOLDER",
                ),
                "and look how these processes ended, at their output",
            ],
            of="fr_trace",
            sure="certain that these dumps were not there",
        )


def _barrier_findings(kinds: dict[str, list[Sign]]) -> Iterator[Finding]:
    """Yield the ranks that never reached a monitored barrier."""
    reached = {sign.rank for sign in kinds.get("barrier-reached", ()) if sign.rank is not None}
    came = f"{_who(reached)} reached it" if reached else ""
    for text, signs in grouped(kinds.get("barrier", ()), lambda sign: sign.values["ranks"]).items():
        numbers = numbers_of(text)
        who = _who(numbers)
        reports = signs[0].rank is not None and signs[0].rank not in numbers
        yield _problem_finding(
            f"{who} did not reach gloo's monitored barrier within {int(signs[0].values['waited']) / 1000:g} s",
            came,
            reports and f"rank {signs[0].rank} only reports it",
            advice=[
                f"read the output of {who}: an exception, a slow start, a checkpoint that takes long",
                _look_at(who, len(numbers) == 1),
            ],
            ranks=numbers,
            sure=_BY_TEXT,
        )
    if reached and "barrier" not in kinds:
        yield _problem_finding(
            f"{_who(reached)} waited in gloo's monitored barrier for others",
            "rank 0 names those that did not come: its lines are not here",
            advice=["read the output of rank 0"],
            ranks=reached,
            sure="certain that these ranks waited",
        )


# What the watchdogs of ranks report


def _call_findings(text: TextHang) -> Iterator[Finding]:
    """Yield what timeouts say of the calls that ranks waited in: who never called, called another, or that all wait."""
    if not text.calls:
        return
    if text.still:
        yield _stood_still_finding(text)
        return
    first, *others = text.calls
    lines = [
        *_count_lines(first, text),
        *(f"{_who(call.ranks)} timed out in {text.named(call)}" for call in others[:_MOST_CALLS]),
        *_further_on(first, text),
    ]
    waited = f"{_who(first.ranks)} timed out in {text.named(first)}"
    if text.scattered:
        apart = "these numbers are of several process groups: they cannot be compared, and no rank can be named"
        yield _problem_finding(waited, *lines, apart, advice=_ask_advice(text), ranks=first.ranks, sure=_WAITED)
    elif first.never:
        yield _never_called_finding(first, waited, lines)
    elif (sides := _differing_finding(first, text)) is not None:
        yield sides
    elif text.world_size is not None and len(first.inside) >= text.world_size:
        yield _everybody_waits_finding(first, text, lines)
    else:
        nothing = all(p.completed <= 0 for p in _call_positions(first, text)) and first.sequence <= 1
        yield _problem_finding(
            waited,
            *lines,
            _lines_here(first, text),
            advice=[*_ask_advice(text), *(_IF_ALL if nothing else ())],
            ranks=first.ranks,
            sure=_WAITED,
        )


_WAITED = "certain that these ranks waited; these lines do not prove for whom"


def _call_positions(call: WaitedCall, text: TextHang) -> list[Position]:
    """Return how far the ranks of a call came in its group."""
    return [p for p in text.positions if p.group == call.group and p.rank in call.inside]


def _count_lines(call: WaitedCall, text: TextHang) -> list[str]:
    """Say what the ranks that waited had enqueued and completed: one line for ranks that agree."""
    alike = grouped(dict.fromkeys(_call_positions(call, text)), lambda p: (p.enqueued, p.completed))
    lines = []
    for (enqueued, completed), positions in alike.items():
        more = enqueued - call.sequence
        done = f"completed {completed}" if completed > 0 else "none was completed"
        lines.append(
            f"{_who(p.rank for p in positions)} had enqueued {enqueued}, {counted(more, 'call')} more, and {done}"
            if more > 0
            else f"{_who(p.rank for p in positions)} had enqueued {enqueued}, and {done}"
        )
    return lines


def _further_on(call: WaitedCall, text: TextHang) -> list[str]:
    """Say who had left the call: ranks apart by some calls of the same group."""
    left = [p for p in text.positions if p.group == call.group and p.completed >= call.sequence]
    return [
        f"rank {p.rank} had completed {p.completed} and enqueued {p.enqueued}: it had left collective {call.sequence}"
        for p in dict.fromkeys(left)
    ]


def _lines_here(call: WaitedCall, text: TextHang) -> str:
    here = sorted({*(rank for call in text.calls for rank in call.ranks), *(p.rank for p in text.positions)})
    world = "" if text.world_size is None else f", of {counted(text.world_size, 'rank')}"
    return f"only lines of {_who(here)} are here{world}: who did not come to collective {call.sequence} is not in them"


def _ask_advice(text: TextHang) -> list[Advices]:
    here = {rank for call in text.calls for rank in call.ranks} | {p.rank for p in text.positions}
    others = sorted(set(range(text.world_size or 0)) - here)
    which = f": {_who(others)}" if others else ""
    return [(f"add the logs of the other ranks{which}, and read them together", "stepscope diagnose FOLDER"), _RECORD]


def _stood_still_finding(text: TextHang) -> Finding:
    """Return the finding of ranks that waited until the job ended."""
    longest = max(text.still, key=lambda wait: wait.waited_s or 0.0)
    times = [format_duration((seconds or 0.0) * 1e9) for seconds in (longest.waited_s, longest.timeout_s)]
    by_rank = grouped(text.still, lambda wait: wait.rank)
    calls = [
        f"rank {rank}: {in_words(f'{op_name(w.op)} {w.sequence}' if w.op else w.sequence for w in waits)}"
        for rank, waits in sorted(by_rank.items())
    ]
    return _problem_finding(
        f"{_who(by_rank)} waited {times[0]} in collectives whose timeout is {times[1]}: their processes did not run",
        *calls[:_MOST_CALLS],
        text.scattered
        and "these numbers are of several process groups: they cannot be compared, and no rank can be named",
        advice=[
            (
                "look for a suspended node or container, a stopped clock, frozen storage, at that time",
                "journalctl --list-boots",
            ),
            _RECORD,
        ],
        ranks=by_rank,
        sure="certain that nothing ran for that long: the watchdog looks every second",
    )


def _never_called_finding(call: WaitedCall, waited: str, lines: Sequence[str]) -> Finding:
    """Return the finding of ranks that never called what others wait in."""
    numbers = sorted({p.rank for p in call.never})
    who = _who(numbers)
    what = f"collective {call.sequence}{f', {op_name(call.sides[-1][0][0])}' if call.sides else ''}"
    last = dict.fromkeys(
        f"the last call of rank {p.rank} is {p.enqueued}, completed is {p.completed}" for p in call.never
    )
    return _problem_finding(
        f"{who} never entered {what}, in which {_who(call.inside)} waited",
        waited,
        *last,
        *lines,
        advice=[_look_at(who, len(numbers) == 1), _REASONS],
        ranks=numbers,
        sure="certain: it is in that rank's own line",
    )


def _differing_finding(call: WaitedCall, text: TextHang) -> Finding | None:
    """Report ranks whose call with one number is another one; None where these may be calls of two groups."""
    sides = call.sides
    if len(sides) < 2 or not call.sure:
        return None
    odd, most = sides[0][1], sides[-1][1]
    everybody = text.world_size is not None and len(call.ranks) >= text.world_size
    if call.group is None and not everybody and (len(odd) > 1 or len(sides) > 2):
        return None
    called = [
        f"{op_name(op)}{'' if size is None else f' of {size:,} elements'} on {_who(ranks)}"
        for (op, size), ranks in sides
    ]
    return _problem_finding(
        f"collective {call.sequence} is not the same on all ranks: {', '.join(called)}",
        f"all of these ranks are in the call{call.after.replace(', after', ' for')}: they wait for each other",
        advice=[_SAME, ("name the calls that differ", "export TORCH_DISTRIBUTED_DEBUG=DETAIL")],
        ranks=odd if len(odd) < len(most) else (),
        of=f"collective {call.sequence}",
        sure="certain" if call.group is not None else "likely: the lines do not name the process group",
    )


def _everybody_waits_finding(call: WaitedCall, text: TextHang, lines: Sequence[str]) -> Finding:
    """Return the finding of a call in which all ranks wait: their first one, or one that does not end."""
    first = call.sequence <= 1 or (bool(at := _call_positions(call, text)) and all(p.completed <= 0 for p in at))
    size = text.named(call, after=False)
    title = f"all {text.world_size} ranks ({in_words(call.inside)}) wait in " + (
        f"their first call, {size}" if first else size
    )
    return _problem_finding(
        f"{title}: no rank is missing",
        f"it timed out{call.after.removeprefix(',')}",
        *lines,
        advice=_TRANSPORT
        if first
        else [
            ("look for network and device errors on all hosts", "dmesg | grep -i -E 'xid|nvrm|mlx5|amdgpu'"),
            _RECORD,
        ],
        ranks=call.ranks,
        of=f"all {text.world_size} ranks",
        sure="certain that all ranks are in the call",
    )


def _stuck_findings(kinds: dict[str, list[Sign]]) -> Iterator[Finding]:
    """Yield the ranks whose watchdog itself hangs."""
    signs = kinds.get("stuck-watchdog", [])
    ranks = {sign.rank for sign in signs if sign.rank is not None}
    if not signs:
        return
    seconds = {sign.values["stuck"] for sign in signs if "stuck" in sign.values}
    open_calls = {
        sign.rank: int(sign.values["open"]) for sign in signs if sign.rank is not None and "open" in sign.values
    }
    groups = {sign.values.get("group", sign.values.get("number")) for sign in signs}
    counts = grouped(sorted(open_calls), lambda rank: open_calls[rank])
    lines = [
        f"{_who(of)} {'has' if len(of) == 1 else 'have'} {counted(count, 'open call')}"
        for count, of in sorted(counts.items())
    ]
    behind = min(counts, default=0)
    if len(counts) > 1 and len(groups) == 1:
        others = sorted(set(counts) - {behind})
        who, of = _who(counts[behind]), counts[behind]
        apart = counted(others[0] - behind, "call")
        lines.insert(0, f"{who} {'is' if len(of) == 1 else 'are'} {apart} behind the other ranks")
    yield _problem_finding(
        f"the NCCL watchdog{'' if len(ranks) == 1 else 's'} of {_who(ranks) if ranks else 'a rank'} got stuck"
        + (f" for {next(iter(seconds))} s" if len(seconds) == 1 else "")
        + ": the heartbeat monitor ended the process",
        *lines,
        "gil" in kinds and "the interpreter lock could not be taken: a thread holds it",
        advice=[
            (
                "a call of CUDA or NCCL hangs, or a thread holds the GIL: read the stacks",
                "py-spy dump --native --pid PID",
            ),
            (
                "if it is only slow, give it more time",
                f"export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC={3 * max(map(int, seconds), default=600)}",
            ),
        ],
        ranks=ranks,
        sure="certain that these watchdogs did not move; the lines do not say which call holds them",
    )


# NCCL's RAS, and what is cut off or alone


def _ras_findings(signs: Sequence[Sign]) -> Iterator[Finding]:
    """Yield what NCCL's RAS says: who does not answer, who is behind, who is in error."""
    gone = [sign for sign in signs if sign.kind == "ras-gone"]
    if gone:
        who = listed(dict.fromkeys(map(_process_text, gone)), between=" and ")
        yield _problem_finding(
            f"NCCL's RAS has no answer of {who}",
            "a process that crashed or is frozen does not answer",
            any("considered_dead" in sign.values for sign in gone)
            and "RAS did not reach it for 60 s: it considers it dead",
            advice=[("look for that process on its host, and at its output", "dmesg -T | tail"), _RECORD],
            ranks=[sign.rank for sign in gone if sign.rank is not None],
            of=who,
            sure="certain that it did not answer when RAS asked",
        )
    errors = [sign for sign in signs if sign.kind == "ras-error"]
    if errors:
        codes = dict.fromkeys(_RESULTS.get(sign.values["code"], f"error {sign.values['code']}") for sign in errors)
        yield _problem_finding(
            f"NCCL's RAS: {listed(map(_process_text, errors), between='; ', at_most=3)} "
            f"{'has' if len(errors) == 1 else 'have'} an asynchronous error: {listed(codes)}",
            "a remote error is of another rank, which failed first" if "remote process error" in codes else False,
            advice=["read the output of these processes: NCCL's warnings say more", _NCCL_LOG],
            ranks=[sign.rank for sign in errors if sign.rank is not None],
            of=listed(map(_process_text, errors)),
            sure=_BY_TEXT,
        )
    yield from _ras_counts(signs)
    left = grouped((s for s in signs if s.kind == "ras-left"), lambda sign: sign.values["communicator"])
    for communicator, ranks_left in left.items():
        yield finding(
            f"{_who(s.rank or 0 for s in ranks_left)} answered NCCL's RAS, and {'is' if len(ranks_left) == 1 else 'are'} no "
            f"member of communicator {communicator}, in which the others still are",
            "while a job ends this is normal: a rank that has finished leaves first",
            confidence="certain at the time of the question",
            advice=[("ask again after 10 s", "ncclras -f json")],
            priority="failure",
            of=f"communicator {communicator}",
        )


_RESULTS = {
    "1": "unhandled CUDA error", "2": "system error", "3": "internal error", "4": "invalid argument", "5": "invalid usage",
    "6": "remote process error",
}  # fmt: skip
"""``ncclResult_t``."""


def _process_text(sign: Sign) -> str:
    process = f"process {sign.values['process']} on {sign.host} (GPU {sign.values['gpu']})"
    return process if sign.rank is None else f"rank {sign.rank}, {process}"


def _ras_counts(signs: Sequence[Sign]) -> Iterator[Finding]:
    """Report operations of which ranks of a communicator have launched different numbers, the widest apart."""
    tables: list[tuple[str, list[tuple[int, str, list[Sign]]]]] = []
    for sign in signs:
        if sign.kind == "ras-counts" or (sign.kind == "ras-count" and not tables):
            named = (sign.values.get("of"), sign.values.get("communicator"))
            tables.append((" in communicator ".join(filter(None, named)), []))
        if sign.kind == "ras-count":
            who = (
                f"rank {sign.rank} ({sign.host})"
                if sign.rank is not None
                else counted(int(sign.values["ranks"]), "rank")
            )
            tables[-1][1].append((int(sign.values["count"]), who, []))
        elif sign.kind == "ras-rank" and tables and tables[-1][1]:
            tables[-1][1][-1][2].append(sign)
    apart = [(of, sorted(counts, key=lambda entry: entry[0])) for of, counts in tables if len(counts) > 1]
    apart.sort(key=lambda table: table[1][0][0] - table[1][-1][0])
    for of, (last, *_, most) in apart[:1]:
        hosts = grouped(last[2], lambda sign: sign.host)
        places = [f"{_who(s.rank for s in on if s.rank is not None)} on {host}" for host, on in hosts.items()]
        ranks = f" ({listed(places)})" if places else ""
        yield finding(
            f"{last[1]} had launched {last[0]} operations{ranks}, {most[1]} {most[0]}, as NCCL's RAS says",
            f"these are calls of {of}" if of else [],
            [f"also {other}: {low[1]} {low[0]}, {high[1]} {high[0]}" for other, (low, *_, high) in apart[1:4]],
            "one answer of a job at work shows such differences, too: ranks are asked one after the other",
            severity="problem" if most[0] - last[0] > 1 else "warning",
            confidence="certain at the time of the question",
            advice=[
                ("ask again after 10 s: who stays behind at the same number holds the others up", "ncclras"),
                ("then read the stack of that process", "py-spy dump --native --pid PID"),
            ],
            priority="failure",
            of=last[1],
        )


def _incomplete_findings(kinds: dict[str, list[Sign]], text: TextHang) -> Iterator[Finding]:
    """Yield hangs of which the log holds too little to name a cause."""
    if "timeout-cut" in kinds and not text.calls:
        cut = kinds["timeout-cut"]
        ranks = {rank for sign in cut if (rank := _member_rank(sign)) is not None}
        yield _problem_finding(
            f"the NCCL watchdog{f' of {_who(ranks)}' if ranks else ''} reports a timeout, and its line is cut off",
            "which collective it is, and how long it waited, is not in the text",
            advice=["add the rest of the line, and the logs of the other ranks", _RECORD],
            ranks=ranks,
            sure="certain that a collective timed out",
        )
    if not text.calls and (unnumbered := kinds.get("timeout", [])):
        ranks = {rank for sign in unnumbered if (rank := _member_rank(sign)) is not None}
        ops = {op_name(sign.values["op"]) for sign in unnumbered}
        waited = format_duration(max(int(sign.values["ran"]) for sign in unnumbered) * 1e6)
        yield _problem_finding(
            f"{_who(ranks) if ranks else 'a rank'} timed out in {listed(sorted(ops))}, after {waited}",
            "these lines do not number the calls, so that those of several ranks cannot be compared",
            bool(ranks) and f"only lines of {_who(ranks)} are here: who did not come is not in them",
            advice=_ask_advice(text),
            ranks=ranks,
            sure=_WAITED,
        )
    if not text.calls and (
        alive := {sign.rank for kind in _DUMPS for sign in kinds.get(kind, ()) if sign.rank is not None}
    ):
        yield _problem_finding(
            f"{_who(alive)} {'was' if len(alive) == 1 else 'were'} asked for a dump: a collective of another rank timed out",
            [
                f"rank {p.rank} had enqueued {p.enqueued} and completed {p.completed}"
                for p in dict.fromkeys(text.positions)
            ],
            "in which call that one waited, these lines do not say",
            advice=_ask_advice(text),
            ranks=alive,
            sure="certain that these ranks still ran",
        )
    if "gil" in kinds and "stuck-watchdog" not in kinds:
        holders = {sign.rank for sign in kinds["gil"] if sign.rank is not None}
        yield _problem_finding(
            f"a thread{f' of {_who(holders)}' if holders else ''} holds the interpreter lock (GIL), and may hang",
            advice=[("read which thread holds it, and in which call", "py-spy dump --native --pid PID")],
            ranks=holders,
            sure="likely: the watchdog could not take the lock",
        )
    gloo = kinds.get("gloo-timeout", [])
    if gloo and not text.calls:
        ranks = {sign.rank for sign in gloo if sign.rank is not None}
        yield _problem_finding(
            f"{_who(ranks) if ranks else 'a rank'} gave up after {int(gloo[0].values['waited']) / 1000:g} s in a gloo "
            f"operation: its peer did not {'send' if gloo[0].values['way'] == 'recv' else 'receive'}",
            "which rank that is, the line does not say",
            advice=["add the logs of the other ranks", _REASONS],
            ranks=ranks,
            sure=_WAITED,
        )


def _member_rank(sign: Sign) -> int | None:
    return int(sign.values["member"]) if sign.rank is None and "member" in sign.values else sign.rank


_AT_WORK = (
    (r"__next__|_next_data|_try_get_data|queue\.py|prefetch|dataloader", "it waits for its data"),
    (r"distributed_c10d|all_reduce|all_gather|reduce_scatter|barrier|broadcast", "it waits in a collective"),
    (r"synchronize|\bitem\b|\bcpu\b|_engine_run_backward", "it waits for its device"),
    (r"\bsave\b|serialization\.py|checkpoint", "it writes a checkpoint"),
)
"""What frames of a main thread say of it, the first that fits."""
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|torch)/")


def _main_thread(signs: Sequence[Sign]) -> Iterator[Finding]:
    """Report where py-spy saw main threads: the innermost frame, and the first of them outside of libraries."""
    stacks: dict[str, list[Sign]] = {}
    process, dump = "", None
    for sign in signs:
        if sign.kind == "process":
            process, dump = sign.values["process"], None
        elif sign.kind in ("main-thread", "thread"):
            dump = stacks.setdefault(process, []) if sign.kind == "main-thread" else None
        elif sign.kind == "frame" and dump is not None:
            dump.append(sign)
    if not stacks:
        return
    places = {process: _frames_text(frames) for process, frames in stacks.items()}
    alike = sorted(grouped(places, lambda process: places[process]).items(), key=lambda item: len(item[1]))
    where, processes = alike[0]
    who = f"the main thread{f' of process {listed(processes)}' if processes[0] else ''}"
    frames = [f"{sign.values['function']} ({sign.values['place']})" for sign in stacks[processes[0]][:6]]
    does = next((text for pattern, text in _AT_WORK if re.search(pattern, " ".join(frames))), "")
    others = [f"process {listed(of)} {place}" for place, of in alike[1:]]
    yield _problem_finding(
        f"py-spy: {who} {where}",
        f"stack, innermost first: {' < '.join(frames)}" if frames else "",
        does,
        others or "one rank's stack does not show whether it holds the others up",
        advice=[
            (
                "dump the stack of every rank, twice, and compare: who is elsewhere than the others?",
                "py-spy dump --pid PID",
            ),
            _RECORD,
        ],
        of=who,
        sure="certain at the time of the dump",
    )


def _frames_text(frames: Sequence[Sign]) -> str:
    places = [frame.values["place"] for frame in frames]
    own = next((place for place in places if "/" in place and not _LIBRARY.search(place)), None)
    called = f", called at {own}" if own else ""
    return f"is in {frames[0].values['function']}{called}" if frames else "has no Python frame"


RULE = Rule(
    symptom="a log says that ranks waited in a collective that others never entered, or called differently",
    needs=("signs",),
    look=check,
    looks_at="lines of watchdogs in logs",
    protocol=3,
    thresholds={
        "apart": Limit(
            value=APART, unit="calls of one process group", source="CUDA queues about as many launches of a process"
        ),
        "still": Limit(
            value=STOOD_STILL,
            unit="times the timeout",
            source="the watchdog looks every second, of old torch every ten",
        ),
    },
)
