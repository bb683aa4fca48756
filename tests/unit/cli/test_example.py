"""What ``stepscope example`` writes, and that every command names the planted cause first."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.commands import Ran
from tests.torch_forks import ForkedPopen, shared_server

from stepscope.cli.commands.example import _planted
from stepscope.core.errors import UsageError
from stepscope.examples.jobs import EXAMPLES, LOST

FIRST = {
    "straggler": ("straggler", "rank 5"),
    "naive": ("naive-synchronisation", "8 reductions a step"),
    "ddp": ("compute-bound", "computation takes 9"),
    "hang": ("hang", f"rank {LOST} never entered collective 24"),
    "bad-scaling": ("scaling-loss", "of the loss is exposed communication"),
    "logs": ("duplicated-data", "train on the same data"),
    "sockets": ("nccl-net-plugin", "NET/Socket"),
    "unfit": ("unfit-trace", "176 of 294 launches have no kernel"),
}
"""By example: the rule that must come first, and what its finding says."""

pytestmark = pytest.mark.usefixtures("fresh_consoles")

TRACED = ("straggler", "naive", "ddp", "unfit")


WITHOUT_TORCH = """
import sys
from stepscope.cli.main import main
from stepscope.core.errors import UsageError
try:
    main(["example", "jobs"])
except SystemExit as stop:
    assert not stop.code
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The jobs that the command writes, and what it prints."""
    folder = tmp_path_factory.mktemp("examples")
    line = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(line, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return folder / "jobs", done.stdout


@pytest.fixture(scope="module")
def jobs(written: tuple[Path, str]) -> Path:
    return written[0]


def _says(finding: dict[str, object], name: str) -> None:
    rule, text = FIRST[name]
    assert finding["rule"] == rule
    assert text in json.dumps(finding)


@pytest.mark.parametrize("name", EXAMPLES)
def test_diagnose_names_the_planted_cause_first(name: str, jobs: Path, ran: Ran) -> None:
    _, *words = EXAMPLES[name].commands[0].replace("{}", str(jobs / name)).split()
    _says(json.loads(ran("diagnose", *words, "--json").out)["findings"][0], name)


@pytest.mark.parametrize("name", TRACED)
def test_trace_names_the_planted_cause_first(name: str, jobs: Path, ran: Ran) -> None:
    _says(json.loads(ran("trace", jobs / name, "--json").out)["findings"][0], name)


@pytest.mark.parametrize("name", ["straggler", "hang"])
def test_a_report_names_the_planted_cause_first(name: str, jobs: Path, tmp_path: Path) -> None:
    words = ["report", str(jobs / name), "-o", str(tmp_path), "--html", "--csv"]
    line = [sys.executable, "-m", "stepscope", *words]
    assert ForkedPopen(line, server=shared_server(), stdout=subprocess.DEVNULL).wait(timeout=100) == 0
    with (tmp_path / "findings.csv").open() as file:
        assert next(csv.DictReader(file))["rule"] == FIRST[name][0]
    page = re.sub(r"<(script|style).*?</\1>", "", (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    assert page.index(f"rank {LOST}") >= 0


def test_diagnose_weighs_a_nccl_log_by_the_traces_beside_it(jobs: Path, ran: Ran) -> None:
    """Sockets and what they cost are one trouble: the cause comes first, with the share that it can return."""
    first, second, *_ = json.loads(ran("diagnose", jobs / "sockets", "--json").out)["findings"]
    _says(first, "sockets")
    assert second["rule"] == "exposed-communication"
    assert first["stake_fraction"] == second["stake_fraction"] > 0.5


def test_the_overlap_of_ddp_is_what_the_pair_differs_by(jobs: Path, ran: Ran) -> None:
    exposed = {}
    for name in ("naive", "ddp"):
        ranks = json.loads(ran("trace", jobs / name, "--json").out)["ranks"]
        exposed[name] = sum(each["exposed_comm_ns"] for each in ranks) / sum(each["window_ns"] for each in ranks)
    assert exposed["naive"] > 0.25
    assert exposed["ddp"] < 0.06


def test_the_command_writes_every_job_without_torch_and_prints_commands(
    written: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    folder, printed = written
    for name, example in EXAMPLES.items():
        assert (folder / name).is_dir()
        assert f"{name}: {example.planted}" in printed
    assert "$ stepscope diagnose jobs/naive" in printed
    monkeypatch.chdir(folder.parent)
    again = ran("example", "jobs")
    assert again.code == 2
    assert "already exists" in again.err


def test_the_same_files_are_written_each_time(jobs: Path, tmp_path: Path) -> None:
    EXAMPLES["straggler"].write(tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (jobs / "straggler" / path.name).read_bytes()


def test_an_interrupt_names_what_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran) -> None:
    def stopped(folder: Path) -> None:
        folder.mkdir(parents=True)
        raise KeyboardInterrupt

    first, second, *_ = EXAMPLES
    monkeypatch.setitem(EXAMPLES, second, replace(EXAMPLES[second], write=stopped))
    code, _, said = ran("example", tmp_path / "e")
    assert code == 130
    assert f"complete in {tmp_path / 'e'}: {first}; incomplete: {tmp_path / 'e' / second}" in said


@pytest.mark.parametrize(
    ("fault", "rule", "text"),
    [
        ("slow_rank=2:30%", "straggler", "rank 2"),
        ("slow_rank=6:4ms", "straggler", "rank 6"),
        ("loader=60%", "data-loading", "waits for data"),
    ],
)
def test_a_planted_fault_is_found_first(fault: str, rule: str, text: str, tmp_path: Path, ran: Ran) -> None:
    (planted,) = _planted((fault,)).values()
    planted.write(tmp_path / "job")
    first = json.loads(ran("diagnose", tmp_path / "job", "--json").out)["findings"][0]
    assert first["rule"] == rule
    assert text in json.dumps(first)


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (("slow_rank=8:30%",), "ranks 0 to 7"),
        (("jitter",), "stepscope bench --preset straggler"),
        (("slow",), "is not a planted fault"),
    ],
)
def test_a_fault_that_a_generated_job_cannot_have_is_refused(faults: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError) as error:
        _planted(faults)
    assert words in str(error.value)
