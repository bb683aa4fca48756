"""A preset whose expectation rests on measured collectives or matrix products: those, into the run folder's ``comm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.cli.comm_run import run as run_comm
from stepscope.cli.commands.comm import Comm
from stepscope.cli.console import err
from stepscope.core.errors import ExitCode
from stepscope.results.experiments import experiment_of
from stepscope.store.layout import RunLayout

if TYPE_CHECKING:
    from stepscope.matrix.session import ReadyMatrix


def sweep_beside(plan: ReadyMatrix, layout: RunLayout) -> bool:
    """Measure what the experiment of this matrix asks for; False where it asks for nothing, or where no cell can run."""
    experiment = experiment_of(plan.matrix.name)
    least = 1 if experiment is not None and "matmul" in experiment.sweep else 2  # one rank reduces nothing
    specs = [cell.spec for cell in plan.cells if cell.runnable and cell.spec.world_size >= least]
    if experiment is None or not experiment.sweep or not specs:
        return False
    spec, networks = specs[0], {each.network for each in specs}
    options = Comm(
        **experiment.sweep,
        ranks=",".join(map(str, sorted({each.world_size for each in specs}))),
        device=spec.device,
        backend=spec.backend,
        threads=str(spec.threads_per_rank),
        emulate_network=networks.pop() if len(networks) == 1 else None,
        output=layout.root / "comm",
    )
    err().print("\nwhat the expectation rests on", style="bold")
    return run_comm(options, printed=False) in (ExitCode.OK, ExitCode.SOME_CELLS_FAILED)
