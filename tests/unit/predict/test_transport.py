"""Lanes and slowdowns of collectives."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.predict.overlap import Transport, measured_transport, rates_while_both_run, transport_of
from stepscope.records.comm import CommRow


def row(comm: float | None, compute: float | None, **changes: Any) -> CommRow:
    fields: dict[str, Any] = dict.fromkeys(CommRow.__dataclass_fields__)
    fields |= {
        "cell_id": "c", "status": "ok", "kind": "overlap", "op": "all_reduce", "dtype": "float32", "backend": "gloo",
        "size_bytes": 1 << 20, "slowdown": comm, "beside_slowdown": compute, "notes": (), "env": {},
    }  # fmt: skip
    return CommRow(**(fields | changes))


def test_the_backend_decides_how_many_collectives_run_at_once() -> None:
    assert transport_of("gloo").lanes == 2
    assert transport_of("nccl").lanes == 1
    with pytest.raises(UsageError, match="did you mean 'nccl'"):
        transport_of("ncl")


def test_slowdowns_are_the_medians_of_the_overlap_rows_of_bucket_size() -> None:
    rows = [
        row(1.2, 1.2), row(1.4, 1.4), row(3.0, 3.0),
        row(9.0, 9.0, size_bytes=4096), row(9.0, 9.0, op="all_gather"), row(9.0, 9.0, kind="collective"),
        row(9.0, 9.0, backend="nccl"), row(None, None, status="unsupported"), row(9.0, 9.0, status="error"),
    ]  # fmt: skip
    found = measured_transport("gloo", rows)
    assert found == Transport(lanes=2, comm_slowdown=1.4, compute_slowdown=1.4, startup_stalls=True)


def test_noise_below_one_is_no_speed_up() -> None:
    assert measured_transport("nccl", [row(0.98, 0.97, backend="nccl")]) == Transport(lanes=1)


def test_without_overlap_rows_there_is_nothing_to_take() -> None:
    with pytest.raises(UsageError, match="no overlap of all_reduce on gloo") as raised:
        measured_transport("gloo", [row(1.2, 1.2, size_bytes=4096)])
    assert "--overlap" in str(raised.value.fix)


@pytest.mark.parametrize(("comm_rate", "compute_rate"), [(1.0, 1.0), (1.25, 1.25), (2.0, 1.3), (1.1, 1.8)])
def test_slowdowns_are_found_again_from_what_they_make_of_two_equally_long_works(
    comm_rate: float, compute_rate: float
) -> None:
    first = min(comm_rate, compute_rate)  # the faster one ends, the other goes on alone
    comm = comm_rate if comm_rate == first else first + 1 - first / comm_rate
    compute = compute_rate if compute_rate == first else first + 1 - first / compute_rate
    assert rates_while_both_run(comm, compute) == pytest.approx((comm_rate, compute_rate))


def test_works_that_were_not_equally_long_keep_their_ratios() -> None:
    assert rates_while_both_run(2.5, 1.2) == (2.5, 1.2)
