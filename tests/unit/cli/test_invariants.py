"""What always holds (docs/reference/metrics.md), in the documents of every command over real and generated data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Ran
from tests.invariants import broken
from tests.trace_builder import build, write_job

from stepscope.cli.main import main

pytestmark = pytest.mark.usefixtures("fresh_consoles")

SHARED = Path(__file__).parents[4] / "shared" / "data"
Document = Callable[..., dict[str, Any] | None]


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch, ran: Ran) -> Document:
    """The document of a command; None where it refuses its input."""

    def run(*words: str | Path) -> dict[str, Any] | None:
        line = [str(word) for word in (*words, "--json")]
        monkeypatch.setattr(sys, "argv", ["stepscope", *line])
        code, out, err = ran(*line)
        if code == 2:
            assert err, "a refusal has its reason"
            return None
        return json.loads(out)  # type: ignore[no-any-return]

    return run


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped examples, a job on gloo, and an example whose files are cut inside a step."""
    folder = tmp_path_factory.mktemp("invariants")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stepscope", "example"])
        with pytest.raises(SystemExit):
            main(["example", str(folder)])
    write_job(build(world=2, steps=3, device="gloo", late={1: 200_000}), folder / "gloo")
    (folder / "cut").mkdir()
    for file in (folder / "ddp").glob("*.json"):
        text = file.read_text()
        (folder / "cut" / file.name).write_text(text[: len(text) * 4 // 5])
    return folder


@pytest.mark.parametrize(
    "words",
    [
        *(["trace", name, "--show", "all"] for name in ("ddp", "gloo", "cut")),
        *(["diagnose", name] for name in ("logs", "bad-scaling", "cut")),
        ["compare", "naive", "ddp"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_examples_keep_what_always_holds(words: list[str], jobs: Path, document: Document) -> None:
    known = {each.name for each in jobs.iterdir()}
    found = document(*(jobs / word if word in known else word for word in words))
    assert found is not None
    assert broken(found) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["straggler", "naive", "ddp", "hang", "bad-scaling", "logs", "sockets", "gloo", "cut"])
def test_every_example_does_in_every_document(name: str, jobs: Path, document: Document, tmp_path: Path) -> None:
    told = [
        document("trace", jobs / name, "--show", "all"),
        document("diagnose", jobs / name),
        document("report", jobs / name, "--md", "-o", tmp_path / "out"),
    ]
    assert any(told)
    assert [text for each in told if each is not None for text in broken(each)] == []


def _sets() -> list[Path]:
    kinds = (
        "traces", "nsys_sqlite", "results", "nccl_tests", "nccl_debug", "collective_tables", "flight_recorder", "published",
    )  # fmt: skip
    return [
        path
        for kind in kinds
        for path in sorted((SHARED / kind).glob("*"))
        if path.name not in ("README.md", "SOURCES.tsv")
    ]


@pytest.mark.long
@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not beside this checkout")
@pytest.mark.parametrize("path", _sets(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_real_set_does_in_every_document(path: Path, document: Document, tmp_path: Path) -> None:
    told = [document("diagnose", path), document("report", path, "--md", "-o", tmp_path / "out")]
    if path.parent.name in ("traces", "nsys_sqlite"):
        told.append(document("trace", path, "--show", "all"))
        assert all(told)
    assert [text for each in told if each is not None for text in broken(each)] == []


PARTS = {"compute_ns": 5, "exposed_comm_ns": 2, "exposed_memory_ns": 1, "idle_ns": 2, "window_ns": 10}
ROW = {"speedup": 3.0, "efficiency": 0.75, "world_size": 4, "baseline_world_size": 1, "rating": "fair"}


@pytest.mark.parametrize(
    "part",
    [
        {**PARTS, "idle_ns": 3},
        {"compute_fraction": 0.5, "exposed_comm_fraction": 0.2, "exposed_memory_fraction": 0.1, "idle_fraction": 0.3},
        {"comm_ns": 5, "exposed_comm_ns": 6},
        {"comm_ns": 5, "exposed_comm_ns": 3, "overlap_ns": 1},
        {"mfu": 0.40, "hfu": 0.39},
        {"stake_fraction": 1.01},
        {"share": -0.01},
        {"mfu": 1.37},
        {"waiting_ns": -1},
        {"value": float("nan")},
        {"low": 2, "value": 1, "high": 3},
        {"min_ns": 1, "median_ns": 4, "max_ns": 3},
        {**ROW, "efficiency": 0.8},
        {**ROW, "speedup": 5.48, "efficiency": 1.37, "rating": "excellent"},
    ],
)
def test_a_document_that_breaks_one_is_found(part: dict[str, Any]) -> None:
    assert broken({"schema": "stepscope.diagnose/1", "some": [part]})


def test_what_breaks_none_is_left_alone() -> None:
    sound = [PARTS, ROW, {"mfu": 0.4, "hfu": 0.4}, {"mfu": 1.2, "error": "e"}]
    assert broken({"schema": "stepscope.diagnose/1", "some": sound}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"phases": [{"rank": 0, **PARTS, "comm_ns": 3}, {"rank": 0, **PARTS, "comm_ns": 0}]},
        {"idle": [{"rank": 0, "idle_ns": 1}]},
        {"steps": [{"rank": 0, **PARTS}, {"rank": 0, **PARTS}]},
    ],
)
def test_a_rank_whose_sections_do_not_sum_to_it_is_found(change: dict[str, Any]) -> None:
    whole = {"schema": "stepscope.trace/1", "ranks": [{"rank": 0, **PARTS, "comm_ns": 3}]}
    assert broken(whole) == []
    assert broken({**whole, **change})


def test_an_efficiency_above_its_bound_needs_its_reason() -> None:
    row = {**ROW, "run_id": "r", "speedup": 4.4, "efficiency": 1.1, "rating": None}
    said = {"schema": "stepscope.diagnose/1", "scaling": [row], "findings": [{"rule": "impossible-figures"}]}
    assert broken(said) == []
    assert broken({**said, "findings": []})
