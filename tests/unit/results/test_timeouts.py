"""Timeouts by their texts, and who is at fault behind them."""

from __future__ import annotations

import pytest

from stepscope.results.ends.judge import never_came
from stepscope.results.ends.timeouts import Timeout, timeout_of

NCCL = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=4196352, "
    "NumelOut=4196352, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("[/gloo/unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete", Timeout(seconds=20.0)),
        ("[pair.cc:462] Application timeout caused pair closure", Timeout()),
        (NCCL, Timeout(seconds=600.029)),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: " + NCCL,
         Timeout(seconds=600.029)),
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms", Timeout(seconds=5.0, named=(1,))),
        ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms", Timeout(seconds=5.0, named=(1, 3))),
        ("Rank 2 successfully reached monitoredBarrier, but received errors while waiting from rank 0.", Timeout()),
        ("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1", Timeout(seconds=300.0)),
        ("Timed out after 301 seconds waiting for clients. 1/2 clients joined.", Timeout(seconds=301.0)),
        ("[pair.cc:547] Connection closed by peer [127.0.0.1]:1234", None),
        ("NCCL communicator was aborted on rank 1.", None),
        ("the request timed out", None),
    ],
)  # fmt: skip
def test_what_a_message_says_of_a_wait(message: str, found: Timeout | None) -> None:
    assert timeout_of(message) == found


ALIVE, ABSENT, INSIDE, UNKNOWN = "alive", "absent", "inside", "unknown"


@pytest.mark.parametrize(
    ("stances", "at_fault"),
    [
        ({1: ABSENT}, (1,)),
        ({1: ALIVE}, (1,)),  # it lived, and all the others waited for it
        ({1: UNKNOWN}, ()),  # it may have been killed on another host
        ({1: INSIDE}, ()),  # in another collective: they wait for each other
        ({}, ()),
        ({1: ABSENT, 2: INSIDE}, (1,)),
        ({1: ALIVE, 2: INSIDE}, (1,)),
        ({1: ALIVE, 2: ALIVE}, ()),  # one of them did not come
        ({1: ALIVE, 2: ABSENT}, (2,)),
    ],
)
def test_who_never_came_is_at_fault_and_nobody_where_that_is_not_known(
    stances: dict[int, str], at_fault: tuple[int, ...]
) -> None:
    assert never_came(stances) == at_fault
