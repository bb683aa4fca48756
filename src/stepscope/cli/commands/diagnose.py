"""``stepscope diagnose``: what is wrong, what it costs, what to do."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, argument, option, switch
from stepscope.cli.evidence import PATHS, EvidenceOptions


class Diagnose(EvidenceOptions):
    """Say what is wrong with a training job, prove it with numbers, and name the next thing to do.

    Findings are ranked by the maximum share of the step that a fix can save.
    """

    paths: tuple[Path, ...] = argument(f"{PATHS} `-`: a text on standard input.", "PATHS", default=())
    rules: str | None = option("Apply only these rules; `--rules list` names all.", "RULE,...")
    explain: str | None = option("Explain a rule: what it detects, why it matters, its limits.", "RULE", only="json")
    protocol: bool = switch(
        "Show the investigation in five steps: what is known, what to run.", without="json everything"
    )
    everything: bool = switch(
        "Also list the checks that found nothing, those that were skipped, and what NCCL logged.", "--all"
    )
    fail_if: tuple[str, ...] = option(
        "Exit 6 when this holds: a rule's name, 'problem_count > 0' or 'input > 20 %'.", "CONDITION", default=()
    )
    json: bool = switch("Print one JSON document.")


COMMAND = Command(options=Diagnose, where="stepscope.cli.diagnose_run", panel="Look at a job")
