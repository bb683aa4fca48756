"""Ways to start stepscope, its help, its completions and its public names."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import Ran
from tests.torch_forks import ForkedPopen, shared_server

import stepscope
from stepscope.cli.app import PANELS
from stepscope.cli.commands import REGISTRY
from stepscope.cli.console import typed
from stepscope.cli.main import main

SCRIPT = "from stepscope.cli.main import command; command()"


def started(*words: str, **environ: str) -> str:
    process = ForkedPopen(
        [sys.executable, *words], server=shared_server(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COLUMNS": "100", **environ},
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return out


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "stepscope", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"stepscope {stepscope.__version__}\n"


@pytest.mark.parametrize(
    ("words", "same"),
    [(["help"], ["--help"]), (["help", "trace"], ["trace", "--help"]), (["version"], ["--version"])],
)
def test_help_and_version_are_words_too(words: list[str], same: list[str], ran: Ran) -> None:
    assert ran(*words) == ran(*same)
    assert ran(*words)[0] == 0


def test_the_process_is_left_at_once_and_loses_nothing() -> None:
    last = "import atexit; atexit.register(print, 'registered')"
    after = "threading.main_thread().join() or print('thread')"
    thread = f"import threading; threading.Thread(target=lambda: {after}).start()"
    version = f"stepscope {stepscope.__version__}\n"
    for lines, said in ((last, "registered\n"), (f"{last}; {thread}", "thread\nregistered\n")):
        words = [sys.executable, "-c", f"{lines}; {SCRIPT}", "--version"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout == version + said
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        words = ["/bin/sh", "-c", f'"$0" -m stepscope --version {closed}', sys.executable]
        assert not subprocess.run(words, check=False).returncode, closed


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("stepscope tr", {"trace"}),
        ("stepscope trace --dif", {"--diff", "--diff-steps"}),
        ("stepscope comp", {"compare"}),
    ],
)
def test_shells_complete_commands_and_options(line: str, found: set[str]) -> None:
    words = line.split()
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    bash = started("-m", "stepscope", _STEPSCOPE_COMPLETE="complete_bash", **asked)
    assert set(bash.split()) == found
    zsh = started("-m", "stepscope", _STEPSCOPE_COMPLETE="complete_zsh", **asked)
    assert all(f'"{each}"' in zsh for each in found)
    fish = started(
        "-m", "stepscope", _STEPSCOPE_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **asked
    )
    assert {row.partition("\t")[0] for row in fish.splitlines() if row.startswith(("-", "t", "c"))} >= found


def test_help_begins_with_where_to_start_and_calls_no_switch_a_bool() -> None:
    text = started("-m", "stepscope", "--help")
    places = [text.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert "bool" not in text
    assert "--install-completion" in text


@pytest.mark.parametrize("command", sorted(REGISTRY.shipped))
def test_help_shows_no_types_of_python_and_no_brackets_in_brackets(command: str, ran: Ran) -> None:
    text = ran(command, "--help").out
    assert not re.findall(r"<(?:str|int|float|bool|path|list)\b.*|\[[^\]]*\bx[<>].*", text)
    usage = next(line for line in text.splitlines() if "Usage:" in line)
    assert not re.findall(r"\[\[|[{}]|\.\.\. *\.\.\.", usage)


@pytest.mark.usefixtures("fresh_consoles")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["comm", "--ci", "5", "--plan"], "--ci: expected at most 1\n"),
        (["trace", ".", "--limit", "-1"], "--limit: expected at least 0\n"),
        (["trace", ".", "--flop", "1T"], "--flop: expected a number\n"),
        (["trace"], "PATHS is missing\n"),
        (["comm", "--device", "gpu", "--plan"], "did you mean 'cuda'?"),
        (["comm", "--reduce-op", "mean", "--plan"], "did you mean 'avg'?"),
        (["comm", "--sizes", "1K-4K", "--plan"], "FROM:TO:FACTOR"),
        (["bensh", "--plan"], "'bench'?"),
        (["bench", "quick", "--plan"], "stepscope bench --preset quick"),
        (["bench", "runs/old", "--plan"], "stepscope bench MATRIX.yaml -o runs/old"),
        (["diagnose", "runs/olld"], "did you mean runs/old?"),
        (["trace", "runs/olld"], "did you mean runs/old?"),
        (["profile", "train.py", "--epochs", "3"], "-- python train.py --epochs 3"),
        (["profile", "torchrun", "train.py"], f"write {Path(sys.executable).with_name('torchrun')}"),
        (["calibrate", "runs"], "neither run.json nor profile.json"),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "run.json").write_text('{"schema": "stepscope.run/1"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    code, _, err = ran(*words)
    assert code == 2
    assert said in err


LIMITS = (
    MemoryError(),
    RuntimeError("can't start new thread"),
    *(OSError(n, os.strerror(n)) for n in (errno.ENOMEM, errno.EMFILE)),
)


@pytest.mark.parametrize("error", LIMITS)
def test_a_limit_of_the_system_is_no_bug(error: Exception, monkeypatch: pytest.MonkeyPatch, ran: Ran) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("stepscope.cli.diagnose_run.run", fail)
    code, _, err = ran("diagnose", ".")
    assert code == 3
    assert err.startswith("error: the system gives no more")
    assert "Traceback" not in err


def test_every_panel_has_its_place() -> None:
    assert {REGISTRY.load(name).panel for name in REGISTRY.shipped} <= set(PANELS)


def test_the_package_shows_its_public_names_only() -> None:
    assert dir(stepscope) == sorted(stepscope.__all__)


MATRIX = "version: 1\nbase: {workload: mlp, dataset: synthetic, steps: 2, global_batch: 8}\naxes: {world_size: [1]}\n"


@pytest.mark.usefixtures("fresh_consoles")
@pytest.mark.parametrize(
    "words",
    [
        ("bench", "--preset", "quick"), ("comm",), ("demo",), ("doctor", "--quick"),
        ("compare", "--run", "a.yaml", "b.yaml"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_without_torch_a_command_that_needs_it_says_so_once_before_anything_starts(
    words: tuple[str, ...], tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(MATRIX)
    before = set(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = ran(*words)
    assert (code, out) == (3, "")
    assert err.count("torch is not installed") == 1
    assert "pip install 'torch>=" in err
    assert len(err.splitlines()) == 3
    assert set(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("fresh_consoles")
@pytest.mark.parametrize("words", [["report"], ["schema", "run", "b", "c"], ["bench", "--nosuch"]])
def test_usage_errors_and_documents_name_the_program(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pytest", *words])
    with pytest.raises(SystemExit):
        main()
    assert f"see `stepscope {words[0]} --help`" in capsys.readouterr().err
    assert typed() == ("stepscope", *words)
