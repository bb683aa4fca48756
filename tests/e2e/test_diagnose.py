"""``diagnose``, ``report``, ``compare`` and ``schema`` as a user runs them, on foreign results and on a run of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Here

from stepscope.report.files import LIST

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

STATED = ("--world-size", "exp002=4")


def experiment(folder: Path, name: str, *, ddp: bool, seconds: float) -> None:
    """One experiment in the layout of a project that logs epochs: a metrics.csv and its configuration."""
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "configs" / f"{name}.yaml").write_text(
        f'experiment_name: "{name}"\noutput_dir: "experiments/{name}"\nmodel: {{d_model: 64, num_layers: 2}}\n'
        f"data: {{dataset: toy}}\ntraining: {{epochs: 6, batch_size: 32}}\n"
        f"distributed: {{use_ddp: {str(ddp).lower()}}}\n"
    )
    place = folder / "experiments" / name
    place.mkdir(parents=True)
    rows = [
        f"{n},{0.7 / n:.4f},{seconds * (1.5 if n == 1 else 1):.4f},{0.7 / n:.4f},{0.6 + n / 50:.4f}"
        for n in range(1, 7)
    ]
    (place / "metrics.csv").write_text("\n".join(["epoch,train_loss,train_time,val_loss,val_acc", *rows]) + "\n")


@pytest.fixture
def project(tmp_path: Path) -> str:
    folder = tmp_path / "project"
    experiment(folder, "exp001_one", ddp=False, seconds=10.0)
    experiment(folder, "exp002_four", ddp=True, seconds=3.0)
    return str(folder)


def test_diagnose_says_what_it_looked_at_and_json_has_all_of_it(here: Here, project: str) -> None:
    done = here("diagnose", project, *STATED)
    assert done.code == 0, done.err
    assert "2 training runs" in done.out
    assert "83" in done.out  # 10 s / 3 s on 4 ranks: 3.33x, 83%
    document = here("diagnose", project, *STATED, "--json").json()
    assert document["schema"] == "stepscope.diagnose/1"
    four = next(row for row in document["scaling"] if row["world_size"] == 4)
    assert four["speedup"] == pytest.approx(10 / 3, rel=1e-3)
    assert four["efficiency"] == pytest.approx(10 / 12, rel=1e-3)
    assert four["rating"] == "good"
    assert {each["rule"] for each in document["skipped"]} >= {"straggler"}
    assert all(each["reason"] for each in document["skipped"])


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("diagnose", "project"), 2, "--world-size"),
        (("diagnose", "project", *STATED, "--rules", "stragler"), 2, "did you mean"),
        (("diagnose", "project", *STATED, "--fail-if", "nonsense > "), 2, "--fail-if"),
        (("diagnose", "project", "--world-size", "exp002=many"), 2, "not a number of ranks"),
        (("diagnose", "project", "--world-size", "exp003=4"), 2, "exp003"),
        (("diagnose", "project", *STATED, "--scaling", "strange"), 2, "--scaling"),
        (("diagnose", "project", *STATED, "--fail-if", "lowest_efficiency < 0.8"), 0, ""),
        (("diagnose", "project", *STATED, "--fail-if", "lowest_efficiency < 0.9"), 6, "lowest_efficiency"),
        (("diagnose", "nowhere"), 2, "nowhere"),
        (("diagnose", "project/configs/notes.txt"), 2, "notes.txt"),
        (("report", "project", *STATED, "--datasets", "tox", "--csv", "-o", "out"), 2, "did you mean"),
        (("compare", "project"), 2, ""),
        (("compare", "project", "project"), 2, ""),
        (("schema", "training_rum"), 2, "did you mean"),
    ],
)
@pytest.mark.usefixtures("project")
def test_conditions_and_mistakes_have_their_exit_codes(here: Here, line: tuple[str, ...], code: int, said: str) -> None:
    (here.folder / "project" / "configs" / "notes.txt").write_text("sea and sun\n")
    done = here(*line)
    assert (done.code, said in done.err, "Traceback" in done.err) == (code, True, False), done.err


def test_the_protocol_names_five_steps_with_what_to_run_next(here: Here, project: str) -> None:
    done = here("diagnose", project, *STATED, "--protocol")
    assert done.code == 0, done.err
    assert [line[:2] for line in done.out.splitlines() if re.match(r"\d\. ", line)] == [f"{n}." for n in range(1, 6)]
    assert "$ stepscope" in done.out


def test_a_report_of_foreign_results_lies_here_and_not_beside_them(cli: Cli, project: str) -> None:
    before = sorted(Path(project).rglob("*"))
    done = cli("report", project, *STATED)
    assert done.code == 0, done.err
    assert sorted(Path(project).rglob("*")) == before
    folder = cli.folder / "stepscope-report" / "project"
    for name in ("report.html", "comprehensive_summary.csv", "summary_table.tex", "performance_report.txt"):
        assert (folder / name).stat().st_size > 100, name
    assert list(folder.rglob("*_speedup_efficiency.png"))
    assert list(folder.rglob("*_epoch_time_detailed.png"))
    page = (folder / "report.html").read_text()
    assert "http://" not in re.sub(r"http://www\.w3\.org/[\w/]+", "", page)


def test_only_the_formats_asked_for_are_written(here: Here, project: str) -> None:
    done = here("report", project, *STATED, "--datasets", "toy", "--csv", "-o", "out", "--json")
    assert done.code == 0, done.err
    written = {path.name for path in (here.folder / "out").rglob("*") if path.is_file()} - {LIST}
    assert {Path(name).suffix for name in written} == {".csv"}
    assert all((here.folder / path).is_file() for path in done.json()["files"])


def test_two_projects_are_compared_run_by_run(here: Here, project: str) -> None:
    experiment(here.folder / "after", "exp001_one", ddp=False, seconds=5.0)
    experiment(here.folder / "after", "exp002_four", ddp=True, seconds=3.0)
    done = here("compare", project, "after", *STATED, "--json")
    assert done.code == 0, done.err
    figures = [f for f in done.json()["figures"] if f["metric"] == "epoch_ns"]
    assert [round(f["ratio"], 2) for f in figures] == [0.5, 1.0]
    assert [f["verdict"] for f in figures] == ["better", "no significant difference"]
    failing = here("compare", "after", project, *STATED, "--fail-if", "epoch_ns > 5%")
    assert (failing.code, "+100" in failing.err) == (6, True)


def test_schemas_describe_what_the_files_say(here: Here) -> None:
    everything = here("schema").json()
    assert {"run/1", "training_run/2", "diagnose/1", "compare/1"} <= set(everything["schemas"])
    assert here("schema", "training_run").json()["properties"]["schema"] == {"const": "stepscope.training_run/2"}


def test_a_run_with_traces_is_diagnosed_from_both_and_its_report_lies_in_its_folder(cli: Cli, here: Here) -> None:
    done = cli("bench", cli.matrix("include: [{strategy: single, world_size: 1}]\n"), "-o", "run", "--profile")
    assert done.code == 0, done.err
    document = here("diagnose", "run", "--json").json()
    assert document["scaling"]
    skipped = {each["rule"] for each in document["skipped"]}
    assert "exposed-communication" not in skipped
    assert "straggler" not in skipped or document["findings"]
    assert cli("report", "run", "--html", "--txt").code == 0
    assert (cli.folder / "run" / "report" / "report.html").is_file()
    assert "naive" in (cli.folder / "run" / "report" / "performance_report.txt").read_text()
