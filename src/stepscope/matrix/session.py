"""From a command's arguments to a plan, and from a finished run to its results: what ``bench`` and ``demo`` share.

Models of the user's (``python:`` workloads) are measured before cells are planned, in a process that imports torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, UsageError
from stepscope.core.processes import ask
from stepscope.core.words import unknown
from stepscope.datasets import REGISTRY as DATASETS
from stepscope.launch.hosts.survey import HostWorld
from stepscope.launch.torchrun import require_torch
from stepscope.matrix.checked import CellDraft, Matrix
from stepscope.matrix.estimate import PlanEstimate, estimate_plan, group_cells
from stepscope.matrix.expand import ModelOf, PlannedCell, error_of, expand
from stepscope.matrix.keys import CommSection
from stepscope.matrix.load import digest_lookup, load_matrix
from stepscope.matrix.machine import Device, choose_device, cores_of, here_or_there
from stepscope.matrix.matrix_file import COMM
from stepscope.matrix.overrides import Override
from stepscope.matrix.resume import cells_to_rerun, plan_resume
from stepscope.matrix.run_folder import MISSING_DATA, read_statuses, refuse_unfit, untraced
from stepscope.records import codec
from stepscope.records.cell import CellStatus
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.options import OptionsModel
from stepscope.records.plan import MeasuredModel, MeasuredModels, ModelQuestion, ModelQuestions
from stepscope.records.training import TrainingRun
from stepscope.results.run_figures import write_results
from stepscope.results.runs import baselines_of, folder_runs
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_bytes
from stepscope.store.writer import writing
from stepscope.store.yaml_loader import Document
from stepscope.workloads import PREFIX


def measured_models(matrix: Matrix, device: Device) -> ModelOf:
    """Return the look-up for :func:`stepscope.matrix.expand.expand`. Raises UsageError for a model of which no variant
    works."""
    asked: dict[str, dict[str, ModelQuestion]] = {}
    for draft in matrix.cells:
        if draft.settings.workload.startswith(PREFIX):
            question = _model_question(draft)
            asked.setdefault(draft.settings.workload, {})[_question_key(question)] = question
    by_workload = {
        workload: dict(zip(questions, _measured_models(workload, questions.values(), matrix, device), strict=True))
        for workload, questions in asked.items()
    }
    for models in by_workload.values():
        if all(model.error for model in models.values()):
            raise error_of(next(iter(models.values())))

    def model_of(draft: CellDraft) -> MeasuredModel | None:
        models = by_workload.get(draft.settings.workload)
        return None if models is None else models[_question_key(_model_question(draft))]

    return model_of


def _model_question(draft: CellDraft) -> ModelQuestion:
    """Return what has to be asked of a user's own model."""
    return ModelQuestion(
        model=draft.model.as_dict(),
        dataset_options=draft.dataset_options.as_dict(),
        precision=draft.settings.precision,
        optimizer=draft.settings.optimizer,
    )


def _question_key(question: ModelQuestion) -> str:
    return json.dumps(
        [question.model, question.dataset_options, question.precision, question.optimizer], sort_keys=True
    )


def _measured_models(
    workload: str, questions: Iterable[ModelQuestion], matrix: Matrix, device: Device
) -> tuple[MeasuredModel, ...]:
    """Return what ``python -m stepscope.rank --measure`` answers. Raises UsageError where it ends without an answer."""
    require_torch()
    timeout_s = matrix.measure.timeout_ns / 1e9
    with tempfile.TemporaryDirectory(prefix="stepscope-model-") as folder:
        asked, answers = Path(folder, "questions.json"), Path(folder, "answers.json")
        asking = ModelQuestions(workload=workload, device=device, questions=tuple(questions))
        with writing(asked):
            asked.write_bytes(codec.encode_document(codec.plain(asking)))
        command = [sys.executable, "-m", "stepscope.rank", "--measure", str(asked), str(answers)]
        try:
            process = ask(command, environ=_process_environment(matrix.launch.env), timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{workload} was not measured: building it and one step took more than {timeout_s:g} s",
                fix="raise measure.timeout_s",
            ) from None
        if process.returncode != 0 or not answers.exists():
            last = [line for line in (process.stdout + process.stderr).splitlines() if line.strip()][-1:]
            raise UsageError(
                f"{workload} was not measured: the process that builds it ended with code {process.returncode}",
                why=last[0].strip() if last else None,
            )
        return codec.decode(read_bytes(answers), MeasuredModels, source=str(answers)).models


