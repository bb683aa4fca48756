from __future__ import annotations

from pathlib import Path

from tests.borders import pool
from tests.memory_pickles import MIB, dump, event, free, live, segment

from stepscope.diagnose.rules.fragmentation import RULE
from stepscope.records.finding import Quiet
from stepscope.results.open import load_evidence


def test_a_pool_in_splinters_fires_with_the_largest_piece(tmp_path: Path) -> None:
    (found,) = RULE.check(pool(tmp_path, split=8))
    assert found.title == "40% of reserved memory (800 MiB) is split into unusable pieces"
    assert found.severity == "warning"
    assert "the largest free block is 8.00 MiB" in found.evidence[0]


def test_a_failed_request_that_would_have_fitted_in_the_splinters_is_a_problem(tmp_path: Path) -> None:
    trace = [event("oom", 64 * MIB, device_free=2 * MIB)]
    (found,) = RULE.check(pool(tmp_path, split=8, trace=trace))
    assert found.severity == "problem"
    assert "a request of 64.0 MiB failed: less than the split memory" in found.evidence


def test_free_as_a_whole_is_not_fragmented(tmp_path: Path) -> None:
    path = dump(tmp_path / "s.pickle", [segment(live(20 * MIB)), *[segment(free(20 * MIB))] * 100])
    outcome = RULE.check(load_evidence([path]))
    assert isinstance(outcome, Quiet)
    assert outcome.looked_at.startswith("0% of 1.97 GiB reserved")
