"""Why no rank of a hooked job reported a step, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.words import counted
from stepscope.launch.hooked_job import HOOK
from stepscope.store.layout import ProfileLayout


def why_no_rank(layout: ProfileLayout, command: Sequence[str]) -> tuple[str, str]:
    """(reason, what to do) for a job none of whose ranks reported a step."""
    if processes := layout.processes():
        count = f"{counted(len(processes), 'process')} imported torch"
        return (
            f"{count}, but no optimizer of torch.optim made a step",
            "a job without an optimizer: `stepscope profile --duration 10 -- ...` profiles forward passes for 10 s",
        )
    first, line = Path(command[0]).name, shlex.join(command)
    passing = "PYTHONPATH,STEPSCOPE_HOOK"
    loaded = "no process of the job loaded the hook when it imported torch"
    if first in ("srun", "salloc", "sbatch"):
        return (
            loaded,
            f"srun must export {passing}: --export=ALL,{passing}",
        )
    if first in ("mpirun", "mpiexec", "orterun"):
        return (
            loaded,
            f"{first} must export the environment: -x PYTHONPATH -x STEPSCOPE_HOOK (MPICH: -genvlist {passing})",
        )
    if first in ("docker", "podman", "singularity", "apptainer", "enroot"):
        return (
            loaded,
            f"a container sees neither the environment nor the folder: pass {passing} in and mount {HOOK} and {layout.root}",
        )
    if " -I " in line or " -E " in line or " -S " in line:
        return "Python ignores the environment with -I, -E and -S", "leave that option of python out"
    return (
        f"no process of the job imported torch, or none that did sees {layout.root}",
        f"check that the command runs training, that its launcher passes {passing} on to the ranks, and that -o is a folder "
        "on every host",
    )