def _process_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one process, whatever world this one may be a rank of."""
    worlds = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {**{k: v for k, v in os.environ.items() if k not in worlds}, **extra}


KIND = "bench"


@record
class ReadyMatrix:
    """A matrix on this machine, ready to run: its cells and its sweep of collectives, as far as they are in the sections
    chosen. others: cells of sections that are not. hosts: where ranks run, of --hosts.
    """

    matrix: Matrix
    cells: tuple[PlannedCell, ...]
    environment: EnvironmentRecord
    data_dir: Path | None
    comm: CommSection | None = None
    others: tuple[PlannedCell, ...] = ()
    hosts: HostWorld | None = None


def make_plan(
    source: Path | str | Document,
    *,
    overrides: Sequence[Override] = (),
    data_dir: Path | None = None,
    download: bool = False,
    only: Sequence[str] | None = None,
    share: tuple[int, int] | None = None,
    hosts: HostWorld | None = None,
) -> ReadyMatrix:
    """Read, check and expand a matrix. only: sections to run; None: everything. share: ``(2, 8)``: the second, tenth, ... of
    their cells, in a joined world of those of its size; the sweep of collectives belongs to the first share.
    hosts: where ranks run; None: here.

    Raises UsageError, DataError when no cell has its data, MissingError.
    """
    if data_dir is not None and data_dir.exists() and not data_dir.is_dir():
        raise UsageError(
            f"--data-dir {data_dir} is a file, not a folder", fix=f"name the folder: --data-dir {data_dir.parent}"
        )
    matrix = load_matrix(source, overrides=overrides)
    chosen = None if only is None else chosen_sections(matrix, only)
    if download:
        _download_data(matrix, data_dir)
    environment, machine = here_or_there(hosts)
    lookup = digest_lookup(data_dir)
    missing: dict[str, DataError | UsageError] = {}

    def digest_of(key: str, options: OptionsModel) -> str:
        try:
            return lookup(key, options)
        except (DataError, UsageError) as error:
            missing[key] = error
            return MISSING_DATA

    device, _ = choose_device(matrix.launch, machine)
    if hosts is not None:
        hosts.slots(device)
        _refuse_own_models(matrix)
    models = measured_models(matrix, device)
    cells = expand(matrix, machine=machine, digest_of=digest_of, model_of=models)
    if missing and all(cell.spec.dataset in missing for cell in cells):
        raise next(iter(missing.values()))
    cells = tuple(_without_data(cell, missing) for cell in cells)
    selected = [cell for cell in cells if chosen is None or chosen.intersection(cell.sections)]
    if share is not None:
        joined = machine.joined_world_size
        selected = [cell for cell in selected if joined in (None, cell.spec.world_size)][share[0] - 1 :: share[1]]
        if not selected:
            raise UsageError(f"--share {share[0]}/{share[1]} has no cell: there are fewer of them here")
    asked = {cell.spec.cell_id for cell in selected}
    return ReadyMatrix(
        matrix=matrix,
        cells=tuple(cell for cell in cells if cell.spec.cell_id in asked),
        environment=environment,
        data_dir=data_dir,
        comm=matrix.comm if (chosen is None or COMM in chosen) and (share is None or share[0] == 1) else None,
        others=tuple(cell for cell in cells if cell.spec.cell_id not in asked),
        hosts=hosts,
    )


def _refuse_own_models(matrix: Matrix) -> None:
    """Raise UsageError for a user's own model on several hosts."""
    for draft in matrix.cells:
        if draft.settings.workload.startswith(PREFIX):
            raise UsageError(
                f"{draft.settings.workload} cannot run with --hosts: its module is on this machine",
                why="stepscope copies no code to the hosts",
                fix="start the command under torchrun or srun on the hosts, where the module is",
            )


