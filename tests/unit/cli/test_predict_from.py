"""``stepscope predict --from`` from the command line, on an example job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import Ran

from stepscope.core.errors import ExitCode
from stepscope.examples.jobs import EXAMPLES


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "ddp"
    EXAMPLES["ddp"].write(folder)
    return folder


def test_the_verdict_comes_first_then_the_check_then_the_table(job: Path, ran: Ran) -> None:
    code, text, _ = ran("predict", "--from", job, "--gpus", "2,8,64", "--network", "infiniband-hdr")
    assert code == ExitCode.OK
    lines = text.splitlines()
    assert "on 64 GPUs" in lines[0]
    assert "efficiency" in lines[0]
    assert lines[1].startswith("replay of the measured step: 69.9 ms, measured 69.9 ms")
    assert [line.split()[0] for line in lines if line.lstrip()[:1].isdigit()] == ["2", "8", "64"]
    assert "slowest of more ranks" in text


def test_json_has_every_part_and_the_change(job: Path, ran: Ran) -> None:
    asked = ["--from", str(job), "--gpus", "4", "--what-if", "batch=2x,bucket=16MiB", "--scaling", "strong", "--json"]
    code, text, _ = ran("predict", *asked)
    assert code == ExitCode.OK
    found = json.loads(text)
    assert (found["kind"], found["scaling"], found["change"]) == ("scale", "strong", "batch 2x, bucket 16 MiB")
    (step,) = found["steps"]
    assert step["ranks"] == 4
    assert step["low_ns"] < step["step_ns"] < step["high_ns"]
    assert found["measured"] == [{"ranks": 2, "step_ns": pytest.approx(69.9e6, rel=0.01)}]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--cell", "x"], "not a run folder"),
        (["--size", "1M"], "--from does not go with --size"),
        (["--scaling", "string"], "did you mean 'strong'"),
        (["--network", "infiniband-hdr", "--what-if", "link=roce"], "both name a network"),
        (["--what-if", "gpu=h9000"], "h9000"),
        (["--gpus", "many"], "give numbers"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(job: Path, ran: Ran, more: list[str], said: str) -> None:
    code, _, error = ran("predict", "--from", job, *more)
    assert code == ExitCode.USAGE
    assert said in error


def test_a_folder_without_a_job_says_so(tmp_path: Path, ran: Ran) -> None:
    code, _, error = ran("predict", "--from", tmp_path)
    assert code != ExitCode.OK
    assert "no trace files" in error
