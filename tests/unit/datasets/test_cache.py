"""Prepared arrays: built once, mapped, repaired, safe when several processes start at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepscope.core.errors import DataError, MissingError
from stepscope.datasets._common import prepared_arrays

NAMES = ("x", "empty")


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"x": np.arange(1000), "empty": np.empty((0, 4), np.float32)}


def load(cache: Path, build: Builder, identity: object = "one") -> dict[str, np.ndarray]:
    return prepared_arrays(cache, name="toy", identity=identity, names=NAMES, build=build)


def test_arrays_are_built_once_and_mapped_read_only(tmp_path: Path) -> None:
    build = Builder()
    first, second = load(tmp_path, build), load(tmp_path, build)
    assert build.calls == 1
    for arrays in (first, second):
        assert arrays["x"].tolist() == list(range(1000))
        assert isinstance(arrays["x"].base, np.memmap)
        assert not arrays["x"].flags.writeable
        assert arrays["empty"].shape == (0, 4)


def test_another_identity_is_built_anew(tmp_path: Path) -> None:
    build = Builder()
    load(tmp_path, build, ("digest", 1))
    load(tmp_path, build, ("digest", 2))
    assert build.calls == 2


def test_a_file_that_was_cut_short_is_built_again(tmp_path: Path) -> None:
    build = Builder()
    load(tmp_path, build)
    path = next(tmp_path.glob("toy-*/x.npy"))
    path.write_bytes(path.read_bytes()[:100])
    assert load(tmp_path, build)["x"].tolist() == list(range(1000))
    assert build.calls == 2


def test_nothing_half_made_is_left_when_building_fails(tmp_path: Path) -> None:
    def build() -> dict[str, np.ndarray]:
        raise DataError("bad file")

    with pytest.raises(DataError):
        prepared_arrays(tmp_path, name="toy", identity=1, names=NAMES, build=build)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []


def test_a_cache_that_cannot_be_written_says_how_to_move_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MissingError, match="XDG_CACHE_HOME"):
        load(tmp_path / "file" / "cache", Builder())


def test_processes_that_start_at_once_build_once(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
import numpy as np
from stepscope.datasets._common import prepared_arrays
cache = Path({str(tmp_path)!r})
def build():
    with (cache / "calls").open("a") as file:
        file.write("x")
    time.sleep(0.3)
    return {{"x": np.arange(10)}}
assert prepared_arrays(cache, name="toy", identity=1, names=("x",), build=build)["x"].sum() == 45
"""
    ranks = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0, 0]
    assert (tmp_path / "calls").read_text() == "x"
