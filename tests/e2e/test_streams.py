"""stdout that is full or closed, Ctrl-C while modules load, no arguments at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.runs import Cli

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def run(cli: Cli, *arguments: str, stdout: str = os.devnull, **extra: str) -> tuple[int, str]:
    """(exit code, stderr) with stdout going to a path."""
    with open(stdout, "w") as target:  # noqa: PTH123
        process = cli.start(*arguments, stdout=target.fileno(), **extra)
    _, err = process.communicate(timeout=100)
    return process.returncode, err


@FULL
@pytest.mark.parametrize("arguments", [["hardware", "--json"], ["--help"], ["bench", "--list"]])
def test_a_full_stdout_is_one_short_error(cli: Cli, arguments: list[str]) -> None:
    code, err = run(cli, *arguments, stdout="/dev/full")
    assert code == 3
    assert err == "error: cannot write to stdout\n  why: No space left on device\n"


@FULL
def test_a_run_whose_table_cannot_be_written_says_where_its_results_lie(cli: Cli) -> None:
    name = cli.matrix("", warmup=0)
    (cli.folder / name).write_text(
        (cli.folder / name).read_text().replace("world_size: 2", "world_size: 1").replace("steps: 20", "steps: 2")
    )
    code, err = run(cli, "bench", name, "-o", "run", stdout="/dev/full")
    assert code == 3, err
    assert "Traceback" not in err
    assert err.endswith(
        "error: cannot write to stdout\n  why: No space left on device\n"
        "  fix: the results are saved: run/results.jsonl and run/report/summary.md\n"
    )
    assert (cli.folder / "run" / "results.jsonl").exists()


@pytest.mark.parametrize("arguments", [["hardware"], ["--help"]])
def test_a_pipe_that_nobody_reads_ends_the_command_silently(cli: Cli, arguments: list[str]) -> None:
    process = cli.start(*arguments)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=100) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@FULL
def test_a_full_stderr_does_not_stop_a_command(cli: Cli) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-m", "stepscope.cli", "bench", "--preset", "nope"], stderr=full,
                              env=cli.environ, cwd=cli.folder, timeout=100)  # fmt: skip
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("module", "becomes"),
    [("typer", "pass"), ("pydantic", "raise ImportError('cannot import') from None"), ("yaml", "pass")],
)
def test_ctrl_c_while_modules_load_ends_without_a_traceback(cli: Cli, module: str, becomes: str) -> None:
    """Also where the code that was being imported makes another error of it."""
    path = cli.folder / "stub" / module
    path.mkdir(parents=True)
    (path / "__init__.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(30)\n"
        f"except KeyboardInterrupt:\n    {becomes}\nraise KeyboardInterrupt\n"
    )
    words = ["--help"] if module == "typer" else ["bench", "--preset", "quick", "--plan"]
    code, err = run(cli, *words, PYTHONPATH=f"{cli.folder / 'stub'}:{cli.environ['PYTHONPATH']}")
    assert (code, err) == (130, "interrupted\n")


def test_no_arguments_print_the_help_and_no_empty_error(cli: Cli) -> None:
    done = cli()
    assert done.code == 2
    assert "Usage:" in done.out
    assert "bench" in done.out
    assert done.err == ""
