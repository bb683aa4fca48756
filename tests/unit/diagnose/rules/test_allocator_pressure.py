from __future__ import annotations

from pathlib import Path

import pytest
from tests.evidence import evidence
from tests.memory_pickles import MIB, alloc, dump, event, free, live, release, segment

from stepscope.diagnose.rules.allocator_pressure import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

DATA = Path(__file__).parents[4].parent / "shared" / "data" / "memory_snapshots"


def loop(folder: Path, *, steps: int = 10, per_step: int = 50, asked: int = 0, emptied: int = 0) -> Evidence:
    """A warm-up that fills the pool, then steps of tensors that come and go.

    asked: of the late requests, so many go to the driver. emptied: so many of those after the cache was given back.
    """
    trace = [e for n in range(steps * per_step) for e in (event("segment_alloc", 20 * MIB), alloc(n, MIB))]
    for n in range(steps * per_step):
        if n < asked:
            trace += [event("segment_free", 20 * MIB)] if n < emptied else []
            trace.append(event("segment_alloc", 20 * MIB))
        trace += [alloc(10_000 + n, MIB), *release(10_000 + n, MIB)]
    path = dump(folder / "loop.pickle", [segment(live(MIB), free(19 * MIB))], trace)
    return load_evidence([path])


def test_a_cache_that_is_emptied_in_the_loop_is_a_problem(tmp_path: Path) -> None:
    (found,) = RULE.check(loop(tmp_path, asked=12, emptied=12))
    assert found.title == "the allocator emptied its cache 12 times in steady state"
    assert found.severity == "problem"
    assert found.advice[1].command == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_a_settled_loop_is_quiet(tmp_path: Path) -> None:
    outcome = RULE.check(loop(tmp_path))
    assert isinstance(outcome, Quiet)
    assert outcome.looked_at == "0 of 500 late requests went to the driver"


@pytest.mark.parametrize(("asked", "fires"), [(5, False), (6, True)])
def test_one_late_request_in_a_hundred_decides(tmp_path: Path, asked: int, fires: bool) -> None:
    assert isinstance(RULE.check(loop(tmp_path, asked=asked)), tuple) is fires


def test_a_short_history_shows_no_loop(tmp_path: Path) -> None:
    assert isinstance(RULE.check(loop(tmp_path, steps=2)), Skipped)
    assert isinstance(RULE.check(evidence()), Skipped)


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no snapshots at {DATA}")
def test_real_inference_in_a_settled_loop_is_quiet() -> None:
    assert isinstance(RULE.check(load_evidence([DATA / "gpt_medium_ctx128_inference.pickle"])), Quiet)


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no snapshots at {DATA}")
def test_real_forward_passes_that_keep_everything_fire() -> None:
    (found,) = RULE.check(load_evidence([DATA / "gpt_ctx256_forward.pickle"]))
    assert found.title == "234 late requests went to the driver: the pool was still growing"
    assert found.severity == "warning"
