"""A matrix with sections: a sweep of collectives and training cells in one folder and one document, some at a time."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.runs import Cli, Done, Here

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(300)]

SECTIONED = """
version: 1
name: both
base: {workload: mlp, model: {size: tiny}, dataset: synthetic, dataset_options: {samples: 512}, lr: 0.05,
       micro_batch: 16, steps: 12}
include:
  - {section: [memory, growth], strategy: single, world_size: 1}
  - {section: memory, strategy: single, world_size: 1, micro_batch: 64}
  - {section: growth, strategy: ddp, axes: {world_size: [2, 3]}}
comm: {ops: all_reduce, sizes: "1K,64K", pairs: true, budget_s: 0.2}
measure: {warmup: 2, timeout_s: 60}
launch: {threads_per_rank: 1, oversubscribe: false}
"""


@pytest.fixture(scope="module")
def first(shared_cli: Cli) -> tuple[Cli, Done]:
    """``--only comm``: a run without a training cell."""
    (shared_cli.folder / "both.yaml").write_text(SECTIONED)
    return shared_cli, shared_cli("bench", "both.yaml", "--only", "comm", "-o", "run", "--json")


@pytest.fixture(scope="module")
def whole(first: tuple[Cli, Done]) -> tuple[Cli, Done]:
    """The other sections, in the folder of the first."""
    cli, _ = first
    return cli, cli("bench", "both.yaml", "--only", "memory,growth", "-o", "run", "--json")


def document(run: tuple[Cli, Done]) -> dict[str, Any]:
    _, done = run
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def test_the_sweep_alone_is_a_document_with_its_collectives_and_links(first: tuple[Cli, Done]) -> None:
    found = document(first)
    assert found["schema"] == "stepscope.suite/1"
    assert list(found["results"]) == ["communication"]
    (sweep,) = found["results"]["communication"]["allreduce"]
    assert [size["size_bytes"] for size in sweep["sizes"]] == [1024, 65536]
    assert [link["ranks"] for link in found["links"]] == [[0, 1], [1, 0], None]
    assert all(link["expected_bytes_per_s"] is None and link["unknown"] for link in found["links"])
    assert all(link["measured_bytes_per_s"] > 0 for link in found["links"])


def test_further_sections_join_the_document_and_measure_nothing_twice(whole: tuple[Cli, Done]) -> None:
    found = document(whole)
    cli, done = whole
    assert list(found["results"]) == ["communication", "memory", "growth"]
    assert "all_reduce" not in done.err  # the sweep is not in the sections asked for
    assert [row["micro_batch"] for row in found["results"]["memory"]["batches"]] == [16, 64]
    assert all(row["peak_memory_bytes"] > 0 for row in found["results"]["memory"]["batches"])
    # one process here runs on 2 cores, or on more: 3 ranks have a result or the reason why not
    status = {row["world_size"]: row["status"] for row in found["results"]["growth"]["cells"]}
    assert status[1] == status[2] == "ok"
    assert status[3] in ("ok", "unsupported")
    assert json.loads((cli.folder / "run" / "results.json").read_text())["results"] == found["results"]


def test_everything_again_finds_all_of_it_there(whole: tuple[Cli, Done]) -> None:
    cli, before = whole
    again = cli("bench", "both.yaml", "-o", "run", "--json")
    assert again.code == 0, again.err
    assert "0 cells to run" in again.err
    assert again.json()["results"] == before.json()["results"]
    lines = cli("bench", "both.yaml", "-o", "run").out.splitlines()
    headings = [line for line in lines if line in ("comm", "memory", "growth", "recommendations")]
    assert headings == ["comm", "memory", "growth", "recommendations"], "the recommendations last"
    assert cli("report", "run", "-o", "page", "--csv", "--html").code == 0
    assert len((cli.folder / "page" / "links.csv").read_text().splitlines()) == 4
    assert (cli.folder / "page" / "memory_batches.csv").exists()
    sources = cli("diagnose", "run", "--json").json()["sources"]
    assert {Path(source["path"]).name for source in sources} == {"run", "comm"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("both.yaml --only memory,nothing", "Known: comm, growth, memory"),
        ("both.yaml --only ,", "comm, memory, growth"),
        ("--preset quick --only memory", "no sections"),
        ("both.yaml -o run", "--only comm, then --only memory,growth"),
    ],
)
def test_sections_that_cannot_be_run_are_refused_with_those_that_can(here: Here, arguments: str, said: str) -> None:
    """The last: in a world that a launcher started, the sweep and the cells run one after the other."""
    (here.folder / "both.yaml").write_text(SECTIONED)
    world = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599"}
    done = here("bench", *arguments.split(), **(world if "-o" in arguments else {}))
    assert (done.code, said in done.err) == (2, True), done.err
    assert not (here.folder / "run").exists()


@pytest.mark.long
def test_the_sweep_alone_runs_in_a_started_world_and_the_cells_join_its_folder(fresh_cli: Cli) -> None:
    (fresh_cli.folder / "both.yaml").write_text(SECTIONED)
    swept = fresh_cli.under_torchrun("bench", "both.yaml", "--only", "comm", "-o", "run")
    assert swept.code == 0, swept.err
    trained = fresh_cli.under_torchrun("bench", "both.yaml", "--only", "growth", "-o", "run")
    assert trained.code == 0, trained.err
    found = json.loads((fresh_cli.folder / "run" / "results.json").read_text())
    assert list(found["results"]) == ["communication", "growth"]
    assert [row["status"] for row in found["results"]["growth"]["cells"] if row["world_size"] == 2] == ["ok"]


def test_a_stop_during_the_sweep_says_how_to_go_on_and_shows_what_is_there(cli: Cli) -> None:
    text = SECTIONED.replace("budget_s: 0.2", "budget_s: 30").replace("axes: {world_size: [2, 3]}", "world_size: 2")
    (cli.folder / "both.yaml").write_text(text)
    process = cli.start("bench", "both.yaml", "-o", "run", "--json")
    assert process.stderr is not None
    for line in process.stderr:
        if "all_reduce" in line and "measure" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "-o run`" in err
    assert [row["status"] for row in json.loads(out)["results"]["growth"]["cells"]] == ["ok", "ok"]
