"""Scripts of tests under the hook of a dry run: forks of one process that has imported torch, as scripts do.

``python dry_runs.py`` is that process: a line of JSON a request on stdin, a line with the exit code on stdout.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import stepscope

HOOK = Path(stepscope.__file__).parent / "hook"
MADE = "script.py"
PRELOADED = (
    "torch", "torch._subclasses.fake_tensor", "torch.testing._internal.distributed.fake_pg", "torch.utils.flop_counter",
    "torch.distributed.device_mesh", "torch._dynamo.config",
)  # fmt: skip
"""What the hook imports itself, and nothing that takes torch's functions by their names before the hook changes them."""


def dry_run(
    script: str | Path,
    folder: Path,
    *,
    world: int = 8,
    rank: int = 0,
    argv: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    output: Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run a script (its text, or a path) as ``rank`` of ``world`` ranks; return its record, or its failure, as written.

    options: of the hook's ``dry``. The script runs in ``folder``; what it prints is in ``folder/log``. output: a folder that
    ranks of one world share.
    """
    path = script if isinstance(script, Path) else folder / MADE
    if isinstance(script, str):
        path.write_text(textwrap.dedent(script))
    output = output or Path(tempfile.mkdtemp(dir=folder, prefix="out-"))
    (output / ".stepscope").mkdir(exist_ok=True)
    given = {
        "rank": rank,
        "world": world,
        "output": str(output),
        "tool_version": "test",
        "ranks_per_node": 8,
        **options,
    }
    server = started()
    assert server.stdin is not None
    assert server.stdout is not None
    places = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": "8"}
    request = {
        "script": str(path), "argv": list(argv), "folder": str(folder), "options": given,
        "environment": {**places, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **(environment or {})},
    }  # fmt: skip
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    code = json.loads(server.stdout.readline())
    written = sorted((output / ".stepscope").glob(f"*-rank-{rank:06}.json"))
    assert written, f"exit code {code}: {(folder / 'log').read_text()}"
    document: dict[str, Any] = json.loads(written[-1].read_text())
    return document


@cache
def started() -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("STEPSCOPE_HOOK", None)
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    with process:  # closes its pipes and waits for it
        process.kill()


def _serve() -> None:
    sys.path.insert(1, str(HOOK))
    for name in ("stepscope_dry", *PRELOADED):
        importlib.import_module(name)

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _run(request: Mapping[str, Any]) -> None:
    """Become the script: what ``python SCRIPT`` does once torch has been imported."""
    import stepscope_dry

    os.chdir(request["folder"])
    os.environ.update(request["environment"], PWD=request["folder"])
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.argv = [request["script"], *request["argv"]]
    sys.path[0] = os.path.dirname(request["script"])  # noqa: PTH120
    try:
        stepscope_dry.install(request["options"])
        runpy.run_path(request["script"], run_name="__main__")
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    atexit._run_exitfuncs()
    os._exit(1)


if __name__ == "__main__":
    _serve()
