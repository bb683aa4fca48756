"""How far a command walks through our files: those entered, functions entered, modules loaded.

A call hook is on in the command's process and in every fork of it. A file is entered when one of its functions runs;
bodies of modules and of classes run when a module is loaded, which is counted apart.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.trace_builder import build, write_job

import stepscope
from benchmarks._report import heading

RANKS = 8
LOG_STEPS = 45
BARS = {"trace": (100, 130), "diagnose": (90, 130)}
"""Command -> most files entered, most modules loaded."""

_OURS = str(Path(stepscope.__file__).parent)


def walked(words: list[str]) -> tuple[int, int, int]:
    """(files entered, functions entered, modules loaded) of ``stepscope WORDS``. Ends where the command fails."""
    with tempfile.NamedTemporaryFile() as seen:
        child = os.fork()
        if child == 0:
            os._exit(_run(words, os.open(seen.name, os.O_WRONLY | os.O_APPEND)))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"stepscope {' '.join(words)} failed")
        lines = set(Path(seen.name).read_text().splitlines())
    calls = {tuple(line.split("\t")) for line in lines}
    functions = {call for call in calls if call[0] == "call"}
    return len({call[1] for call in functions}), len(functions), sum(call[0] == "load" for call in calls)


def _run(words: list[str], seen: int) -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.setprofile(_recorder(seen))
    try:
        from stepscope.cli.main import main as command

        command(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.setprofile(None)
    return 0


def _recorder(seen: int) -> Callable[..., None]:
    """The hook: each function and module once, in one write, so that forks share the file."""
    known = set()

    def record(frame: object, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code  # type: ignore[attr-defined]
        if code in known or not code.co_filename.startswith(_OURS):
            return
        known.add(code)
        if code.co_flags & inspect.CO_OPTIMIZED:
            os.write(seen, f"call\t{code.co_filename}\t{code.co_qualname}\t{code.co_firstlineno}\n".encode())
        elif code.co_name == "<module>":
            os.write(seen, f"load\t{code.co_filename}\n".encode())

    return record


def main() -> None:
    heading("length of the path: files entered, functions entered, modules loaded")
    with tempfile.TemporaryDirectory() as folder:
        job, log = Path(folder) / "job", Path(folder) / "train.log"
        write_job(build(world=RANKS, steps=3), job)
        log.write_text(_log())
        for command, words in (("trace", ["trace", str(job)]), ("diagnose", ["diagnose", str(log)])):
            files, functions, modules = walked(words)
            most_files, most_modules = BARS[command]
            print(
                f"  {command:<9} {files:4d} files (bar {most_files}), {functions:5d} functions, "
                f"{modules:4d} modules (bar {most_modules})"
            )


def _log() -> str:
    """47 lines as torchtitan prints them."""
    head = "[rank0]:[titan] 2026-01-05 10:00:00,000 - root - INFO - "
    steps = (
        f"{head}step: {step:2d}  loss: {8 - step / 20:7.4f}  grad_norm: 1.2000  memory: 30.00GiB(37.97%)  "
        f"tps: {9000 + step:,}  tflops: 150.00  mfu: 15.17%"
        for step in range(1, LOG_STEPS + 1)
    )
    return "\n".join([f"{head}Starting job: pretraining", f"{head}Training starts at step 1", *steps]) + "\n"


if __name__ == "__main__":
    main()
