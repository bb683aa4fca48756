"""``performance_report.txt``: findings first, each with its numbers and the next command; then what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope import __version__
from stepscope.core.units import format_percent
from stepscope.core.words import grouped
from stepscope.records.finding import Advice, Diagnosis, Finding, JobVerdict, Skipped
from stepscope.report import screen_lines
from stepscope.report.contents import experiment_tables, machine_tables, run_tables, step_tables
from stepscope.report.page.verdict import findings_title, profiled_machine, worth_saying
from stepscope.report.render.terminal import ascii_text, paragraph, render_ascii
from stepscope.report.screen_lines import also, coverage_line
from stepscope.report.summary import environment_lines
from stepscope.report.views import runs, scaling
from stepscope.results.evidence import Evidence
from stepscope.store.layout import profiled_job

MAX_RUNS = 60
"""Lines of the table of runs; more stand in ``comprehensive_summary.csv``."""


def performance_report(
    evidence: Evidence, diagnosis: Diagnosis, *, drop_epochs: int = 1, verdict: JobVerdict | None = None
) -> str:
    """The whole text: ASCII, lines of 100 characters where words and commands allow. verdict: of a profiled job."""
    sections = [
        _title(evidence),
        "" if verdict is None else _verdict(verdict),
        *(f"{_heading(table.title)}\n{render_ascii(table)}" for table in step_tables(evidence)),
        _findings(diagnosis.findings, findings_title(verdict)) if verdict is None or diagnosis.findings else "",
        _scaling(evidence, drop_epochs),
        _runs(evidence, drop_epochs),
        *(
            f"{_heading(table.title)}\n{render_ascii(table)}"
            for table in (
                *experiment_tables(evidence),
                *run_tables(evidence, drop_epochs=drop_epochs),
                *machine_tables(evidence),
            )
        ),
        _skipped(_worth_saying(evidence, diagnosis)),
        _quiet(diagnosis),
        _machine(evidence),
        _sources(evidence),
    ]
    return "\n".join(section for section in sections if section)


def _heading(text: str, mark: str = "-") -> str:
    return f"{text}\n{mark * len(text)}\n"


def _title(evidence: Evidence) -> str:
    paths = dict.fromkeys(profiled_job(source.path) or source.path for source in evidence.sources)
    names = ", ".join(path.resolve().name for path in paths)
    lines = [_heading("Performance report", "="), paragraph(f"Of {names or 'nothing'}, by stepscope {__version__}.")]
    return "\n".join([*lines, ""])


def _verdict(verdict: JobVerdict) -> str:
    """The first screen without its tree, which is the table below."""
    lines = [paragraph(f"{verdict.headline}.")]
    if rests_on := coverage_line(verdict):
        lines.append(f"  {rests_on}")
    for advice in verdict.advice[:1]:
        lines.append(paragraph(advice.text, indent="         ", first="  next   "))
        if advice.command:
            lines.append(f"         $ {_command(advice.command)}")
    lines += [paragraph(line, indent="         ", first="  also   ") for line in also(verdict)]
    lines += [paragraph(line, indent="    ", first="  ") for line in (*verdict.evidence, *verdict.notes)]
    return "\n".join([_heading("Verdict"), *lines, ""])


def _findings(found: Sequence[Finding], title: str) -> str:
    lines = [_heading(title)]
    if not found:
        lines += ["No rule found anything. The checks that were skipped are listed below.", ""]
    for number, finding in enumerate(found, start=1):
        lines += [*_finding(finding, number), ""]
    return "\n".join(lines)


def _finding(finding: Finding, number: int) -> list[str]:
    mark = f"{number}. "
    indent = " " * len(mark)
    title = f"[{finding.severity}] {finding.title}"
    lines = [paragraph(title, indent=indent, first=mark)]
    lines += [paragraph(text, indent=f"{indent}  ", first=f"{indent}- ") for text in finding.evidence]
    stake = (
        ""
        if finding.stake_fraction is None
        else f" A fix could recover up to {format_percent(finding.stake_fraction)} of the step."
    )
    about = f" About: {finding.subject}." if finding.subject else ""
    lines.append(
        paragraph(f"Confidence: {finding.certainty.rstrip('.')}.{stake}{about} Rule: {finding.rule}.", indent=indent)
    )
    for advice in finding.advice:
        lines += _advice(advice, indent)
    return lines


def _advice(advice: Advice, indent: str) -> list[str]:
    lines = [paragraph(advice.text, indent=f"{indent}   ", first=f"{indent}-> ")]
    if advice.command:
        lines.append(f"{indent}   $ {_command(advice.command)}")
    return lines


def _command(text: str) -> str:
    """A command is never wrapped: it would no longer be one."""
    return " ".join(ascii_text(text).split())


def _scaling(evidence: Evidence, drop_epochs: int) -> str:
    if not any(not row.is_baseline for row in evidence.scaling):
        return ""
    table = scaling.scaling_table(evidence.scaling, evidence.runs, drop_epochs=drop_epochs)
    return "\n".join([_heading("Scaling"), render_ascii(table)])


def _runs(evidence: Evidence, drop_epochs: int) -> str:
    if not evidence.runs:
        return ""
    shown = evidence.runs[:MAX_RUNS]
    table = runs.build(shown, evidence.scaling, drop_epochs=drop_epochs)
    lines = [_heading("Runs"), render_ascii(table)]
    if len(shown) < len(evidence.runs):
        lines.append(f"The first {MAX_RUNS} of {len(evidence.runs)} runs; all: comprehensive_summary.csv.\n")
    return "\n".join(lines)


def _worth_saying(evidence: Evidence, diagnosis: Diagnosis) -> Sequence[Skipped]:
    """Of a profile without traces no rule could look."""
    if not evidence.profiled:
        return diagnosis.skipped
    return worth_saying(diagnosis) if diagnosis.findings or diagnosis.quiet else ()


def _skipped(skipped: Sequence[Skipped]) -> str:
    if not skipped:
        return ""
    lines = [_heading("Skipped checks")]
    for (reason, command), same in grouped(skipped, lambda each: (each.reason, each.command)).items():
        lines.append(paragraph(f"{', '.join(each.rule for each in same)}: {reason}", indent="  ", first="- "))
        if command:
            lines.append(f"  $ {_command(command)}")
    return "\n".join([*lines, ""])


def _quiet(diagnosis: Diagnosis) -> str:
    if not diagnosis.quiet:
        return ""
    lines = [_heading("Looked at, nothing found")]
    lines += [paragraph(f"{each.rule}: {each.looked_at}", indent="  ", first="- ") for each in diagnosis.quiet]
    return "\n".join([*lines, ""])


def _machine(evidence: Evidence) -> str:
    rows = tuple(cell.run for cell in evidence.cells)
    ranks = [cell.result.summaries[0] for cell in evidence.cells if cell.result.summaries]
    lines = [_heading("Machine")]
    if evidence.environment is not None or ranks:
        lines += [
            paragraph(line, indent="  ", first="- ") for line in environment_lines(evidence.environment, rows, ranks)
        ]
    elif not evidence.hardware and not evidence.profiled and not any(run.hardware for run in evidence.runs):
        lines.append("Not recorded.")
    for each in evidence.profiled:
        lines += [paragraph(line, indent="  ", first="- ") for line in profiled_machine(each)]
    names = dict.fromkeys((*evidence.hardware, *(run.hardware for run in evidence.runs if run.hardware)))
    if evidence.environment is None:
        lines += [paragraph(f"ran on {name}", indent="  ", first="- ") for name in names]
    return "\n".join([*lines, ""])


def _sources(evidence: Evidence) -> str:
    lines = [_heading("Sources and notes")]
    for source in evidence.sources:
        what = source.kind if source.format is None else f"{source.kind}, read as {source.format}"
        lines.append(paragraph(f"{source.path} ({what})", indent="  ", first="- "))
    said = [*(f"{state}: {text}" for state, text in screen_lines.files_found(evidence)), *evidence.said]
    lines += [paragraph(note, indent="  ", first="- ") for note in said]
    for record in evidence.records:
        lines += [f"- made by: {_command(' '.join(argv))}" for argv in record.commands or (record.argv,) if argv]
    return "\n".join([*lines, ""])
