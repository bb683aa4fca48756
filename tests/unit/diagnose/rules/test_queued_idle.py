"""Idle time that the host is not the cause of has a finding too."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hand_events import Row, call, copy, kernel, launch, op
from tests.trace_evidence import by_hand, found, generated, quiet, with_idle

from stepscope.diagnose.rules.queued_idle import RULE

US = 1_000


def spaced(gap_us: int, *, length_us: int = 100, launched: bool = True) -> list[Row]:
    """Twenty kernels with gaps between them, all launched before the first starts."""
    rows: list[Row] = [op("aten::mm", 0, 100_000)]
    for i in range(20):
        at = 200_000 + i * (gap_us + length_us) * US
        if launched or i == 0:
            rows.append(launch(1000 * i, 1000 * i + 500, i))
        rows.append(kernel("gemm", at, at + length_us * US, i))
    return rows


def test_gaps_between_queued_kernels_have_a_finding() -> None:
    finding = found(RULE, by_hand(*spaced(120)))
    assert "idles 53" in finding.title
    assert "between queued kernels" in finding.title
    assert "19 gaps, the longest 120 us" in finding.evidence[0]


def test_the_call_that_the_host_waits_in_meanwhile_is_named() -> None:
    rows = spaced(120)
    waits = call("hipMemcpyWithStream", 100_000, 200_000 + 19 * 220 * US)
    finding = found(RULE, by_hand(*rows, waits))
    assert finding.title.endswith("which the host launched in time; meanwhile the host waits in hipMemcpyWithStream")
    assert not any("before the capture" in text for text in finding.evidence)  # 19 gaps, not one
    blocked = [op("aten::copy_", 0, 50 * US), *(launch(n, n + 500, n // 1000) for n in (1000, 2000))]
    blocked += [kernel("gemm", 3000, 9000, 1), kernel("gemm", 40_000 * US, 40_005 * US, 2)]
    finding = found(RULE, by_hand(*blocked, call("hipMemcpyWithStream", 10_000, 40_000 * US - 5_000)))
    assert "hipMemcpyWithStream" in finding.title
    assert "before the capture" in finding.evidence[-1]
    short = found(RULE, by_hand(*rows, call("hipMemcpyWithStream", 100_000, 400_000)))
    assert "meanwhile" not in short.title


def test_gaps_before_work_without_a_recorded_launch_are_of_unknown_cause() -> None:
    finding = found(RULE, by_hand(*spaced(120, launched=False)))
    assert "cause is unknown" in finding.title
    assert "schedule(" in finding.advice[0].text


@pytest.mark.parametrize(
    "name", ["Memcpy HtoD (Unified Memory)", "[CUDA Unified Memory memcpy DtoH]", "hipMemcpy ManagedToHost"]
)
def test_gaps_that_end_with_pages_that_move_have_a_cause(name: str) -> None:
    rows = [launch(0, 500, 1), kernel("add", 1000, 200_000, 1)]
    moves = [copy(name, at, at + 20 * US) for at in range(300 * US, 4000 * US, 120 * US)]
    evidence = by_hand(*rows, *moves)
    finding = found(RULE, evidence)
    assert finding.title.endswith("until pages of unified memory move")
    assert f"{len(moves)} gaps" in finding.evidence[0]
    assert "cudaMemPrefetchAsync" in finding.advice[0].text
    (rank,) = evidence.traces[0].summary.ranks
    assert rank.budget is not None
    assert {i.cause: i.idle_ns for i in rank.idle} == {"pages": rank.budget.parts.idle_ns}
    plain = by_hand(*rows, *(copy("Memcpy HtoD (Pageable -> Device)", m.start, m.end) for m in moves))
    assert "cause is unknown" in found(RULE, plain).title


def test_several_small_causes_are_said_together(tmp_path: Path) -> None:
    evidence = with_idle(generated(tmp_path, world=2), sync=0.08, data=0.07, host_late=0.09)
    assert "several causes" in found(RULE, evidence).title
    assert "host late 9" in found(RULE, evidence).evidence[1]
    assert quiet(RULE, with_idle(evidence, sync=0.08, data=0.07))


def test_a_window_of_no_length_is_quiet() -> None:
    assert quiet(
        RULE, by_hand(op("aten::zero_", 0, 5 * US), launch(US, 3 * US, 1), kernel("memset", 9 * US, 9 * US, 1))
    )
