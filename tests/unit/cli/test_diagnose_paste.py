"""A text on standard input is read as a file is."""

from __future__ import annotations

import io
import sys

import pytest

from stepscope.cli.main import main

LINE = b"node-7:31:45 [2] init.cc:1 NCCL WARN Duplicate GPU detected : rank 5 and rank 4 both on CUDA device 3b000\n"


class Typed(io.TextIOWrapper):
    def isatty(self) -> bool:
        return False


def test_a_paste_is_diagnosed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Typed(io.BytesIO(LINE)))
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "-"])
    assert ended.value.code == 0
    assert "Ranks 4 and 5 use the same GPU" in capsys.readouterr().out
