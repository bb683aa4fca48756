"""What torch said last time is taken again only while nothing that decides it has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.machine.probes import torch
from stepscope.records.environment import TorchFact

CPU_BUILD = TorchFact(
    version="2.13.0+cpu", cuda_version=None, nccl_version=None, hip_version=None, gloo=True, nccl=False,
    cuda_available=False, device_count=0, device_names=(), device_memory_bytes=(), bf16=True, intra_op_threads=2,
)  # fmt: skip


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


def test_a_cpu_builds_answer_is_remembered(environ: dict[str, str]) -> None:
    assert torch.recall(environ) is None
    torch.remember(CPU_BUILD, environ)
    assert torch.recall(environ) == CPU_BUILD


@pytest.mark.parametrize("change", [{"cuda_version": "12.8"}, {"hip_version": "6.2"}, {"device_count": 1}])
def test_a_build_for_gpus_is_asked_every_time(environ: dict[str, str], change: dict[str, object]) -> None:
    torch.remember(replace(CPU_BUILD, **change), environ)  # type: ignore[arg-type]
    assert torch.recall(environ) is None


def test_another_number_of_threads_is_another_answer(environ: dict[str, str]) -> None:
    torch.remember(CPU_BUILD, environ)
    assert torch.recall({**environ, "OMP_NUM_THREADS": "1"}) is None


def test_a_damaged_file_is_as_good_as_none(environ: dict[str, str], tmp_path: Path) -> None:
    torch.remember(CPU_BUILD, environ)
    (path,) = tmp_path.glob("stepscope/torch/*.json")
    path.write_text("{")
    assert torch.recall(environ) is None


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    torch.remember(CPU_BUILD, environ)
    assert torch.recall(environ) is None
