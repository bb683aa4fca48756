"""Whatever happens to a file that stepscope reads, every command that reads it answers: with results, or with exit code 2
and a reason that names the file; soon, and in little memory."""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import shutil
import signal
from pathlib import Path
from types import FrameType

import pytest
from tests.damage.harm import harm
from tests.damage.sound import commands, make

from stepscope.cli import console
from stepscope.cli.main import main

SHORT, LONG, CHUNK = 100, 2000, 20
LIMIT_S = 60
MEMORY_BYTES = 600 << 20


class Hung(BaseException):
    """No answer in LIMIT_S: nothing that catches errors catches this."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make(tmp_path_factory.mktemp("sound"))


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # noqa: ARG005 - no pools of processes
    monkeypatch.setattr("stepscope.core.pool.get_ready", lambda modules: None)  # noqa: ARG005


def answer(arguments: list[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command run in this process; raises Hung after LIMIT_S."""

    def late(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal calls it
        raise Hung(f"no answer in {LIMIT_S} s")

    stdout, stderr = io.StringIO(), io.StringIO()
    for each in (console.out, console.err):
        each.cache_clear()
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0), stdout.getvalue(), stderr.getvalue()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        for each in (console.out, console.err):
            each.cache_clear()
    raise AssertionError("main() returned")


def wrong_with(arguments: list[str], path: Path) -> str | None:
    """What is wrong with a command's answer; None: nothing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        code, out, err = answer(arguments)
    except Hung as hung:
        return str(hung)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if grown > MEMORY_BYTES:
        return f"{grown >> 20} MiB of memory"
    if code not in (0, 2) or "Traceback" in err.replace("Traceback (most recent call last):\\n", ""):
        return f"exit code {code}: {err[-1500:]}"
    names = [path.name, *(each.name for each in path.rglob("*"))] if path.is_dir() else [path.name]
    if code == 2 and not any(name in err for name in names):
        return f"the error names no file: {err}"
    if code == 0 and "--json" in arguments:
        json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} in {arguments}"))
    return None


def failures(seeds: range, sound: dict[str, Path], folder: Path) -> list[str]:
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        kind = rng.choice(sorted(sound))
        place = folder / str(seed)
        place.mkdir()
        path = place / sound[kind].name
        (shutil.copytree if sound[kind].is_dir() else shutil.copyfile)(sound[kind], path)
        how = harm(path, rng)
        command = rng.choice(commands(kind, path, sound[kind], place / "out"))
        wrong = wrong_with(command, path)
        if wrong is not None:
            found.append(f"seed {seed}, {kind}, {how}: stepscope {' '.join(command)}\n  {wrong}")
        for each in place.rglob("*"):
            if not each.is_symlink():
                each.chmod(0o700)
        shutil.rmtree(place)
    return found


@pytest.mark.parametrize("first", range(0, SHORT, CHUNK))
def test_damage_is_survived(first: int, sound: dict[str, Path], tmp_path: Path) -> None:
    found = failures(range(first, first + CHUNK), sound, tmp_path)
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("first", range(SHORT, LONG, CHUNK))
def test_more_damage_is_survived(first: int, sound: dict[str, Path], tmp_path: Path) -> None:
    found = failures(range(first, first + CHUNK), sound, tmp_path)
    assert not found, "\n".join(found)
