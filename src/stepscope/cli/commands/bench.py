"""``stepscope bench``: run a matrix of training cells and record what each one costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli._command import Command


def bench(
    matrix: Annotated[
        Path | None, typer.Argument(help="Matrix file (YAML).", metavar="[MATRIX.yaml]", show_default=False)
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A matrix that comes with stepscope.", metavar="NAME")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the resolved matrix as YAML and exit.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the cells and an estimate of the time; run nothing.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder; an existing run is resumed.", metavar="DIR"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one key: --set base.lr=0.01. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    warmup: Annotated[str | None, typer.Option(help="Warm-up steps: a number, or auto.", metavar="N|auto")] = None,
    steps: Annotated[str | None, typer.Option(help="Timed steps: a number, or auto.", metavar="N|auto")] = None,
    emulate_network: Annotated[
        str | None,
        typer.Option(
            "--emulate-network",
            help="Put ranks on emulated hosts: RATE[:HOSTS][,delay=TIME], such as 2gbit:2.",
            metavar="NETWORK",
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data sets lie.", metavar="DIR")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing public data into --data-dir.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Add three profiled steps to each cell: one trace per rank.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write the traces where TensorBoard looks.", metavar="DIR")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="When resuming, try cells again that ran out of memory.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Use a run folder of another matrix, machine or torch.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of the table.")] = False,
) -> int:
    """Benchmark training strategies: a matrix of models, strategies, ranks and precisions."""
    from stepscope.cli import bench_plan, bench_run
    from stepscope.core.errors import UsageError
    from stepscope.matrix.session import make_plan

    if list_:
        return bench_plan.print_presets(json=json)
    if (matrix is None) == (preset is None):
        raise UsageError(
            "give a matrix file or --preset NAME" if matrix is None else "give a matrix file or --preset, not both",
            fix="`stepscope bench --list` shows the presets",
        )
    source = matrix if matrix is not None else str(preset)
    overrides = [*(set_ or []), *bench_plan.step_overrides(warmup=warmup, steps=steps)]
    if emulate_network is not None:
        overrides.append(bench_plan.network_override(emulate_network))
    if show:
        return bench_plan.print_matrix(source, overrides=overrides)
    planned = make_plan(source, overrides=overrides, data_dir=data_dir, download=download)
    if plan:
        return bench_plan.print_plan(
            planned,
            output=output,
            json=json,
            profile=profile or tensorboard is not None,
            retry_failed=retry_failed,
            force=force,
        )
    return bench_run.run_plan(
        planned,
        output=output,
        json=json,
        profile=profile,
        tensorboard=tensorboard,
        retry_failed=retry_failed,
        force=force,
    )


COMMAND = Command(run=bench, panel="Measure")
