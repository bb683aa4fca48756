"""JSON of memory a rank by phase, with plain or sharded optimizer state."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError

KEY = "optimizer_memory"
GIB = 2**30


def phase(peak: float, optimizer: float) -> dict[str, Any]:
    return {"allocated_gib": peak, "phase_peak_gib": peak, "parameters_gib": 2.0, "gradients_gib": 2.0,
            "optimizer_states_gib": optimizer, "other_gib": 0.5}  # fmt: skip


def result(mode: str = "baseline", *, ranks: int = 2, optimizer: float = 4.0) -> dict[str, Any]:
    per_rank = [
        {"rank": r, "phases": {"before": phase(5.0, 0.0), "after": phase(8.0 + r, optimizer)}} for r in range(ranks)
    ]
    return {"mode": mode, "mixed_precision": True, "compute_dtype": "bf16", "num_parameters": 500, "iteration_ms": 20.5,
            "memory": {"per_rank": per_rank, "run_peak": {"phase": "after", "rank": ranks - 1,
                                                          "phase_peak_gib": 7.0 + ranks}}}  # fmt: skip


def document(*results: dict[str, Any]) -> dict[str, Any]:
    return {"config": {"world_size": 2, "batch_size": 4, "context_length": 16, "d_model": 8, "num_layers": 3,
                       "steps": 10}, "results": list(results)}  # fmt: skip


def test_the_peak_is_that_of_the_fullest_rank(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "m.json", document(result())), key=KEY)
    (run,) = imported.runs
    assert (run.run_id, run.strategy, run.world_size, run.precision) == ("m", "baseline", 2, "bf16")
    assert run.peak_memory_bytes == 9 * GIB
    assert dict(run.memory) == {
        "parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer": 4 * GIB, "other": GIB // 2,
    }  # fmt: skip
    assert "peaks by phase: before 5 GiB, after 9 GiB" in run.notes
    assert run.step_ns is not None
    assert (run.step_ns.value, run.step_ns.n) == (20.5e6, 10)
    assert any("nothing to compare" in note for note in imported.notes)


def test_two_modes_can_be_compared(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "m.json", document(result(), result("sharded", optimizer=2.0))), key=KEY)
    runs = by_id(imported)
    assert {name: run.memory["optimizer"] for name, run in runs.items()} == {
        "m-baseline": 4 * GIB, "m-sharded": 2 * GIB,
    }  # fmt: skip
    assert len({run.group for run in runs.values()}) == 1
    assert not any("nothing to compare" in note for note in imported.notes)


def _without_rank(found: dict[str, Any]) -> None:
    del found["memory"]["per_rank"][0]


def _rank_twice(found: dict[str, Any]) -> None:
    found["memory"]["per_rank"][1] = copy.deepcopy(found["memory"]["per_rank"][0])


def _other_peak(found: dict[str, Any]) -> None:
    found["memory"]["run_peak"]["phase_peak_gib"] = 8.0


def _no_phases(found: dict[str, Any]) -> None:
    for rank in found["memory"]["per_rank"]:
        rank |= {"phases": {}, "optimizer_states_gib": 1.0}


def _odd_rank(found: dict[str, Any]) -> None:
    found["memory"]["per_rank"][1]["rank"] = "one"


def _negative(found: dict[str, Any]) -> None:
    found["memory"]["per_rank"][1]["phases"]["after"]["gradients_gib"] = -1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_without_rank, "the ranks 0 to 1"),
        (_rank_twice, "the ranks 0 to 1"),
        (_other_peak, "run_peak contradicts"),
        (_no_phases, "at least one phase"),
        (_odd_rank, "rank is 'one'"),
        (_negative, "gradients_gib is -1"),
    ],
)
def test_damage_is_refused(tmp_path: Path, damage: Any, says: str) -> None:
    found = result()
    damage(found)
    path = write(tmp_path / "m.json", document(found))
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
