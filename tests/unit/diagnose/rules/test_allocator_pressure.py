from __future__ import annotations

from pathlib import Path

import pytest
from tests.borders import loop

from stepscope.diagnose.rules.allocator_pressure import RULE
from stepscope.results.open import load_evidence

DATA = Path(__file__).parents[4].parent / "shared" / "data" / "memory_snapshots"


def test_a_cache_that_is_emptied_in_the_loop_is_a_problem(tmp_path: Path) -> None:
    (found,) = RULE.check(loop(tmp_path, asked=12, emptied=12))
    assert found.title == "the allocator emptied its cache 12 times in steady state"
    assert found.severity == "problem"
    assert found.advice[1].command == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no snapshots at {DATA}")
def test_real_forward_passes_that_keep_everything_fire() -> None:
    (found,) = RULE.check(load_evidence([DATA / "gpt_ctx256_forward.pickle"]))
    assert found.title == "234 late requests went to the driver: the pool was still growing"
    assert found.severity == "warning"
