"""What a rank says of its own end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepscope.core.errors import DataError
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.recorder import Terminated, classify, describe


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (torch.distributed.DistBackendError("NCCL error: Cuda failure 2 'out of memory'"), "oom"),
        (MemoryError(), "host_oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "host_oom"),
        (RuntimeError("[tcp/pair.cc:555] Connection closed by peer [127.0.0.1]:4242"), "victim"),
        (RuntimeError("[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"), "victim"),
        (torch.distributed.DistNetworkError("the store is gone"), "victim"),
        (DataError("train.csv: expected 3 columns, found 2"), "usage"),
        (Terminated("signal SIGTERM"), "terminated"),
        (ValueError("shapes do not match"), "error"),
        (SystemExit(3), "error"),
    ],
)
def test_failures_are_told_apart(error: BaseException, kind: str) -> None:
    assert classify(error) == kind


def test_the_record_says_where_the_rank_was(tmp_path: Path) -> None:
    pulse = Pulse(rank=3, path=tmp_path / "heartbeat", on_low_memory=lambda _: None)
    pulse.move_to(tmp_path / "heartbeat", "the-cell")
    pulse.enter("measure", step=17)
    try:
        raise DataError("a", fix="do this")
    except DataError as error:
        record = describe(error, pulse)
    assert (record.rank, record.cell_id, record.phase, record.step) == (3, "the-cell", "measure", 17)
    assert record.exception == "DataError: a; fix: do this", "one line: it goes into tables"
    assert record.fix == "do this"
    assert "test_failure.py" in record.traceback
