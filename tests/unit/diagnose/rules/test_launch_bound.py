"""What late launches ask for: larger kernels where each is a little late, a look at the host where few are very late."""

from __future__ import annotations

import pytest
from tests.hand_events import Row, call, kernel, op, trace

from stepscope.diagnose.engine import diagnose_traces
from stepscope.traces.job import combine
from stepscope.traces.rank_pass import analyse

US, MS = 1_000, 1_000_000


def _late(every: int, *, by: int, count: int = 60) -> list[Row]:
    """Kernels of 100 us back to back; each ``every``-th is launched so late, by a call that lasts as long."""
    rows, at = [], 0
    for i in range(count):
        late = by if i and i % every == 0 else 0
        rows.append(op("aten::mm", at + 1, at + late + 10 * US))
        rows.append(call("cudaLaunchKernel", at + 2 * US, at + late + 9 * US, correlation=i + 1))
        rows.append(kernel("gemm", at + late + 10 * US, at + late + 110 * US, i + 1))
        at += late + 110 * US - (10 * US if i % every else 0)
    return rows


@pytest.mark.parametrize(("every", "by", "many"), [(1, 80 * US, True), (10, 9 * MS, False)])
def test_few_very_late_launches_ask_for_a_look_and_no_larger_kernels(every: int, by: int, many: bool) -> None:
    diagnosis = diagnose_traces(combine([analyse(trace(*_late(every, by=by)))]))
    (finding,) = (finding for finding in diagnosis.findings if finding.rule == "launch-bound")
    text = " ".join(advice.text for advice in finding.advice)
    assert ("torch.compile" in text) is many
    assert ("cudaLaunchKernel" in text) is not many
