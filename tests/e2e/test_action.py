"""The steps of action.yml, each run by bash with its own variables, as a runner of GitHub's does."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.profiled import FAKE_TORCH
from tests.forked_command import forked_command

from stepscope.examples.jobs import EXAMPLES

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
TRAIN = """
import time, torch
optimizer = torch.optim.SGD()
for _ in range(60):
    time.sleep(0.002)
    optimizer.step()
"""
PYTHON = """#!/bin/sh
# Makes an environment as `python -m venv` and `pip install` do, at once.
printf '%s\\n' "$*" >>{log}
case "$*" in
*venv*)
  for folder; do :; done
  mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python" && cp {stepscope} "$folder/bin/stepscope" ;;
esac
"""
STAND_IN = """#!/bin/sh
# What measures leaves a generated job behind; all else is stepscope's own.
case $1 in run | bench) ;; *) exec {stepscope} "$@" ;; esac
for word; do
  printf '%s\\n' "$word"
  [ "$before" = -o ] && mkdir -p "$word" && cp -R {job}/. "$word"
  before=$word
done >{log}
"""
GH = """#!/bin/sh
# Comments are lines of a file: {comments}.
case "$*" in
*PATCH*|*POST*) [ -z "$REFUSED" ] || exit 1; printf '%s\\n' "$*" >>{log}; cat >{comments} ;;
*) [ "$GH_TOKEN" = secret ] || exit 1; grep -q -F -e "$MARK" {comments} 2>/dev/null && printf '11\\n12\\n'; exit 0 ;;
esac
"""


@dataclass(frozen=True)
class Ran:
    """code: of the first step that failed, else 0. done: the steps that ran. output: of all of them."""

    code: int
    done: list[str]
    output: str
    summary: str
    outputs: Mapping[str, str]


@dataclass
class Runner:
    """A machine with a workspace. cache: of the repository; job: what `run` and `bench` leave behind, None: they run."""

    folder: Path
    stepscope: Path
    job: Path | None = None
    cache: dict[str, Path] = field(default_factory=dict)
    runs: int = 0

    def __post_init__(self) -> None:
        self.workspace.mkdir()
        (self.workspace / "train.py").write_text(TRAIN)
        (self.folder / "bin").mkdir()

    @property
    def workspace(self) -> Path:
        return self.folder / "work space"

    def __call__(self, *, event: str = "pull_request", environ: Mapping[str, str] | None = None, **given: str) -> Ran:
        """One job that uses the action. given: inputs, with ``_`` for ``-``."""
        self.runs += 1
        inputs = {name: value["default"] for name, value in ACTION["inputs"].items()}
        inputs |= {"python": str(self._program("python", PYTHON, stepscope=self._stepscope()))}
        inputs |= {name.replace("_", "-"): value for name, value in given.items()}
        self._program("gh", GH, comments=self.folder / "comments")
        known = {
            "inputs": inputs, "runner": {"os": "Linux"}, "steps": {},
            "github": {"run_id": str(self.runs), "run_attempt": "1", "event": {"pull_request": {"number": "7"}}},
        }  # fmt: skip
        inputs["pull-request"] = _filled(inputs["pull-request"], known) if event == "pull_request" else ""
        temporary = self.folder / f"run-{self.runs}"
        temporary.mkdir()
        summary = temporary / "summary"
        summary.touch()
        base = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ} | {
            "PATH": os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_EVENT_NAME": event,
            "GITHUB_REPOSITORY": "us/ours", "RUNNER_TEMP": str(temporary), **(environ or {}),
        }  # fmt: skip
        code, done, output = 0, [], ""
        for number, step in enumerate(STEPS):
            if code or not _holds(step.get("if", "true"), known):
                continue
            name = step.get("id") or step.get("uses") or step["run"].split()[0]
            done.append(name)
            if "uses" in step:
                self._cached(name, {key: _filled(value, known) for key, value in step["with"].items()})
                continue
            written = temporary / f"output-{number}"
            written.touch()
            variables = {key: _filled(value, known) for key, value in step["env"].items()}
            script = temporary / f"step-{number}.sh"
            script.write_text(step["run"])
            ended = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)], cwd=self.workspace, text=True,
                env=base | variables | {"GITHUB_OUTPUT": str(written)}, stdin=subprocess.DEVNULL, timeout=250,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
            code, output = ended.returncode, output + ended.stdout
            lines = (line.partition("=") for line in written.read_text().splitlines())
            known["steps"][step.get("id")] = {"outputs": {key: value for key, _, value in lines}}
        outputs = {name: _filled(value["value"], known) for name, value in ACTION["outputs"].items()}
        return Ran(code, done, output, summary.read_text(), outputs)

    def log(self, name: str) -> list[str]:
        path = self.folder / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []

    def _stepscope(self) -> Path:
        if self.job is None:
            return self.stepscope
        return self._program("stepscope", STAND_IN, job=self.job, stepscope=self.stepscope)

    def _program(self, name: str, text: str, **places: Path) -> Path:
        path = self.folder / "bin" / name
        places["log"] = self.folder / f"{name}.log"
        path.write_text(text.format(**{key: shlex.quote(str(value)) for key, value in places.items()}))
        path.chmod(0o755)
        return path

    def _cached(self, action: str, given: Mapping[str, str]) -> None:
        """What actions/cache does: a key is written once; the newest that begins with one of restore-keys is found."""
        place = self.workspace / given["path"]
        if action == "actions/cache/save@v4":
            assert given["key"] not in self.cache
            self.cache[given["key"]] = self.folder / f"cache-{self.runs}"
            shutil.copytree(place, self.cache[given["key"]])
            return
        assert action == "actions/cache/restore@v4"
        found = [key for key in self.cache if key.startswith(given["restore-keys"])]
        if found:
            shutil.copytree(self.cache[found[-1]], place)


def _filled(text: str, known: Mapping[str, Any]) -> str:
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(_value(match[1], known)), text)


def _holds(condition: str, known: Mapping[str, Any]) -> bool:
    return bool(_value(condition, known))


def _value(expression: str, known: Mapping[str, Any]) -> Any:
    """The value of an expression of names, texts, ``==``, ``!=`` and ``&&``; what there is not is empty."""

    def looked_up(match: re.Match[str]) -> str:
        value: Any = known
        for name in match[0].split("."):
            value = value.get(name, {})
        return repr(value or "")

    named = re.sub(r"(?<!['\w])[a-z_]+(?:\.[\w-]+)+", looked_up, expression)
    return eval(named.replace("&&", " and ").replace("true", "True").strip())


@pytest.fixture
def runner(tmp_path: Path) -> Any:
    with forked_command(tmp_path / "own"):
        yield Runner(tmp_path, tmp_path / "own" / "stepscope")


def _example(runner: Runner, name: str) -> None:
    runner.job = runner.folder / name
    if not runner.job.exists():
        EXAMPLES[name].write(runner.job)


def test_no_input_is_text_of_a_script() -> None:
    assert [step["run"] for step in STEPS if "${{" in step.get("run", "")] == []
    assert all(step["shell"] == "bash" for step in STEPS if "run" in step)
    assert all(value["description"] and "default" in value for value in ACTION["inputs"].values())


def test_the_how_to_gives_inputs_and_outputs_that_the_action_has() -> None:
    text = (ROOT / "docs/howto/gate-a-pull-request.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    steps = [step for block in blocks for step in (block if isinstance(block, list) else [block])]
    steps += [step for block in blocks if "jobs" in block for step in block["jobs"]["step"]["steps"]]
    given = [step["with"].keys() for step in steps if "stepscope" in step.get("uses", "stepscope") and "with" in step]
    assert len(given) == 3
    assert all(names <= ACTION["inputs"].keys() for names in given)
    used = re.findall(r"steps\.gate\.outputs\.(\w+)", text)
    assert used
    assert {*used} <= ACTION["outputs"].keys()


def test_the_first_run_passes_and_is_stored_and_a_later_one_is_compared_with_it(runner: Runner) -> None:
    """With a training command that is run: no time decides, the conditions hold always and never."""
    command = f"{shlex.quote(sys.executable)} train.py\necho trained >trained"
    first = runner(command=command, fail_if="diary_step_ns > 1", environ=FAKE_TORCH)
    assert (first.code, list(runner.cache), first.outputs["code"]) == (0, ["stepscope-Linux-1-1"], "0"), first.output
    assert "no baseline yet" in first.summary
    assert "next baseline" in first.summary
    assert (runner.workspace / "trained").exists()
    assert any("pip install" in line and line.endswith(str(ROOT)) for line in runner.log("python"))
    later = runner(command=command, fail_if="\ndiary_step_ns > 1e12\n", environ=FAKE_TORCH)
    assert (later.code, len(runner.cache)) == (0, 1), later.output
    assert re.match(r"\*\*head against baseline: .*step [+-]", later.summary)
    assert later.summary == (runner.workspace / later.outputs["comment"]).read_text()
    failing = runner(command=command, fail_if="diary_step_ns > 1", environ=FAKE_TORCH)
    assert (failing.code, failing.outputs["code"], len(runner.cache)) == (6, "6", 1), failing.output
    assert failing.summary.startswith("**Fails: diary")


def test_a_training_command_that_fails_ends_the_job_with_its_code(runner: Runner) -> None:
    failed = runner(command=f"{shlex.quote(sys.executable)} train.py\nexit 7", environ=FAKE_TORCH)
    assert (failed.code, failed.done[-1], runner.cache) == (7, "measure", {})


def test_a_significant_change_fails_and_its_comment_is_written_once_and_then_changed(runner: Runner) -> None:
    slower = {"command": "torchrun train.py", "fail_if": "trace_exposed_comm_ns > 900%\ntrace_step_ns > 3%"}
    _example(runner, "ddp")
    assert runner(event="push", **slower).code == 0
    _example(runner, "naive")
    failed = runner(**slower, token="secret")
    assert failed.code == 6, failed.output
    assert failed.summary.startswith("**Fails: trace_step_ns")
    assert "+30.5%" in failed.summary
    assert (runner.folder / "comments").read_text() == f"<!-- stepscope gate, stepscope -->\n{failed.summary}"
    _example(runner, "ddp")
    mended = runner(**slower, token="secret")
    assert (mended.code, (runner.folder / "comments").read_text().splitlines()[1:]) == (0, mended.summary.splitlines())
    places = [line.split()[4] for line in runner.log("gh")]
    assert places == ["repos/us/ours/issues/7/comments", "repos/us/ours/issues/comments/11"]
    assert len(runner.cache) == 1  # neither run of a pull request replaces the baseline


def test_what_passes_on_a_push_is_the_next_baseline_and_what_fails_is_not(runner: Runner) -> None:
    for name in ("naive", "ddp", "naive"):
        _example(runner, name)
        ran = runner(event="push", command="torchrun train.py", fail_if="trace_step_ns > 3%")
    assert (ran.code, list(runner.cache)) == (6, ["stepscope-Linux-1-1", "stepscope-Linux-2-1"])
    accepted = runner(
        event="workflow_dispatch", command="torchrun train.py", store="always", fail_if="trace_step_ns > 3%"
    )
    assert (accepted.code, len(runner.cache)) == (6, 3)


def test_a_comment_that_may_not_be_written_is_a_warning(runner: Runner) -> None:
    _example(runner, "ddp")
    ran = runner(command="true", token="secret", environ={"REFUSED": "1"})
    assert (ran.code, "::warning::" in ran.output) == (0, True)
    assert runner(command="true", token="other").code == 0


def test_a_folder_is_the_baseline_where_it_is_given_and_is_only_read(runner: Runner) -> None:
    """As one on the disk of the runner, or an artifact that an earlier step has fetched."""
    _example(runner, "ddp")
    first = runner(event="push", command="true", baseline="kept/ddp run")
    assert (first.code, "no baseline yet" in first.summary, first.outputs["store"]) == (0, True, "yes")
    assert not [name for name in first.done if name.startswith("actions/")]
    kept = runner.workspace / "kept" / "ddp run"
    shutil.copytree(runner.workspace / first.outputs["run"], kept)
    before = sorted(kept.rglob("*"))
    _example(runner, "naive")
    failed = runner(event="push", command="true", baseline="kept/ddp run", fail_if="trace_step_ns > 3%")
    assert (failed.code, failed.outputs["store"], sorted(kept.rglob("*"))) == (6, "", before)


def test_runs_without_a_common_figure_fail_and_say_so(runner: Runner) -> None:
    _example(runner, "logs")
    assert runner(command="true").code == 0
    _example(runner, "ddp")
    ran = runner(command="true")
    assert (ran.code, ran.outputs["code"]) == (2, "2")
    assert "nothing" in ran.summary
    assert "error: nothing to compare" in ran.output
    assert runner(event="push", command="true").code == 2
    assert runner(event="push", command="true").code == 0  # what cannot be compared any more was replaced


def test_a_matrix_is_measured_and_names_are_never_read_as_commands(runner: Runner) -> None:
    _example(runner, "ddp")
    odd = "it's $(touch oops) `touch oops`; touch oops"
    first = runner(matrix=f"{odd}.yaml", folder=odd, fail_if=f"trace_step_ns > 3%\n{odd}", baseline_key=odd)
    assert (first.code, runner.log("stepscope")) == (0, ["bench", f"{odd}.yaml", "-o", f"{odd}/head"]), first.output
    ran = runner(matrix="m.yaml", folder=odd, fail_if=odd, baseline_key=odd, token="secret", pull_request=odd)
    assert ran.code == 2
    assert f"--fail-if {odd!r}: not a condition" in ran.output
    assert not [*runner.folder.rglob("oops")]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"command": "true", "matrix": "m.yaml"},
        {"command": "true", "store": "often"},
        {"command": "true", "python": "false"},
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_installed(runner: Runner, given: dict[str, str]) -> None:
    ran = runner(**given)
    assert (ran.code, ran.done, "::error::" in ran.output) == (2, ["install"], True)
    assert not [line for line in runner.log("python") if "venv" in line]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_is_installed_from_the_actions_own_checkout(runner: Runner) -> None:
    """With a Python and pip that are real; what they fetch is at hand in continuous integration."""
    command = f"{shlex.quote(sys.executable)} train.py"
    ran = runner(
        command=command, python=sys.executable, environ=FAKE_TORCH | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    )
    assert ran.code == 0, ran.output
    assert json.loads((runner.workspace / ran.outputs["run"] / "profile.json").read_text())
