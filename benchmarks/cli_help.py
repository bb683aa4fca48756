"""`stepscope --help` against an empty typer app with 15 commands, whole processes taking turns."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._report import compare, heading, show

ROUNDS = 15
EMPTY_APP = """
import typer
app = typer.Typer(add_completion=False)
{commands}
app()
"""
COMMAND = '''
@app.command("command{i}")
def command{i}(path: str = "x", number: int = 3):
    """Command number {i}."""
'''


def _seconds(command: list[str]) -> float:
    before = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - before


def main() -> None:
    heading("start-up: stepscope --help / empty 15-command typer app")
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app.py"
        app.write_text(EMPTY_APP.format(commands="".join(COMMAND.format(i=i) for i in range(15))))
        ours = [sys.executable, "-m", "stepscope.cli", "--help"]
        empty = [sys.executable, str(app), "--help"]
        a, b, again = [], [], []
        for _ in range(ROUNDS + 1):
            a.append([_seconds(ours)])
            b.append([_seconds(empty)])
            again.append([_seconds(ours)])
    show("ours / empty app", compare(a[1:], b[1:], again[1:]), bar="at most 1.2")


if __name__ == "__main__":
    main()
