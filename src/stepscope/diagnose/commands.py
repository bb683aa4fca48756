"""Commands that findings give: the one that made a run, with a setting changed, so that it can be pasted.

A tool of a scheduler or a vendor is named only where the evidence shows that it is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stepscope.core.units import parse_duration_ns
from stepscope.core.words import url_of
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence, cell_of

if TYPE_CHECKING:
    from stepscope.records.cell import RunRecord
    from stepscope.records.training import TrainingRun

ANY_MATRIX = "stepscope bench MATRIX.yaml"
"""What rules write where any matrix does; the engine puts the run's own command in its place where there is one."""

SWEEP_BUDGET_NS = 5_000_000_000
"""Of one size, where `stepscope comm` has no --budget."""

_DROPPED = {"-o": 1, "--output": 1, "--json": 0, "--plan": 0, "--show": 0, "--rerun": 1, "--force": 0}
"""Options of a command that its repetition with another setting must not have, and how many values follow each."""


def again(evidence: Evidence, cell: CellEvidence, *changes: tuple[str, Any]) -> str:
    """Return the command that measured ``cell``, with these settings (``num_workers``, 2) changed.

    A list as the value makes or replaces an axis. A setting that the matrix sweeps is changed on its axis.
    """
    record = next((r for r in evidence.records if cell.cell_id in r.cells), None)
    words = _argv_of(record)
    for key, value in changes:
        axis = isinstance(value, list) or (record is not None and key in (record.matrix.get("axes") or {}))
        text = _option_value_text(value if isinstance(value, list) or not axis else [value])
        words += ["--set", f"{'axes' if axis else 'base'}.{key}={text}"]
    return shlex.join(words)


def remeasured(evidence: Evidence, *runs: TrainingRun) -> str | None:
    """Return the command that measures these runs of `bench` once more in their run folder; None for another tool's.

    Where they are of several folders, or of one whose record is not here, it measures the first of them anew.
    """
    cells = [cell for run in runs if (cell := cell_of(evidence, run)) is not None]
    if not cells:
        return None
    records = [r for r in evidence.records if r.kind == "bench" and all(cell.cell_id in r.cells for cell in cells)]
    folders = dict.fromkeys(cell.run.source for cell in cells)
    if len(records) != 1 or len(folders) != 1:
        return again(evidence, cells[0])
    ids = ",".join(dict.fromkeys(cell.cell_id for cell in cells))
    return shlex.join([*_argv_of(records[0]), "-o", *folders, "--rerun", ids])


def swept_again(evidence: Evidence, *options: str) -> str | None:
    """Return the command of the only run of `comm`, these options in place of its own; None without one or with several."""
    records = [record for record in evidence.records if record.kind == "comm" and record.argv[1:2] == ("comm",)]
    replaced = {word: 1 for word in options if word.startswith("-")}
    return shlex.join([*_kept_words(records[0].argv, replaced), *options]) if len(records) == 1 else None


def sweep_budget_ns(evidence: Evidence) -> int:
    """Return the most time that the only run of `comm` spent on one size, or the default without one or with several."""
    records = [record for record in evidence.records if record.kind == "comm"]
    words = records[0].argv if len(records) == 1 else ()
    for word, value in pairwise((*words, "")):
        if word.startswith("--budget"):
            return parse_duration_ns(word.partition("=")[2] or value)
    return SWEEP_BUDGET_NS


def profiled(evidence: Evidence, cell: CellEvidence) -> str:
    """Return the command that measures ``cell`` again with traces, and the one that reads them."""
    command = once(f"{again(evidence, cell)} --profile")
    return f"{command} -o PROFILED && stepscope diagnose PROFILED"


def own_command(command: str | None, evidence: Evidence) -> str | None:
    """Return ``command`` with the only run's own words for ``stepscope bench MATRIX.yaml``."""
    records = [record for record in evidence.records if record.kind == "bench"]
    if command is None or ANY_MATRIX not in command or len(records) != 1:
        return command
    return once(command.replace(ANY_MATRIX, shlex.join(_argv_of(records[0]))))


def once(command: str) -> str:
    """Return ``command`` with a flag that it has twice left out the second time."""
    first, flag, rest = command.partition(" --profile")
    return first + flag + rest.replace(" --profile", "")


def _argv_of(record: RunRecord | None) -> list[str]:
    if record is None or len(record.argv) < 2:
        return ["stepscope", "bench", "MATRIX.yaml"]
    if record.argv[1] != "bench":
        return ["stepscope", "bench", "--preset", record.name]
    return _kept_words(record.argv)


def _kept_words(argv: Sequence[str], replaced: Mapping[str, int] = MappingProxyType({})) -> list[str]:
    """Return a command's words without those that its repetition must not have, and without the ``replaced``."""
    dropped = {**_DROPPED, **replaced}
    words = ["stepscope", *argv[1:]]  # it may have been called by its path
    kept: list[str] = []
    while words:
        word = words.pop(0)
        name = word.partition("=")[0]
        if name not in dropped:
            kept.append(word)
        elif "=" not in word:
            del words[: dropped[name]]
    return kept


def _option_value_text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(_option_value_text(element) for element in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def trace_command(job: TraceEvidence, options: str) -> str:
    """Return ``stepscope trace FOLDER OPTIONS`` for this job's files, or each file by name where folders are several."""
    files = list(dict.fromkeys(p.facts.file for p in job.summary.ranks))
    folders = {url_of(parent) or str(parent) for parent in (Path(file).parent for file in files)}
    where = folders if len(folders) == 1 < len(files) else files
    return f"stepscope trace {shlex.join(where)} {options}"


def is_slurm(evidence: Evidence) -> bool:
    return evidence.environment is not None and evidence.environment.scheduler == "slurm"


def excluding(evidence: Evidence, host: str | None) -> str | None:
    """Return the command that keeps a job off ``host``, or None where no scheduler is known."""
    return f"sbatch --exclude={host} JOB" if host is not None and is_slurm(evidence) else None


def is_amd(evidence: Evidence) -> bool:
    """Return whether torch there was built for ROCm: nvidia-smi and NVLink are none of its tools."""
    torch = evidence.environment.torch if evidence.environment is not None else None
    return torch is not None and torch.hip_version is not None
