"""What ``stepscope diagnose`` does: read, apply the rules, print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import given, listed, require_only
from stepscope.cli.console import log, print_document, say
from stepscope.cli.evidence import job_of
from stepscope.cli.fail_if import check_evidence, read_conditions
from stepscope.cli.findings import (
    limited,
    print_findings,
    print_read,
    show_screen,
    show_table,
)
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import counted, unknown
from stepscope.diagnose.narrator import all_clear, counts, looked_at
from stepscope.diagnose.screen import further, of_evidence, of_job

if TYPE_CHECKING:
    from stepscope.api.job import Job
    from stepscope.cli.commands.diagnose import Diagnose
    from stepscope.diagnose.rule import Rule
    from stepscope.records.finding import Diagnosis, JobVerdict
    from stepscope.report.conditions import Condition
    from stepscope.results.evidence import Evidence

NOTES = 12
"""Notes on what was left out or assumed that are shown without --all."""


_PASTED = Path("-")

ROWS = 12
"""Rows of each table of NCCL's that are shown without --all."""


def run(options: Diagnose) -> int:
    """Diagnose and show; the exit code. Raises StepscopeError."""
    from stepscope.diagnose.engine import all_rules
    from stepscope.report.documents import rules_document

    asked: Sequence[Rule] | None = None
    if options.rules == "list":
        require_only(options, "--rules list", ("rules", "json"))
        asked = all_rules()
    if options.explain is not None:
        asked = _chosen(options.explain, option="--explain")
    if asked is not None:
        if options.json:
            print_document(rules_document(asked))
        elif options.explain is None:
            _list(asked)
        else:
            _explain(asked)
        return 0
    if not options.paths:
        raise UsageError(
            "diagnose needs a path", fix="stepscope diagnose RUN, a folder of traces, or results of another tool"
        )
    chosen = None if options.rules is None else _chosen(options.rules)
    conditions = read_conditions(options.fail_if)
    if chosen is not None:
        _require_asked(conditions, chosen)
    job = _read(options, chosen)
    evidence, diagnosis = job.evidence, job.diagnosis
    if options.json:
        print_document(job.to_json())
    elif options.protocol:
        _show_protocol(evidence, diagnosis)
    else:
        everything = options.everything or options.rules is not None
        left = diagnosis
        if job.timed is not None:
            left = _show_first_screen(job, job.timed, everything=everything)
        if job.timed is None or everything or left.findings or len(evidence.sources) > 1:
            if job.timed is not None:
                say()
            _show(evidence, left, everything=everything, beside_verdict=job.timed is not None)
    check_evidence(conditions, evidence, diagnosis)
    return 0


def _read(options: Diagnose, rules: Sequence[Rule] | None) -> Job:
    """Return the job at the paths, of which ``-`` is what standard input holds."""
    if _PASTED not in options.paths:
        return job_of(options, rules=rules)
    import sys
    from tempfile import TemporaryDirectory

    if sys.stdin.isatty():
        log("paste the text, then press Ctrl-D")
    with TemporaryDirectory(prefix="stepscope-") as folder:
        path = Path(folder) / "pasted.log"
        path.write_bytes(sys.stdin.buffer.read())
        paths = tuple(path if named == _PASTED else named for named in options.paths)
        stated = {name: getattr(options, name) for name in given(options)}
        try:
            return job_of(type(options)(**{**stated, "paths": paths}), rules=rules)
        except DataError as error:
            raise DataError(error.what.replace(str(path), "standard input"), why=error.why, fix=error.fix) from error


def _show_first_screen(job: Job, verdict: JobVerdict, *, everything: bool) -> Diagnosis:
    """Print the verdict and where the rest is. Returns the findings that are left to show: with everything all, else those
    of no window of the job, for which the verdict speaks."""
    from stepscope.cli.profile_words import rest_of
    from stepscope.diagnose.verdict import windows_of

    profiled, diagnosis = job.evidence.profiled[0], job.diagnosis
    windows = {trace.name for trace in windows_of(job.evidence, profiled)}
    left = tuple(finding for finding in diagnosis.findings if everything or finding.job not in windows)
    hidden = len(diagnosis.findings) - len(left)
    more = f"; {counted(hidden, 'finding')} of the window" if hidden else ""
    rest = rest_of(profiled.folder, window=bool(windows)) + more
    show_screen(of_job(verdict, more=rest), everything=everything)
    return replace(diagnosis, findings=left)


