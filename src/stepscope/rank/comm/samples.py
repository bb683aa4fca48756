"""Samples of one rank, on disk after every size: a rank that is killed leaves what it measured."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from stepscope.records import codec
from stepscope.records.comm import CommHeader, CommSample
from stepscope.store.writer import make_dir, write_error


class SampleWriter:
    """A samples file with its header. Owns the file: use as a context manager."""

    def __init__(self, path: Path, header: CommHeader) -> None:
        self._path = path
        make_dir(path.parent)
        try:
            self._file: BinaryIO = path.open("wb")
        except OSError as error:
            raise write_error(path, error) from error
        self._write(codec.encode_line(header, header=True))

    def add(self, sample: CommSample) -> None:
        self._write(codec.encode_line(sample))

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise write_error(self._path, error) from error
