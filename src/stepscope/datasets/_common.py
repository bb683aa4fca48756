"""What every data set offers, and how its prepared arrays are kept: built once, then mapped by every rank of the host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, MissingError, UsageError
from stepscope.datasets import _files
from stepscope.records.options import OptionsModel
from stepscope.records.plan import InputNeeds

INPUTS = {"features": "feature vectors", "tokens": "labelled texts", "lm": "running text"}
"""The kinds of ``InputNeeds`` in words."""


class NoOptions(OptionsModel):
    """A data set without options."""


@record
class Split:
    """Inputs and targets, equal first dimension; may be memory-mapped.

    features: x float32 [n, num_features], y int64 [n] (class) or float32 [n, k] (mse)
    tokens:   x int32 [n, seq_len], 0 = padding, y int64 [n]
    lm:       x int32 [n, seq_len], y int32 [n, seq_len] (x shifted by one)
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return int(self.x.shape[0])


@record
class Prepared:
    """Arrays ready to train on. ``test`` has length 0 when there is nothing to test on.

    real_labels: False for random labels, where accuracy says nothing (1 / classes).
    """

    train: Split
    test: Split
    real_labels: bool = True
    notes: tuple[str, ...] = ()


@record
class Dataset:
    """One data set.

    resolve(options, needs): the workload's needs completed with what this data fixes (features, classes), or a
        UsageError when they contradict each other (text into an MLP).
    locate(options, data_dir): its files by role, checked for presence; empty for synthetic. Raises DataError saying
        where it looked.
    digest(options, files): identity of the content, not of the path.
    prepare(options, needs, files, cache_dir): arrays; built once under ``cache_dir`` with an atomic rename, then mapped.
    download(options, data_dir): fetch with checksum, only when asked to; None where there is no public source.
    """

    key: str
    summary: str
    options: type[OptionsModel]
    resolve: Callable[[Any, InputNeeds], InputNeeds]
    locate: Callable[[Any, Path | None], dict[str, Path]]
    digest: Callable[[Any, dict[str, Path]], str]
    prepare: Callable[[Any, InputNeeds, dict[str, Path], Path], Prepared]
    download: Callable[[Any, Path], None] | None = None


def files_dataset(
    key: str,
    *,
    version: int,
    summary: str,
    resolve: Callable[[NoOptions, InputNeeds], InputNeeds],
    locate: Callable[[Path | None], dict[str, Path]],
    prepare: Callable[[InputNeeds, dict[str, Path], str, Path], Prepared],
    sources: Sequence[_files.PublicFile],
) -> Dataset:
    """A data set without options that lies in files of a known content.

    prepare(needs, files, content, cache_dir): content is the files' digest, ``version`` included.
    """

    def digest(options: NoOptions, files: dict[str, Path]) -> str:  # noqa: ARG001
        return _files.content_digest(files, version=f"{key}/{version}")

    def download(options: NoOptions, data_dir: Path) -> None:  # noqa: ARG001
        try:
            locate(data_dir)
        except DataError:
            _files.fetch(sources, data_dir / key)

    return Dataset(
        key=key,
        summary=summary,
        options=NoOptions,
        resolve=resolve,
        locate=lambda options, data_dir: locate(data_dir),  # noqa: ARG005
        digest=digest,
        prepare=lambda options, needs, files, cache: prepare(needs, files, digest(options, files), cache),
        download=download,
    )


def misfit(key: str, kind: str, fix: str) -> UsageError:
    """The error for a workload whose input this data set cannot give."""
    return UsageError(f"the dataset {key} has no {INPUTS.get(kind, kind)} to feed this workload with", fix=fix)


def empty_like(split: Split) -> Split:
    """A split of length 0 with the same shapes and types."""
    return Split(x=np.empty((0, *split.x.shape[1:]), split.x.dtype), y=np.empty((0, *split.y.shape[1:]), split.y.dtype))


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
    arrays = _mapped_arrays(folder, names)
    if arrays is not None:
        return arrays
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(cache_dir / f".{name}-{key}.lock"):
            arrays = _mapped_arrays(folder, names)
            if arrays is None:
                _store_arrays(folder, build())
                arrays = _mapped_arrays(folder, names)
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
    """Return the data set of arrays that are named as in ``LABELLED``."""
    return Prepared(
        train=Split(x=arrays["train_x"], y=arrays["train_y"]), test=Split(x=arrays["test_x"], y=arrays["test_y"])
    )


def _mapped_arrays(folder: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]] | None:
    """Map the arrays of ``folder`` into memory; None when it is not there or a file in it was cut short."""
    try:
        return {name: _mapped_array(folder / f"{name}.npy") for name in names}
    except (OSError, ValueError, EOFError):
        return None


def _mapped_array(path: Path) -> NDArray[Any]:
    """Return an array mapped into memory; an empty one is read."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        # an array of length 0 cannot be mapped; a file that was cut short fails again
        array = np.load(path, allow_pickle=False)
    return np.asarray(array)  # a plain view: np.memmap costs a call at every index


def _store_arrays(folder: Path, arrays: Arrays) -> None:
    """Write arrays into the folder, which takes its place only when all are written."""
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
