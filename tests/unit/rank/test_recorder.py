"""Samples reach the disk while the cell runs, and a full disk is said in words.

What a rank says of its own end.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from stepscope.core.errors import DataError, MissingError
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.recorder import Recorder, StepFacts, Terminated, classify, describe
from stepscope.rank.timer import CpuStepTimer, PendingStep
from stepscope.records.samples import SamplesHeader
from stepscope.store.reader import read_samples

HEADER = SamplesHeader(cell_id="c", rank=0, world_size=1, clock="perf_counter", comm_source="hook")


def pending(step_ns: int) -> PendingStep:
    clock = iter([0, step_ns])
    timer = CpuStepTimer(now=lambda: next(clock))
    timer.start()
    return timer.stop()


def facts(step: int, *, warmup: bool = False, full: bool = True, epoch: int = 0) -> StepFacts:
    return StepFacts(
        round=0, step=step, epoch=epoch, warmup=warmup, full=full, samples=4, global_samples=8, host_data_ns=1
    )


def test_flushed_steps_are_on_disk_before_the_recorder_closes(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with Recorder(path, HEADER) as recorder:
        recorder.add(facts(0, warmup=True), pending(50), torch.tensor(3.0))
        recorder.add(facts(1), pending(10), torch.tensor(2.0))
        recorder.add(facts(2, full=False), pending(7), torch.tensor(1.0))
        recorder.flush()
        read = read_samples(path)
        assert recorder.warmup_step_ns == [50]
        assert recorder.timed_step_ns == [10]
        assert recorder.epoch_step_ns == {0: 67}
        assert recorder.epoch_loss == {0: 6.0}
    assert [(s.step, s.step_ns, s.warmup, s.loss_sum) for s in read.steps] == [
        (0, 50, True, 3.0),
        (1, 10, False, 2.0),
        (2, 7, False, 1.0),
    ]


def test_a_loss_that_is_not_finite_is_recorded_as_unknown(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with Recorder(path, HEADER) as recorder:
        recorder.add(facts(0), pending(5), torch.tensor(float("nan")))
    read = read_samples(path)
    assert read.steps[0].loss_sum is None
    assert math.isnan(recorder.epoch_loss[0])


def test_a_second_round_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    for step in (0, 1):
        with Recorder(path, HEADER) as recorder:
            recorder.add(facts(step), pending(5), torch.tensor(1.0))
    read = read_samples(path)
    assert [s.step for s in read.steps] == [0, 1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.symlink_to("/dev/full")
    recorder = Recorder(path, HEADER)
    recorder.add(facts(0), pending(5), torch.tensor(1.0))
    with pytest.raises(MissingError, match="No space left"):
        recorder.flush()
    recorder._pending.clear()
    with pytest.raises(OSError, match="No space left"):
        recorder._file.close()


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
    assert "test_recorder.py" in record.traceback
