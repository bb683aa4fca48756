from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.store.writer import write_bytes


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "a.csv", b"text")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_became_read_only_is_an_error_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StepscopeError) as found:
        write_bytes(tmp_path / "a.csv", b"text")
    assert str(tmp_path / "a.csv") in str(found.value)
