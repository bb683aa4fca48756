"""The black box: written once, on every way out, whatever the recorder does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from stepscope.rank import flight
from stepscope.records.nccl import FlightDump
from stepscope.store.importers.flight_recorder import read_dump
from stepscope.store.layout import CellLayout


@pytest.fixture
def inside_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)


def filled(*, rank: int, world_size: int) -> FlightDump:
    return FlightDump(rank=rank, world_size=world_size, entries=(), groups=(), kept="all")


@pytest.mark.usefixtures("inside_a_group")
def test_the_first_way_out_writes_and_the_others_leave_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "snapshot", filled)
    box = flight.BlackBox(rank=3, world_size=4)
    first, second = CellLayout(tmp_path / "a"), CellLayout(tmp_path / "b")
    box.leave(first)
    box.leave(second)
    assert read_dump(first.flight(3)).world_size == 4
    assert not second.flight(3).exists()


@pytest.mark.usefixtures("inside_a_group")
def test_a_recorder_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def stuck(*, rank: int, world_size: int) -> FlightDump:
        never.wait(30)
        return filled(rank=rank, world_size=world_size)

    monkeypatch.setattr(flight, "snapshot", stuck)
    cell = CellLayout(tmp_path)
    flight.BlackBox(rank=0, world_size=2).leave(cell, timeout_s=0.05)
    never.set()
    dump = read_dump(cell.flight(0))
    assert "did not respond within 0.05 s" in dump.unavailable


@pytest.mark.usefixtures("inside_a_group")
def test_a_folder_that_cannot_be_written_does_not_stop_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "snapshot", filled)
    (tmp_path / "file").write_text("")
    flight.BlackBox(rank=0, world_size=1).leave(CellLayout(tmp_path / "file"))


def test_before_the_process_group_there_is_nothing_to_leave(tmp_path: Path) -> None:
    flight.BlackBox(rank=0, world_size=2).leave(CellLayout(tmp_path))
    assert not list(tmp_path.iterdir())
