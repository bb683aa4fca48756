"""What a dry run says that a script sends and computes is what ranks of gloo then really send and compute."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from benchmarks._dry_calls import Call, of_record, seen
from benchmarks.dry_collectives import SCRIPT
from tests.dry_runs import dry_run

from stepscope.rank.mesh import Mesh

SHAPES = (
    ("ddp-sync", 2), ("ddp-static-unused", 2), ("ddp-unused", 2), ("fsdp1-mixed", 2), ("zero1", 2),
    ("hsdp", 4), ("tp-fsdp2", 4),
)  # fmt: skip


def real(mesh: Mesh, shape: str) -> tuple[list[Call], dict[str, int]]:
    del mesh
    sys.argv = [str(SCRIPT), shape]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return seen(lambda: runpy.run_path(str(SCRIPT)))


@pytest.mark.parametrize(("shape", "world"), SHAPES)
def test_collectives_and_flop_are_those_of_a_real_run(pools: Any, tmp_path: Path, shape: str, world: int) -> None:
    calls, flop = pools(world).run(real, shape)[0]
    assert calls
    assert flop["product"] > 0
    document = dry_run(SCRIPT, tmp_path, world=world, argv=[shape])
    assert of_record(document) == (calls, flop)
