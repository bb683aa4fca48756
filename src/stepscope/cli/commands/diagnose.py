"""``stepscope diagnose``: what is wrong, what it costs, what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.cli.command import Command
from stepscope.cli.evidence import EvidenceOptions, Paths


class Diagnose(EvidenceOptions):
    """Say what is wrong with a training job, prove it with numbers, and name the next thing to do.

    Findings are ranked by the maximum share of the step that a fix can save.
    """

    paths: Paths = ()
    rules: Annotated[
        str | None, typer.Option(help="Apply only these rules; `--rules list` names all.", metavar="RULE,...")
    ] = None
    explain: Annotated[
        str | None, typer.Option(help="Explain a rule: what it detects, why it matters, its limits.", metavar="RULE")
    ] = None
    protocol: Annotated[
        bool, typer.Option("--protocol", help="Show the investigation in five steps: what is known, what to run.")
    ] = False
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also list the checks that found nothing, those that were skipped, and what NCCL logged."
        ),
    ] = False
    fail_if: Annotated[
        tuple[str, ...],
        typer.Option(
            "--fail-if",
            help="Exit 6 when this holds: a rule's name, or 'problem_count > 0'.",
            metavar="CONDITION",
        ),
    ] = ()
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False


COMMAND = Command(options=Diagnose, where="stepscope.cli.diagnose_run", panel="Look at a job")
