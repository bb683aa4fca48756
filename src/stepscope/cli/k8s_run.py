"""What ``stepscope k8s`` does: decide what the pods run, and print the manifest."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, cast

from stepscope.cli.app import options_of
from stepscope.cli.command import choice
from stepscope.cli.commands.run import Run
from stepscope.cli.console import typed
from stepscope.core.errors import UsageError
from stepscope.launch.kubernetes import KINDS, RUNTIME, TrainingJob, dns_name, manifest_text
from stepscope.launch.training_command import program_of_ranks
from stepscope.matrix.run_folder import name_of_command

if TYPE_CHECKING:
    from stepscope.cli.commands.k8s import K8s

_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


def run(options: K8s) -> int:
    """Print the manifest; the exit code. Raises UsageError."""
    kind = choice("--kind", options.kind, {name: name for name in KINDS})
    command, watcher = _command(options)
    program, ranks = program_of_ranks(command)
    per_node = options.ranks_per_node or options.gpus_per_node or ranks or 1
    if ranks is not None and ranks != per_node:
        raise UsageError(
            f"the command asks for {ranks} ranks in each pod, and the job for {per_node}", fix="leave one out"
        )
    if options.nodes > 1 and options.claim is None:
        raise UsageError(
            f"{options.nodes} pods need a folder that all of them see",
            why="the first pod watches the ranks of the others through it",
            fix="add --claim NAME, a PersistentVolumeClaim with access mode ReadWriteMany",
        )
    if options.runtime is not None and kind != "trainjob":
        raise UsageError("--runtime goes with --kind trainjob")
    if options.memory_per_node is not None and not _SIZE.fullmatch(options.memory_per_node):
        raise UsageError(f"--memory-per-node {options.memory_per_node!r} is not a size", fix="for example 64Gi")
    job = TrainingJob(
        name=_checked_name("--name", options.name) or dns_name(name_of_command(command)),
        image=options.image,
        program=program,
        watcher=watcher,
        nodes=options.nodes,
        ranks_per_node=per_node,
        gpus_per_node=options.gpus_per_node,
        cpus_per_node=options.cpus_per_node,
        memory_per_node=options.memory_per_node,
        namespace=_checked_name("--namespace", options.namespace),
        claim=_checked_name("--claim", options.claim),
        runtime=options.runtime or RUNTIME,
    )
    sys.stdout.write(manifest_text(job, kind=kind, typed=shlex.join(typed())))
    return 0


def _command(options: K8s) -> tuple[list[str], tuple[str, ...]]:
    """Return the training command, and the options of ``stepscope run`` around it."""
    words = options.command[1:] if options.command[0] == "stepscope" else options.command
    if words[:1] != ["run"]:
        if words is not options.command:
            raise UsageError("a pod runs a training command under `stepscope run`", fix="k8s ... -- torchrun train.py")
        return words, ()
    own = cast(Run, options_of("run", words[1:]))
    if own.output is not None or own.join:
        raise UsageError(
            "the manifest decides the folder of run", fix="leave -o and --join out; --name names the folder"
        )
    if own.nccl_debug and options.nodes > 1:
        raise UsageError(
            "run --nccl-debug reaches the ranks of the first pod only",
            fix="set NCCL_DEBUG and NCCL_DEBUG_FILE in the image",
        )
    before = words[1 : len(words) - len(own.command)]
    return own.command, tuple(before[:-1] if before[-1:] == ["--"] else before)


def _checked_name(option: str, given: str | None) -> str | None:
    """Return ``given``. Raises UsageError for what Kubernetes takes for no name."""
    if given is not None and (not _NAME.fullmatch(given) or len(given) > 63):
        raise UsageError(
            f"{option} {given!r} is not a name in Kubernetes",
            fix="use small letters, digits and dashes, a letter first",
        )
    return given