def chosen_sections(matrix: Matrix, only: Sequence[str]) -> frozenset[str]:
    """Return the sections that ``--only`` names. Raises UsageError, with those there are, for one that the matrix does not
    have."""
    if not matrix.sections:
        raise UsageError(
            f"--only: the matrix {matrix.name!r} has no sections", fix="remove --only; the preset suite has sections"
        )
    if strange := [name for name in only if name not in matrix.sections]:
        raise UsageError(unknown("section", strange[0], matrix.sections))
    if not only:
        raise UsageError("--only names no section", fix=f"choose from {', '.join(matrix.sections)}")
    return frozenset(only)


def _without_data(cell: PlannedCell, missing: Mapping[str, DataError | UsageError]) -> PlannedCell:
    if cell.spec.data_digest != MISSING_DATA:
        return cell
    return replace(cell, unsupported=missing[cell.spec.dataset].line)


def _download_data(matrix: Matrix, data_dir: Path | None) -> None:
    """Download the data sets. Raises UsageError without a folder for them."""
    if data_dir is None:
        raise UsageError("--download needs --data-dir", fix="add --data-dir DIR")
    for key, options in {(draft.settings.dataset, draft.dataset_options) for draft in matrix.cells}:
        fetch = DATASETS.load(key).download
        if fetch is not None:
            fetch(options, data_dir)


@record
class Outlook:
    """What running a plan in a folder would do.

    kept: statuses that stand, by cell id. again, rerun: cells with a result that would be measured once more, for a trace
    or as asked. estimate: of the cells that would run.
    """

    kept: Mapping[str, CellStatus]
    again: frozenset[str]
    rerun: frozenset[str]
    estimate: PlanEstimate


def outlook(
    plan: ReadyMatrix, layout: RunLayout, *, profile: bool = False, rerun: Sequence[str] = (), force: bool = False
) -> Outlook:
    """Say what is left of the plan, and how long it may take; cells that ran before count with their real time.

    Raises UsageError for a folder in which the plan would be refused.
    """
    cell_ids = tuple(cell.spec.cell_id for cell in plan.cells)
    known_ids = (*cell_ids, *(cell.spec.cell_id for cell in plan.others))
    refuse_unfit(
        layout, kind=KIND, name=plan.matrix.name, cell_ids=known_ids, environment=plan.environment, force=force
    )
    earlier = read_statuses(layout, cell_ids)
    asked = cells_to_rerun(rerun, plan.cells, earlier, lambda: baselines_of(layout))
    again = untraced(layout, earlier) - asked if profile else frozenset()
    kept = {cell_id: status for cell_id, status in earlier.items() if cell_id not in again | asked}
    left = plan_resume(plan.cells, kept)
    groups = group_cells(
        (cell.spec for cell in left.run),
        usable_cores=lambda cell: cores_of(cell, plan.environment.usable_cores, plan.hosts),
        isolate=plan.matrix.launch.isolate,
    )
    expected = estimate_plan(
        groups,
        {cell.spec.cell_id: cell for cell in left.run},
        measure=plan.matrix.measure,
        usable_cores=plan.environment.usable_cores,
        known_ns={i: s.wall_ns for i, s in earlier.items() if s.wall_ns is not None and s.status == "ok"},
    )
    return Outlook(
        kept={cell.spec.cell_id: kept[cell.spec.cell_id] for cell in left.kept},
        again=again,
        rerun=asked,
        estimate=expected,
    )


def derive_results(layout: RunLayout) -> tuple[TrainingRun, ...]:
    """Write results.jsonl and results.csv from what lies in the run folder; return the runs."""
    runs = folder_runs(layout)
    write_results(layout, runs)
    return runs
