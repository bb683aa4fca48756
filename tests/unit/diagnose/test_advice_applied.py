"""Advice is tried before it is given: each change is applied to a small job, or no job on CPUs hears of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.advice import NOT_HERE, TRIALS, Trial, run
from tests.torch_forks import ForkedPopen, shared_server

import stepscope.diagnose
from stepscope.diagnose.advised import ADVICE

HERE = Path(next(iter(stepscope.diagnose.__path__)))
STEPS = 12
"""Of each job: it has to run, not to be measured."""

OF_CELLS = {"again", "profiled", "remeasured", "swept_again"}
"""Functions that make the command which tries advice on a cell of a run: that is tried by who runs it."""


def _calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """(file, call) of every call of a function in the files whose advice a job can be given."""
    for path in sorted(HERE.rglob("*.py")):
        text = path.read_text()
        if path.parent.name != "rules" or "look_at_job" in text or "share_rule" in text or "each_job(traces" in text:
            for call in ast.walk(ast.parse(text)):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == name:
                    yield path.stem, call


def _of_cell(call: ast.Call) -> bool:
    used = {getattr(each.func, "id", "") for each in ast.walk(call) if isinstance(each, ast.Call)}
    return bool(used & OF_CELLS)


def _key(call: ast.Call) -> str | None:
    value = next((each.value for each in call.keywords if each.arg == "key"), None)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def test_every_change_that_a_job_is_advised_has_a_key() -> None:
    free = [
        f"{stem}:{call.lineno}"
        for stem, call in _calls("advise")
        if _key(call) is None and not _of_cell(call) and stem not in ("frameworks", "rule")
    ]
    assert free == []


def test_every_key_is_advised_by_somebody() -> None:
    """By ``advise``, or by its name: what units are advised is often a variable."""
    said = {key for _, call in _calls("advise") if (key := _key(call)) is not None}
    texts = {
        each.value
        for path in HERE.rglob("*.py")
        if path.stem not in ("advised", "frameworks", "job_facts")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    prefetch = {f"{phase} prefetch" for phase in ("forward", "backward")}  # put together
    assert set(ADVICE) - said - texts - prefetch == set()


def test_every_change_was_tried_on_a_job_or_is_never_said_to_one_on_cpus() -> None:
    tried = {trial.key for trial in TRIALS}
    assert tried | NOT_HERE == set(ADVICE)
    assert tried & NOT_HERE == set()


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.id)
def test_an_edit_finds_what_it_changes(trial: Trial) -> None:
    before, after = trial.script(applied=False), trial.script(applied=True)
    compile(after, "job.py", "exec")
    assert before != after or trial.environ or trial.ranks_after


def applied(trial: Trial, folder: Path) -> None:
    popen = partial(ForkedPopen, server=shared_server())
    assert run(trial, folder / "job", popen, applied=True, steps=STEPS)["steps"] >= STEPS


@pytest.mark.parametrize("trial", [each for each in TRIALS if each.quick], ids=lambda trial: trial.id)
def test_advice_runs_where_it_is_applied(trial: Trial, tmp_path: Path) -> None:
    applied(trial, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("trial", [each for each in TRIALS if not each.quick], ids=lambda trial: trial.id)
def test_other_advice_runs_where_it_is_applied(trial: Trial, tmp_path: Path) -> None:
    applied(trial, tmp_path)
