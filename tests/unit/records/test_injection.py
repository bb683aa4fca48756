"""What a planted fault may be called, that one fault has one text, and which cells it concerns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.records.injection import Amount, Injection, SlowRank, absent_ranks, parse_injection

THIRD = Amount(share=0.3)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("slow_rank=2:30%", Injection(slow=(SlowRank(rank=2, by=THIRD),))),
        ("slow_rank=0:5ms", Injection(slow=(SlowRank(rank=0, by=Amount(ns=5_000_000)),))),
        ("jitter", Injection(jitter=Amount(share=0.5))),
        ("loader=10ms", Injection(loader=Amount(ns=10_000_000))),
        ("jitter=2.5%, slow_rank=1:30%", Injection(slow=(SlowRank(rank=1, by=THIRD),), jitter=Amount(share=0.025))),
    ],
)
def test_a_text_is_read_as_documented(text: str, meant: Injection) -> None:
    assert parse_injection(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "", "slow", "slow_rank", "slow_rank=2", "slow_rank=two:30%", "slow_rank=-1:30%", "slow_rank=1:30",
        "slow_rank=1:0%", "slow_rank=1:1e99%", "slow_rank=1:inf%", "slow_rank=1:30%,slow_rank=1:20%", "jitter=",
        "jitter=5", "jitter,jitter", "loader=2h", "loader=-5ms", "jitter=20000%", "delay=5ms", "slow_rank=1:30%;jitter",
        "jitter=0.0000001%",
    ],
)  # fmt: skip
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a planted fault"):
        parse_injection(text)


@pytest.mark.parametrize("text", ["slow_rank=1:0.00001%", "slow_rank=1:12.3456789%", "jitter=10000%", "loader=5.5ms"])
def test_the_canonical_text_of_what_was_written_is_the_same_fault(text: str) -> None:
    assert parse_injection(str(parse_injection(text))) == parse_injection(text)


AMOUNTS = st.integers(1, 10**10).map(lambda ns: Amount(ns=ns)) | st.integers(1, 99_000).map(
    lambda thousandths: Amount(share=thousandths / 1e5)
)


@given(slow=st.dictionaries(st.integers(0, 99), AMOUNTS, max_size=3), jitter=st.none() | AMOUNTS, loader=AMOUNTS)
def test_the_canonical_text_reads_back_as_it(slow: dict[int, Amount], jitter: Amount | None, loader: Amount) -> None:
    made = Injection(
        slow=tuple(SlowRank(rank=rank, by=slow[rank]) for rank in sorted(slow)), jitter=jitter, loader=loader
    )
    again = parse_injection(str(made))
    assert str(again) == str(made)
    assert [a.of(1e6) for a in again.amounts] == pytest.approx([a.of(1e6) for a in made.amounts])


def test_ranks_that_a_world_lacks_are_known() -> None:
    assert absent_ranks(parse_injection("slow_rank=1:30%,slow_rank=4:30%"), 4) == (4,)
