"""Before any process group exists: is this rank where it thinks it is, and whose fault is it if not."""

from __future__ import annotations

import signal

import pytest
import torch

from stepscope.core.errors import MissingError, UsageError
from stepscope.rank.recorder import Terminated
from stepscope.rank.startup import RankPlace, install_signals, leave_undisturbed, pick_device, read_place


def test_torchruns_variables_are_read() -> None:
    environ = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    assert read_place(environ) == RankPlace(rank=3, local_rank=1, world_size=4)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "0", "LOCAL_RANK": "x", "WORLD_SIZE": "2"}, "LOCAL_RANK is 'x'"),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK is 2 but WORLD_SIZE is 2"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_place(environ)


def test_cpu_ranks_need_no_gpu() -> None:
    assert pick_device("cpu", RankPlace(7, 7, 8), {}) == torch.device("cpu")


@pytest.mark.parametrize(
    ("environ", "words"), [({"CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES='0,1'"), ({}, "--nproc-per-node")]
)
def test_a_rank_without_a_gpu_names_the_variable_or_the_launcher(
    environ: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(MissingError, match="rank 5: GPU 2 does not exist") as caught:
        pick_device("cuda", RankPlace(rank=5, local_rank=2, world_size=6), environ)
    assert words in str(caught.value)


def test_sigterm_interrupts_a_rank_until_it_is_on_its_way_out() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        install_signals()
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        leave_undisturbed()
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