def _require_asked(conditions: Iterable[Condition], chosen: Sequence[Rule]) -> None:
    names = {rule.name for rule in chosen}
    for condition in conditions:
        if condition.op is None and condition.key not in names:
            raise UsageError(
                f"--fail-if {condition.key}: --rules leaves this rule out",
                fix=f"name it in --rules, too: --rules {','.join([*sorted(names), condition.key])}",
            )


def _chosen(asked: str, *, option: str = "--rules") -> Sequence[Rule]:
    from stepscope.diagnose.engine import rule_names
    from stepscope.diagnose.rules import REGISTRY

    keys = rule_names()
    wanted = listed(asked)
    for name in wanted:
        if name not in keys:
            raise UsageError(unknown("rule", name, sorted(keys)), fix="`--rules list` names all of them")
    if not wanted:
        raise UsageError(f"{option} is empty", fix="`--rules list` names all of them")
    return [REGISTRY.load(keys[name]) for name in wanted]


def _list(rules: Sequence[Rule]) -> None:
    width = max(len(rule.name) for rule in rules)
    for rule in rules:
        say(f"{rule.name:<{width}}  {rule.symptom}")


def _explain(rules: Sequence[Rule]) -> None:
    """Print the pages of rules: their files' docstrings, and the numbers that decide."""
    from stepscope.diagnose.engine import page_of

    for number, rule in enumerate(rules):
        between = "\n" if number else ""
        say(f"{between}{rule.name}: {rule.symptom}\n", "bold")
        say(page_of(rule))
        if rule.thresholds:
            say("\nThresholds\n----------")
        for name, threshold in rule.thresholds.items():
            say(f"{name} = {threshold.value:g} {threshold.unit}: {threshold.source}")


def _show(evidence: Evidence, diagnosis: Diagnosis, *, everything: bool, beside_verdict: bool) -> None:
    """Print the first finding as the first screen, and what follows. beside_verdict: that of a job stands there already."""
    findings = diagnosis.findings
    if beside_verdict:
        say(counts(findings) or all_clear(diagnosis, complete=evidence.complete, judged=evidence.judged) or "", "bold")
        say(looked_at(evidence), "dim")
    else:
        show_screen(of_evidence(evidence, diagnosis), everything=everything)
        findings = diagnosis.findings if evidence.dry_job else further(diagnosis)
    if findings:
        say()
        print_findings(findings, confidence=True)
    if everything or not (evidence.runs or evidence.traces or evidence.comm):
        _show_nccl(evidence, everything=everything)
    print_read(evidence, most=None if everything else NOTES)
    looked, skipped = len(diagnosis.quiet), len(diagnosis.skipped)
    say()
    if not everything:
        more = "; --all lists them" if looked or skipped else ""
        say(f"{counted(looked, 'rule')} found nothing, {skipped} look at other data{more}", "dim")
        return
    praise = _good_news()
    for quiet in diagnosis.quiet:
        good = quiet.rule not in praise
        say(f"{'✓' if good else '·'} {quiet.rule}: {quiet.looked_at}", "green" if good else "dim")
    for skip in diagnosis.skipped:
        command = f" ($ {skip.command})" if skip.command else ""
        say(f"- {skip.rule}: {skip.reason}{command}", "dim")


def _show_nccl(evidence: Evidence, *, everything: bool) -> None:
    """Print what NCCL logged: communicators, channels, transports, algorithms and protocols, warnings."""
    from stepscope.report.views import nccl_debug

    for table in (table for debug in evidence.nccl for table in nccl_debug.build_all(debug)):
        say()
        show_table(limited(table, 0 if everything else ROWS, "--all shows them"), titled=True)


def _good_news() -> frozenset[str]:
    from stepscope.diagnose.engine import all_rules

    return frozenset(rule.name for rule in all_rules() if rule.good_news)


def _show_protocol(evidence: Evidence, diagnosis: Diagnosis) -> None:
    from stepscope.diagnose.engine import investigate

    say(looked_at(evidence), "bold")
    for state in investigate(evidence, diagnosis):
        say()
        say(f"{state.number}. {state.question}", "bold")
        say(f"   evidence: {', '.join(state.have) or 'none yet'}")
        if state.fired:
            say(f"   found: {', '.join(state.fired)}", "red")
        if state.quiet:
            say(f"no problem: {', '.join(state.quiet)}", "green")
        if state.skipped:
            say(f"   skipped: {', '.join(state.skipped)}", "dim")
        for command in state.next_commands:
            say(f"   $ {command}", "cyan")
