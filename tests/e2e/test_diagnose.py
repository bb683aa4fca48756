"""``diagnose``, ``report``, ``compare`` and ``schema`` as a user runs them, on foreign results and on a run of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Done

from stepscope.report.files import LIST

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]


def experiment(folder: Path, name: str, *, ddp: bool, seconds: float, loss: float, seen: str = "toy") -> None:
    """One experiment in the layout of a project that logs epochs: a metrics.csv and its configuration."""
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "configs" / f"{name}.yaml").write_text(
        f'experiment_name: "{name}"\noutput_dir: "experiments/{name}"\nmodel: {{d_model: 64, num_layers: 2}}\n'
        f"data: {{dataset: {seen}}}\ntraining: {{epochs: 6, batch_size: 32}}\n"
        f"distributed: {{use_ddp: {str(ddp).lower()}}}\n"
    )
    place = folder / "experiments" / name
    place.mkdir(parents=True)
    rows = [
        f"{epoch},{loss / epoch:.4f},{seconds * (1.5 if epoch == 1 else 1):.4f},{loss / epoch:.4f},{0.6 + epoch / 50:.4f}"
        for epoch in range(1, 7)
    ]
    (place / "metrics.csv").write_text("\n".join(["epoch,train_loss,train_time,val_loss,val_acc", *rows]) + "\n")


@pytest.fixture
def project(cli: Cli) -> Path:
    folder = cli.folder / "project"
    experiment(folder, "exp001_one", ddp=False, seconds=10.0, loss=0.7)
    experiment(folder, "exp002_four", ddp=True, seconds=3.0, loss=0.7)
    return folder


STATED = ("--world-size", "exp002=4")


def test_diagnose_says_what_it_looked_at_and_ranks_what_it_found(cli: Cli, project: Path) -> None:
    done = cli("diagnose", str(project), *STATED)
    assert done.code == 0, done.err
    assert "2 training runs" in done.out
    assert "83" in done.out  # 10 s / 3 s on 4 ranks: 3.33x, 83%
    assert "Traceback" not in done.err


def test_a_fact_that_no_file_tells_is_asked_for_by_name(cli: Cli, project: Path) -> None:
    done = cli("diagnose", str(project))
    assert done.code == 2
    assert "exp002" in done.err
    assert "--world-size" in done.err


def test_json_is_one_document_with_findings_skipped_rules_and_scaling(cli: Cli, project: Path) -> None:
    document = cli("diagnose", str(project), *STATED, "--json").json()
    assert document["schema"] == "stepscope.diagnose/1"
    four = next(row for row in document["scaling"] if row["world_size"] == 4)
    assert four["speedup"] == pytest.approx(10 / 3, rel=1e-3)
    assert four["efficiency"] == pytest.approx(10 / 12, rel=1e-3)
    assert four["rating"] == "good"
    assert {each["rule"] for each in document["skipped"]} >= {"straggler"}
    assert all(each["reason"] for each in document["skipped"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rules", "stragler"), "did you mean"),
        (("--fail-if", "nonsense > "), "--fail-if"),
        (("--world-size", "exp002=many"), "not a number of ranks"),
        (("--world-size", "exp003=4"), "exp003"),
        (("--scaling", "strange"), "--scaling"),
    ],
)
def test_a_typo_is_told_in_a_sentence(cli: Cli, project: Path, arguments: tuple[str, ...], said: str) -> None:
    done = cli("diagnose", str(project), *(() if "--world-size" in arguments else STATED), *arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_path_that_nothing_reads_is_refused_with_what_could_be(cli: Cli) -> None:
    assert cli("diagnose", "nowhere").code == 2
    (cli.folder / "holiday.txt").write_text("sea and sun\n")
    done = cli("report", "holiday.txt")
    assert done.code == 2
    assert "holiday.txt" in done.err
    assert "Traceback" not in done.err


def test_fail_if_ends_with_6_and_says_why(cli: Cli, project: Path) -> None:
    assert cli("diagnose", str(project), *STATED, "--fail-if", "lowest_efficiency < 0.8").code == 0
    done = cli("diagnose", str(project), *STATED, "--fail-if", "lowest_efficiency < 0.9")
    assert done.code == 6
    assert "lowest_efficiency" in done.err


def test_the_protocol_names_five_steps_with_what_to_run_next(cli: Cli, project: Path) -> None:
    done = cli("diagnose", str(project), *STATED, "--protocol")
    assert done.code == 0, done.err
    assert [line[:2] for line in done.out.splitlines() if re.match(r"\d\. ", line)] == [f"{n}." for n in range(1, 6)]
    assert "$ stepscope" in done.out


def test_every_rule_is_listed(cli: Cli) -> None:
    done = cli("diagnose", "--rules", "list")
    assert done.code == 0
    assert len(done.out.splitlines()) >= 30
    assert "duplicated-data" in done.out


def test_a_report_of_foreign_results_lies_here_and_not_beside_them(cli: Cli, project: Path) -> None:
    before = sorted(project.rglob("*"))
    done = cli("report", str(project), *STATED)
    assert done.code == 0, done.err
    assert sorted(project.rglob("*")) == before
    folder = cli.folder / "stepscope-report" / "project"
    for name in ("report.html", "comprehensive_summary.csv", "summary_table.tex", "performance_report.txt"):
        assert (folder / name).stat().st_size > 100, name
    assert list(folder.rglob("*_speedup_efficiency.png"))
    assert list(folder.rglob("*_epoch_time_detailed.png"))
    page = (folder / "report.html").read_text()
    assert "http://" not in re.sub(r"http://www\.w3\.org/[\w/]+", "", page)


def test_only_the_formats_asked_for_are_written(cli: Cli, project: Path) -> None:
    done = cli("report", str(project), *STATED, "--csv", "-o", "out", "--json")
    assert done.code == 0, done.err
    written = {path.name for path in (cli.folder / "out").rglob("*") if path.is_file()} - {LIST}
    assert {Path(name).suffix for name in written} == {".csv"}
    assert all(Path(cli.folder / path).is_file() for path in done.json()["files"])


def test_data_sets_are_chosen_by_name(cli: Cli, project: Path) -> None:
    assert cli("report", str(project), *STATED, "--datasets", "toy", "--csv", "-o", "out").code == 0
    done = cli("report", str(project), *STATED, "--datasets", "tox", "--csv", "-o", "out")
    assert done.code == 2
    assert "did you mean" in done.err


def test_two_projects_are_compared_run_by_run(cli: Cli, project: Path) -> None:
    other = cli.folder / "after"
    experiment(other, "exp001_one", ddp=False, seconds=5.0, loss=0.7)
    experiment(other, "exp002_four", ddp=True, seconds=3.0, loss=0.7)
    done = cli("compare", str(project), str(other), *STATED, "--json")
    assert done.code == 0, done.err
    figures = [f for f in done.json()["figures"] if f["metric"] == "epoch_ns"]
    assert [round(f["ratio"], 2) for f in figures] == [0.5, 1.0]
    assert [f["verdict"] for f in figures] == ["better", "no significant difference"]
    failing = cli("compare", str(other), str(project), *STATED, "--fail-if", "epoch_ns > 5%")
    assert failing.code == 6
    assert "+100" in failing.err


def test_comparing_one_run_or_a_run_with_itself_is_refused(cli: Cli, project: Path) -> None:
    assert cli("compare", str(project)).code == 2
    assert cli("compare", str(project), str(project)).code == 2


def test_schemas_describe_what_the_files_say(cli: Cli) -> None:
    everything = cli("schema").json()
    assert {"run/1", "training_run/2", "diagnose/1", "compare/1"} <= set(everything["schemas"])
    row = cli("schema", "training_run").json()
    assert row["properties"]["schema"] == {"const": "stepscope.training_run/2"}
    done = cli("schema", "training_rum")
    assert done.code == 2
    assert "did you mean" in done.err


@pytest.fixture(scope="module")
def measured(shared_cli: Cli) -> tuple[Done, Path]:
    """Two strategies on two ranks with traces, as `demo` does it in small."""
    matrix = shared_cli.matrix("include: [{strategy: single, world_size: 1}]\n")
    done = shared_cli("bench", matrix, "-o", "run", "--profile")
    return done, shared_cli.folder / "run"


def test_a_run_with_traces_is_diagnosed_from_both(shared_cli: Cli, measured: tuple[Done, Path]) -> None:
    assert measured[0].code == 0, measured[0].err
    document = shared_cli("diagnose", str(measured[1]), "--json").json()
    assert document["scaling"]
    skipped = {each["rule"] for each in document["skipped"]}
    assert "exposed-communication" not in skipped
    assert "straggler" not in skipped or document["findings"]


def test_a_runs_report_lies_in_its_folder(shared_cli: Cli, measured: tuple[Done, Path]) -> None:
    done = shared_cli("report", str(measured[1]), "--html", "--txt")
    assert done.code == 0, done.err
    assert (measured[1] / "report" / "report.html").is_file()
    text = (measured[1] / "report" / "performance_report.txt").read_text()
    assert "naive" in text
