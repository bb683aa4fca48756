"""``stepscope diagnose``: options that do not go together, checks that could not be made, and how findings are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench_evidence import bench, made
from tests.commands import Ran
from tests.diaries import profile_folder, simulate
from tests.nccl_log import Talk
from tests.nccl_tests_log import log

from stepscope.cli.findings import print_finding, show_runs
from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Advice, Finding
from stepscope.report.render.screen import SCREEN_LINES
from stepscope.results.joining import derived

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Collectives alone: most rules have nothing to look at."""
    path = tmp_path / "all_reduce.log"
    path.write_text(log([(1 << n, 10.0 + n) for n in range(10, 16)]))
    return path


def test_the_list_of_rules_is_json_when_json_is_asked_for(ran: Ran) -> None:
    code, out, _ = ran("diagnose", "--rules", "list", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "stepscope.rules/1"
    straggler = next(rule for rule in document["rules"] if rule["name"] == "straggler")
    assert (straggler["needs"], straggler["any_of"]) == ([], ["cells", "traces", "arrivals"])
    assert straggler["thresholds"]["p"]["value"] == 0.05
    assert "References" in straggler["page"]


def test_explain_takes_several_rules_and_says_no_other_option(ran: Ran) -> None:
    _, out, _ = ran("diagnose", "--explain", "hang,straggler")
    assert out.startswith("hang: ")
    assert "\nstraggler: " in out
    code, _, err = ran("diagnose", "--explain", "")
    assert (code, "--explain is empty" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--protocol", "--json"), "--protocol does not go with --json"),
        (("--rules", "hang", "--fail-if", "straggler"), "--rules hang,straggler"),
        (("--cell", "abc"), "no run folder of stepscope bench"),
        (("--fail-if", "stragler"), "did you mean 'straggler'?"),
        (("--fail-if", "nonsense"), "or a condition on problem_count"),
        (("--fail-if", "problem_count >"), "--fail-if 'problem_count > 0'"),
    ],
)
def test_a_mistake_is_one_short_message(ran: Ran, measured: Path, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = ran("diagnose", measured, *arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert len(err) < 500  # not all rules by name


@pytest.mark.parametrize("condition", ["hang", "lowest_speedup < 1"])
def test_a_check_that_nobody_could_make_passes_and_says_so(ran: Ran, measured: Path, condition: str) -> None:
    code, _, err = ran("diagnose", measured, "--fail-if", condition)
    assert code == 0
    assert f"--fail-if '{condition}' was not checked" in err


def test_a_check_that_holds_ends_with_6_and_one_that_does_not_says_nothing(ran: Ran, measured: Path) -> None:
    assert ran("diagnose", measured, "--fail-if", "finding_count < 99")[0] == 6
    code, _, err = ran("diagnose", measured, "--fail-if", "wrong-results")
    assert (code, err) == (0, "")


def test_a_rule_for_good_news_gets_no_tick_for_its_silence(ran: Ran, tmp_path: Path) -> None:
    for name, seconds, ddp in (("one", 10.0, False), ("two", 12.0, True)):
        folder = tmp_path / "experiments" / name
        folder.mkdir(parents=True)
        rows = "".join(f"{e},{1 / e},{seconds}\n" for e in range(1, 9))
        (folder / "metrics.csv").write_text("epoch,train_loss,train_time\n" + rows)
        (tmp_path / f"{name}.yaml").write_text(
            f"output_dir: experiments/{name}\nmodel: {{d_model: 64}}\ndata: {{dataset: toy}}\n"
            f"distributed: {{use_ddp: {str(ddp).lower()}}}\n"
        )
    _, out, _ = ran("diagnose", tmp_path, "--world-size", "two=2", "--all")
    assert "· good-scaling: best efficiency" in out
    assert "✓ impossible-figures" in out
    assert "✓ good-scaling" not in out


def test_notes_beyond_a_dozen_wait_for_all(ran: Ran, tmp_path: Path) -> None:
    for number in range(20):
        text = log([(1 << n, 10.0 + n) for n in range(10, 16)], average="250.1")
        (tmp_path / f"all_reduce{number}.log").write_text(text)
        (tmp_path / f"empty{number}.log").write_text("nothing here\n")
    _, out, _ = ran("diagnose", tmp_path)
    assert "left out  20 files, 260 B: other files (no format that stepscope reads)" in out
    assert out.count("\n! ") == 13
    assert "8 more notes: --all" in out
    _, out, _ = ran("diagnose", tmp_path, "--all")
    assert out.count("\n! ") == 20


def test_a_command_is_printed_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    command = "stepscope trace " + "a-folder/" * 20 + " --show overlap,collectives"
    print_finding(
        Finding(
            rule="r",
            severity="problem",
            title="t",
            evidence=("a word-with-hyphens " * 8,),
            stake_fraction=0.044,
            confidence="measured",
            advice=(Advice(text="do this", command=command),),
        ),
        confidence=True,
    )
    lines = capsys.readouterr().out.splitlines()
    assert f"      $ {command}" in lines
    assert "    [r, up to 4.4% of the step: measured]" in lines
    assert not any(line.endswith("-") for line in lines)


def test_how_figures_were_taken_is_said_once_and_leaves_nothing_unread(ran: Ran, tmp_path: Path) -> None:
    for name in ("old", "new"):
        folder = tmp_path / "experiments" / name
        folder.mkdir(parents=True)
        rows = [f"{n},{1 / n},{10 + n % 3 / 10},{1 / n},0.{30 + n}" for n in range(1, 13)]
        table = "\n".join(["epoch,train_loss,train_time,val_loss,val_acc", *rows])
        (folder / "metrics.csv").write_text(table + "\n", encoding="utf-8")
    places = [str(tmp_path / "experiments" / name / "metrics.csv") for name in ("old", "new")]
    code, out, _ = ran("diagnose", *places, "--world-size", "old=1,new=1")
    assert code == 0
    assert out.count("epoch times are those that the training process measured") == 1
    assert "what was not read" not in out
    assert "found no problem" in out.splitlines()[0]


def test_the_verdict_comes_first_then_findings_then_files(ran: Ran, tmp_path: Path) -> None:
    ran("example", tmp_path / "jobs")
    (tmp_path / "jobs" / "hang" / "notes.txt").write_text("restart on Monday\n")
    _, out, _ = ran("diagnose", tmp_path / "jobs" / "hang")
    lines = out.splitlines()
    assert lines[0].startswith("Rank 5 never entered")
    assert out.index("  why ") < out.index("  next ") < out.index("  from   hang: ")
    assert out.index("Rank 5 never entered") < out.index("read      8 files") < out.index("left out")


def test_a_run_begins_with_its_first_finding_and_two_key_figures(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [made("one", strategy="single", world_size=1), made("two", strategy="ddp", world_size=2)]
    measured = derived(bench(*cells))
    diagnosis = diagnose(measured)
    show_runs(measured, diagnosis, Path("runs/quick"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert lines[-1] == ""
    assert diagnosis.findings[0].title[1:] in lines[0]
    assert any("peak memory of a rank" in line for line in lines)
    assert "stepscope diagnose runs/quick" in lines[-2]


def test_more_epochs_than_there_are_cannot_be_dropped(tmp_path: Path, ran: Ran) -> None:
    path = tmp_path / "log.csv"
    path.write_text("gpus,epoch,epoch_time,loss\n" + "".join(f"1,{n},{9.0 + n % 2},1.0\n" for n in range(1, 5)))
    assert ran("diagnose", path, "--drop-epochs", "3")[0] == 0
    code, _, err = ran("diagnose", path, "--drop-epochs", "4")
    assert code == 2
    assert "--drop-epochs 4 leaves no epoch" in err
    assert "no run has more than 4 timed epochs" in err
    assert "leave out at most 3" in err


def nccl_logged(folder: Path) -> Path:
    talk = Talk()
    lines = [line for text in talk.texts() for line in text]
    lines += [talk.say(0, f"AllReduce: {n << 20} Bytes -> Algo RING proto LL128 time 1.0") for n in (1, 64)]
    torn = talk.say(1, "Channel 00/0 : 1[1] -> 2[0] [se") + talk.say(0, "NCCL_ALGO set by environment to Ring")
    path = folder / "nccl.log"
    path.write_text("\n".join([*lines, torn, ""]))
    return path


def test_an_nccl_log_is_shown_as_tables_and_its_torn_lines_are_counted(
    tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = nccl_logged(tmp_path)
    _, out, _ = ran("diagnose", path)
    rows = [line.split() for line in out.splitlines() if line.startswith("0xabc1")]
    assert rows[0][:5] == ["0xabc1", "4", "2", "2.27.3+cuda12.9", "IB"]
    assert {row[1] for row in rows[1:3]} == {"NET/IB", "P2P/CUMEM/read"}
    assert rows[3] == ["0xabc1", "AllReduce", "1", "MiB", "64", "MiB", "Ring", "LL128", "2"]
    assert f"{path}: 1 torn line" in out
    folder = tmp_path / "out"
    ran("report", path, "-o", folder, "--txt")
    (text,) = folder.glob("*.txt")
    written = [line.split() for line in text.read_text().splitlines() if line.startswith("0xabc1")]
    assert [row[:3] for row in written] == [row[:3] for row in rows]


def test_beside_collectives_what_nccl_logged_is_shown_on_demand(tmp_path: Path, ran: Ran, measured: Path) -> None:
    path = nccl_logged(tmp_path)
    _, out, _ = ran("diagnose", path, measured)
    assert "0xabc1" not in out
    _, out, _ = ran("diagnose", path, measured, "--all")
    assert "0xabc1" in out


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_a_finding_of_the_window_that_the_first_screen_leaves_out_fails_a_check(
    ran: Ran, tmp_path: Path, options: tuple[str, ...]
) -> None:
    job = profile_folder(tmp_path / "job", shape="naive", steps=6)
    simulate(job, ranks=2, steps=100, seed=1, transfer_ms=9.0)
    assert ran("diagnose", job, *options, "--fail-if", "naive-synchronisation")[0] == 6
