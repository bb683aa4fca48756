"""Prepared arrays on disk: built once, then memory-mapped by every rank of the host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import MissingError
from stepscope.datasets._common import Prepared, Split

Arrays = Mapping[str, NDArray[Any]]


def prepared_arrays(
    cache_dir: Path, *, name: str, identity: object, names: tuple[str, ...], build: Callable[[], Arrays]
) -> dict[str, NDArray[Any]]:
    """The arrays ``names``, read-only maps of files under ``cache_dir``; ``build`` is called where they are missing.

    identity: everything the arrays depend on (content digest, needs, code version); its repr names the folder.
    Safe for ranks that start at once: one builds while the others wait, and the folder appears by a rename.
    """
    key = hashlib.sha256(repr(identity).encode()).hexdigest()[:24]
    folder = cache_dir / f"{name}-{key}"
    arrays = _mapped(folder, names)
    if arrays is not None:
        return arrays
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(cache_dir / f".{name}-{key}.lock"):
            arrays = _mapped(folder, names)
            if arrays is None:
                _store(folder, build())
                arrays = _mapped(folder, names)
    except OSError as error:
        raise MissingError(
            f"cannot write prepared data to {cache_dir}",
            why=error.strerror or str(error),
            fix="free space there, or set XDG_CACHE_HOME to a writable folder",
        ) from error
    if arrays is None:
        raise MissingError(
            f"prepared data in {folder} cannot be read back",
            why="it was written just now",
            fix="check the disk, or set XDG_CACHE_HOME to another one",
        )
    return arrays


LABELLED = ("train_x", "train_y", "test_x", "test_y")
"""Names of the arrays of a data set with a label for each input."""


def labelled(arrays: Arrays) -> Prepared:
    """The data set in arrays called as in ``LABELLED``."""
    return Prepared(
        train=Split(x=arrays["train_x"], y=arrays["train_y"]),
        test=Split(x=arrays["test_x"], y=arrays["test_y"]),
    )


def _mapped(folder: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]] | None:
    """None when the folder is not there or a file in it was cut short."""
    try:
        return {name: _map(folder / f"{name}.npy") for name in names}
    except (OSError, ValueError, EOFError):
        return None


def _map(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        # an array of length 0 cannot be mapped; a file that was cut short fails again
        array = np.load(path, allow_pickle=False)
    return np.asarray(array)  # a plain view: np.memmap costs a call at every index


def _store(folder: Path, arrays: Arrays) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        temporary.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Holds a lock file; the kernel lets go of it when the holder dies. No lock where the file system has none."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        with suppress(OSError):  # without it the rename alone keeps the folder whole; the work may be done twice
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
