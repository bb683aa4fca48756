"""What every data set offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.config.options import OptionsModel
from stepscope.core.errors import DataError, UsageError
from stepscope.datasets import _files
from stepscope.records.plan import InputNeeds

INPUTS = {"features": "feature vectors", "tokens": "labelled texts", "lm": "running text"}
"""The kinds of ``InputNeeds`` in words."""


class NoOptions(OptionsModel):
    """A data set without options."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Arrays ready to train on. ``test`` has length 0 when there is nothing to test on.

    real_labels: False for random labels, where accuracy says nothing (1 / classes).
    """

    train: Split
    test: Split
    real_labels: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
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
