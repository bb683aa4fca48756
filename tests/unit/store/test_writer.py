from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.store.writer import write_bytes


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "a.csv", b"text")
    assert list(tmp_path.iterdir()) == []
