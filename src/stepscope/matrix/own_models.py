"""Models of the user's (``python:`` workloads) are measured before cells are planned, in a process that imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.processes import ask
from stepscope.launch.torchrun import require_torch
from stepscope.matrix.checked import CellDraft, Matrix
from stepscope.matrix.expand import ModelOf, error_of
from stepscope.matrix.machine import Device
from stepscope.records import codec
from stepscope.records.plan import MeasuredModel, MeasuredModels, ModelQuestion, ModelQuestions
from stepscope.store.reader import read_bytes
from stepscope.store.writer import writing
from stepscope.workloads import PREFIX


def measured_models(matrix: Matrix, device: Device) -> ModelOf:
    """The look-up for :func:`stepscope.matrix.expand.expand`. Raises UsageError for a model of which no variant works."""
    asked: dict[str, dict[str, ModelQuestion]] = {}
    for draft in matrix.cells:
        if draft.settings.workload.startswith(PREFIX):
            question = _question(draft)
            asked.setdefault(draft.settings.workload, {})[_key(question)] = question
    found = {
        workload: dict(zip(questions, _measured(workload, questions.values(), matrix, device), strict=True))
        for workload, questions in asked.items()
    }
    for models in found.values():
        if all(model.error for model in models.values()):
            raise error_of(next(iter(models.values())))

    def model_of(draft: CellDraft) -> MeasuredModel | None:
        models = found.get(draft.settings.workload)
        return None if models is None else models[_key(_question(draft))]

    return model_of


def _question(draft: CellDraft) -> ModelQuestion:
    return ModelQuestion(
        model=draft.model.as_dict(),
        dataset_options=draft.dataset_options.as_dict(),
        precision=draft.settings.precision,
        optimizer=draft.settings.optimizer,
    )


def _key(question: ModelQuestion) -> str:
    return json.dumps(
        [question.model, question.dataset_options, question.precision, question.optimizer], sort_keys=True
    )


def _measured(
    workload: str, questions: Iterable[ModelQuestion], matrix: Matrix, device: Device
) -> tuple[MeasuredModel, ...]:
    """What ``python -m stepscope.rank --measure`` answers. Raises UsageError where it ends without an answer."""
    require_torch()
    timeout_s = matrix.measure.timeout_ns / 1e9
    with tempfile.TemporaryDirectory(prefix="stepscope-model-") as folder:
        asked, answers = Path(folder, "questions.json"), Path(folder, "answers.json")
        asking = ModelQuestions(workload=workload, device=device, questions=tuple(questions))
        with writing(asked):
            asked.write_bytes(codec.encode_document(codec.plain(asking)))
        command = [sys.executable, "-m", "stepscope.rank", "--measure", str(asked), str(answers)]
        try:
            told = ask(command, environ=_environ(matrix.launch.env), timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{workload} was not measured: building it and one step took more than {timeout_s:g} s",
                fix="raise measure.timeout_s",
            ) from None
        if told.returncode != 0 or not answers.exists():
            last = [line for line in (told.stdout + told.stderr).splitlines() if line.strip()][-1:]
            raise UsageError(
                f"{workload} was not measured: the process that builds it ended with code {told.returncode}",
                why=last[0].strip() if last else None,
            )
        return codec.decode(read_bytes(answers), MeasuredModels, source=str(answers)).models


def _environ(extra: Mapping[str, str]) -> dict[str, str]:
    """One process, whatever world this one may be a rank of."""
    worlds = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {**{k: v for k, v in os.environ.items() if k not in worlds}, **extra}
