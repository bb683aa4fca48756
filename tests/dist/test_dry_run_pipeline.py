"""What a dry run says that the ranks of a pipeline send and compute is what they then really send and compute on gloo."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from benchmarks._dry_calls import Call, of_record, seen
from benchmarks.dry_collectives import STAGES_SCRIPT
from tests.dry_runs import dry_run

from stepscope.rank.mesh import Mesh

SHAPES = (("zbv", 2, (0, 1)), ("1f1b-tp", 4, (0, 2)), ("experts", 2, (0,)))
"""Shape of benchmarks/dry_scripts/stages.py, ranks, and those that are run without the others."""


def real(mesh: Mesh, shape: str) -> tuple[list[Call], dict[str, int]]:
    del mesh
    sys.argv = [str(STAGES_SCRIPT), shape]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return seen(lambda: runpy.run_path(str(STAGES_SCRIPT)))


@pytest.mark.parametrize(("shape", "world", "ranks"), SHAPES)
def test_messages_collectives_and_flop_are_those_of_a_real_run(
    pools: Any, tmp_path: Path, shape: str, world: int, ranks: tuple[int, ...]
) -> None:
    truth = pools(world).run(real, shape)
    for rank in ranks:
        document = dry_run(STAGES_SCRIPT, tmp_path, world=world, rank=rank, argv=[shape], output=tmp_path)
        assert of_record(document) == truth[rank]
        assert truth[rank][1]["product"] > 0
        stages = {action["stage"] for action in document["pipeline"]["actions"]} if shape != "experts" else set()
        assert stages == {"zbv": {rank, 3 - rank}, "1f1b-tp": {rank // 2}, "experts": set()}[shape]
