"""``stepscope diagnose``: what is wrong, what it costs, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli._command import Command
from stepscope.cli.evidence_arguments import ANY_RESULTS, Cell, DropEpochs, Scaling, TargetAccuracy, WorldSize


def diagnose(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help=ANY_RESULTS,
            metavar="PATHS",
            show_default=False,
        ),
    ] = None,
    world_size: WorldSize = None,
    scaling: Scaling = None,
    target_accuracy: TargetAccuracy = None,
    drop_epochs: DropEpochs = 1,
    cell: Cell = None,
    rules: Annotated[
        str | None, typer.Option(help="Only these rules; `list` names them all.", metavar="RULE,...")
    ] = None,
    explain: Annotated[
        str | None, typer.Option(help="What a rule sees, why that is bad, and its limits.", metavar="RULE")
    ] = None,
    protocol: Annotated[
        bool, typer.Option("--protocol", help="The investigation in five steps: what is known, what to run.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what was looked at and found in order, and what was skipped.")
    ] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            help="Exit 6 when this holds: a rule's name, or 'problem_count > 0'.",
            metavar="CONDITION",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Say what is wrong with a training job, prove it with numbers, and name the next thing to do.

    Findings are ranked by the share of the step that mending them returns at most.
    """
    from stepscope.cli.diagnose_run import Request, run
    from stepscope.cli.evidence_options import EvidenceOptions

    return run(
        Request(
            evidence=EvidenceOptions(
                paths=tuple(paths or ()),
                world_size=world_size,
                scaling=scaling,
                drop_epochs=drop_epochs,
                cell=cell,
                target_accuracy=target_accuracy,
            ),
            rules=rules,
            explain=explain,
            protocol=protocol,
            everything=everything,
            fail_if=tuple(fail_if or ()),
            json=json,
        )
    )


COMMAND = Command(run=diagnose, panel="Look at a job")
