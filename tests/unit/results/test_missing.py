"""Asking for facts that a comparison needs, all at once, and only where it needs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evidence import epochs, evidence, run

from stepscope.core.errors import UsageError
from stepscope.records.imported import Stated
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence
from stepscope.results.joining import require_columns, require_stated
from stepscope.results.open import load_evidence

UNKNOWN = {"world_size": "the configuration says DDP"}


def timed(run_id: str, *, group: str = "toy", ranks: int | None = None, **known: object) -> TrainingRun:
    missing = known.pop("missing", UNKNOWN if ranks is None else {})
    return run(run_id, ranks=ranks, group=group, epochs=epochs(seconds=[1.0, 1.0]), missing=missing, **known)


def test_runs_without_results_and_facts_known_by_now_need_nothing() -> None:
    require_stated(evidence(timed("a", ranks=1), timed("b", ranks=2), run("c", ranks=None, missing=UNKNOWN)))
    require_stated(evidence(timed("a", ranks=1), timed("b", ranks=4, missing=UNKNOWN)))


def test_the_kind_of_scaling_matters_between_different_numbers_of_ranks() -> None:
    open_ = {"scaling": "neither batch is told"}
    require_stated(evidence(timed("a", ranks=2), timed("b", ranks=2, missing=open_)))
    with pytest.raises(UsageError) as caught:
        require_stated(evidence(timed("a", ranks=1), timed("b", ranks=2, missing=open_)))
    assert caught.value.fix == "state what you know: --scaling strong, or --scaling weak"


def test_what_is_stated_of_no_run_is_a_mistake() -> None:
    found = evidence(timed("exp021", ranks=4))
    require_stated(found, Stated(world_size={"exp021": 4}))
    with pytest.raises(UsageError, match="did you mean 'exp021'"):
        require_stated(found, Stated(world_size={"exp012": 4}))
    found = evidence(timed("a", ranks=1, scaling="strong"), timed("b", ranks=2, scaling="strong"))
    require_stated(found, Stated(scaling="strong"))
    with pytest.raises(UsageError, match="contradicts the 2 runs: strong by their own settings"):
        require_stated(found, Stated(scaling="weak"))
    with pytest.raises(UsageError, match="no training runs were given"):
        require_stated(evidence(), Stated(scaling="weak"))


CHART = "Step,a - step_time,a - step_time__MIN,a - step_time__MAX\n1,0.5,0.5,0.5\n2,0.5,0.5,0.5\n"
TABLE = "gpus,tok\n1,10\n2,19\n"


def test_a_stated_column_is_one_of_some_source(tmp_path: Path) -> None:
    chart, table = tmp_path / "chart.csv", tmp_path / "runs.csv"
    chart.write_text(CHART)
    table.write_text(TABLE)

    def read(columns: dict[str, str], *paths: Path) -> Evidence:
        stated = Stated(columns=columns)
        found = load_evidence(paths, stated=stated)
        require_columns(found.sources, stated)
        return found

    (run,) = read({"step_time": "step_time_s"}, chart).runs
    assert run.step_ns is not None
    assert len(read({"step_time": "step_time_s", "tok": "tokens_per_s"}, chart, table).runs) == 3
    for columns, paths, says in (
        ({"stp_time": "step_time_s"}, (chart,), "chart.csv has no column 'stp_time'; did you mean 'step_time'?"),
        ({"tok": "tokens_per_s", "stp_time": "-"}, (table,), "runs.csv has no column 'stp_time'"),
        (
            {"tok": "tokens_per_s", "stp_time": "-"},
            (chart, table),
            "has a column 'stp_time'; did you mean 'step_time'?",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            read(columns, *paths)
        assert says in caught.value.what
