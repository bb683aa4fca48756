"""Where acceptance tests run: on CUDA devices (``make test-gpu``); the same tests on the CPU (``make test-long``)."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.e2e.runs import Cli, torch_facts

from stepscope.machine.collect import collect
from stepscope.records.environment import TorchFact


@functools.cache
def torch_fact() -> TorchFact | None:
    return collect(remember=True, environ={"XDG_CACHE_HOME": str(torch_facts())}).torch


@dataclass(frozen=True)
class Target:
    """A device and a number of ranks on it. ``cli`` runs commands in a folder of its own."""

    device: str
    ranks: int
    cli: Cli

    @property
    def backend(self) -> str:
        return "nccl" if self.device == "cuda" else "gloo"

    @property
    def device_name(self) -> str:
        fact = torch_fact()
        return fact.device_names[0] if fact is not None and self.device == "cuda" else "cpu"

    def matrix(self, name: str, cells: str, **measure: object) -> str:
        """Cells on this device; every one of ``cells`` (lines of ``include:``) beside a single-process cell."""
        settings = {"warmup": 6, "budget_s": 20, "timeout_s": 120} | measure
        (self.cli.folder / name).write_text(
            "version: 1\n"
            "base: {workload: mlp, model: {size: tiny}, dataset: synthetic, dataset_options: {samples: 4096}, lr: 0.05,\n"
            f"       global_batch: 64, steps: 20, seed: 1, world_size: {self.ranks}}}\n"
            "axes: {strategy: [naive]}\n"
            f"include:\n{cells}\n"
            f"launch: {{device: {self.device}, backend: {self.backend}}}\n"
            f"measure: {json.dumps(settings)}\n"
        )
        return name


ON = [
    *(pytest.param(("cuda", ranks), marks=pytest.mark.gpu, id=f"cuda-{ranks}") for ranks in (1, 2, 4, 8)),
    *(pytest.param(("cpu", ranks), marks=pytest.mark.long, id=f"cpu-{ranks}") for ranks in (1, 2)),
]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
@pytest.fixture(scope="module", params=ON)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    device, ranks = request.param
    fact = torch_fact()
    if device == "cuda":
        if fact is None or not fact.cuda_available:
            pytest.skip(f"no GPU that torch can use: {(fact and fact.cuda_error) or 'none found'}")
        if fact.device_count < ranks:
            pytest.skip(f"needs {ranks} GPUs, here are {fact.device_count}")
    # On CUDA no process is a fork: the driver survives none.
    cli = Cli(tmp_path_factory.mktemp(device), fresh=device == "cuda")
    yield Target(device, ranks, cli)
    cli.close()
