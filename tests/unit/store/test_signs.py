"""What texts say of the end of a job: every form has its mark, and whose line it is comes from any launcher's prefix."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepscope.store.signs import forms
from stepscope.store.text_signs import SIGN_MARKS, signs_beside

NO_ROUTE = "include/socket.h:409 NCCL WARN Net : Connect to 10.9.8.7<41877> failed : No route to host"


def test_marks_are_those_of_the_forms() -> None:
    assert {form.mark for form in forms() if not form.beside} == set(SIGN_MARKS)


@pytest.mark.parametrize(
    ("prefix", "rank", "host"),
    [
        ("node-1:22:23 [1] ", None, "node-1"),
        ("[rank5]: ", 5, None),
        ("[1,3]<stdout>:node-2:22:23 [1] ", 3, "node-2"),
        ("2025-01-24T19:25:31.1Z stderr F [rank7]:", 7, None),
        ("[2025-05-21 03:38:40.204] node=gp-01 rank=2 ", 2, "gp-01"),
        ("trainer-1  | ", None, "trainer-1"),
        ("(Worker pid=20418, ip=10.6.0.14) [rank1]: ", 1, "10.6.0.14"),
    ],
)
def test_whose_a_line_is(tmp_path: Path, prefix: str, rank: int | None, host: str | None) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"nothing\n{prefix}{NO_ROUTE}\n")
    (sign,) = signs_beside([path])
    assert (sign.kind, sign.line, sign.rank, sign.host) == ("nccl-no-route", 2, rank, host)
    assert sign.values == {"peer": "10.9.8.7"}


def test_ranks_that_repeat_a_line_hide_no_other_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one kind and rank so many are kept; the last rank's exception comes behind all of them."""
    monkeypatch.setattr("stepscope.store.signs.MOST_SIGNS", 3)
    waits = (
        "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=4096, "
        "NumelOut=4096, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )
    path = tmp_path / "job.log"
    path.write_text(
        "".join(f"[rank{r}]:" + waits.format(r) for _ in range(5) for r in range(40))
        + "[rank40]: Traceback (most recent call last):\n[rank40]: ValueError: bad sample\n"
    )
    signs = signs_beside([path])
    assert {sign.rank for sign in signs} == set(range(41))
    assert max(Counter((sign.kind, sign.rank) for sign in signs).values()) == 3
