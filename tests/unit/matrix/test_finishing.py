"""Derived files follow the cells of a run, and a stop signal while they are written does not lose them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.cells import cell_spec

from stepscope.core.errors import DataError, Interrupted
from stepscope.matrix import runner
from stepscope.matrix.work import CellEnded
from stepscope.records.cell import CellStatus

ENDED = CellEnded(cell=cell_spec(), status=CellStatus(cell_id="a", status="ok"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``run(heard_by_run, renew, finish)``: run_to_the_end where the run only tells of two cells that ended."""

    def run(*, renew: Callable[[], object], finish: Callable[[], str], then: Callable[[], None] = lambda: None) -> Any:
        def fake(_request: Any, on_event: Callable[[Any], None]) -> None:
            on_event(ENDED)
            on_event(ENDED)
            then()

        monkeypatch.setattr(runner, "run_matrix", fake)
        return runner.run_to_the_end(None, lambda _: None, renew=renew, finish=finish)  # type: ignore[arg-type]

    return run


def test_files_are_renewed_as_cells_end_and_written_once_more_at_the_end(run: Any) -> None:
    said: list[str] = []
    found = run(renew=lambda: said.append("renewed"), finish=lambda: said.append("all") or "rows")
    assert found == ("rows", None)
    assert (said[0], said[-1]) == ("renewed", "all")


def test_renewing_takes_a_small_part_of_the_time(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 4.0])
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    said: list[str] = []
    run(renew=lambda: said.append("renewed"), finish=lambda: "rows")
    assert said == ["renewed"], "3 s were spent on it: not again within a minute"


def test_what_cannot_be_renewed_does_not_stop_the_run(run: Any) -> None:
    def fail() -> None:
        raise DataError("damaged")

    assert run(renew=fail, finish=lambda: "rows") == ("rows", None)


def test_a_signal_while_everything_is_written_writes_it_again_and_is_told(run: Any) -> None:
    said: list[str] = []

    def finish() -> str:
        said.append("begun")
        if len(said) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        said.append("written")
        return "rows"

    rows, stopped = run(renew=lambda: None, finish=finish)
    assert said == ["begun", "begun", "written"]
    assert rows == "rows"
    assert isinstance(stopped, Interrupted)
    assert stopped.exit_code == 143


def test_a_run_that_is_stopped_is_written_too(run: Any) -> None:
    def stop() -> None:
        raise Interrupted("stopped", signum=signal.SIGINT)

    rows, stopped = run(renew=lambda: None, finish=lambda: "rows", then=stop)
    assert (rows, stopped.exit_code) == ("rows", 130)
