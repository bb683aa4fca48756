"""What texts say of the end of a job: every form has its mark, and whose line it is comes from any launcher's prefix."""

from __future__ import annotations

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
