from __future__ import annotations

from pathlib import Path

import pytest
from tests.evidence import evidence

from stepscope.diagnose.rules.collective_mismatch import RULE
from stepscope.records.finding import Skipped
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.results.evidence import Evidence, Source
from stepscope.traces.flight import compare_dumps

Call = tuple[str, int, str]
SUM: Call = ("all_reduce", 1024, "float32")
GATHER: Call = ("all_gather", 64, "float32")


def dump(rank: int, *calls: Call, waits: bool = True) -> FlightDump:
    """One rank's calls (operation, elements, type); the last one has not finished where it ``waits``."""
    entries = tuple(
        FlightEntry(
            record_id=number, group="0", sequence=number + 1, op=op, name=f"nccl:{op}", input_sizes=((numel,),),
            input_dtypes=(dtype,), output_sizes=((numel,),), output_dtypes=(dtype,),
            state="started" if waits and number == len(calls) - 1 else "completed",
        )
        for number, (op, numel, dtype) in enumerate(calls)
    )  # fmt: skip
    group = FlightGroup(name="0", description="default_pg", ranks=(0, 1, 2))
    return FlightDump(rank=rank, entries=entries, groups=(group,), kept="all", world_size=3)


def of(*dumps: FlightDump) -> Evidence:
    source = Source(path=Path("dumps"), kind="imported", format="flight_recorder")
    return Evidence(sources=(source,), flight=compare_dumps(dumps))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("all_reduce", 1000, "float32"), "rank 2 called collective 2 of default_pg with another size"),
        (("all_reduce", 1024, "bfloat16"), "rank 2 called collective 2 of default_pg with another type"),
        (("broadcast", 1024, "float32"), "rank 2 called collective 2 of default_pg another operation"),
    ],
)
def test_the_rank_that_called_something_else_is_named(call: Call, said: str) -> None:
    (found,) = RULE.check(of(dump(0, SUM, SUM), dump(1, SUM, SUM), dump(2, SUM, call)))
    assert found.title == said
    assert found.severity == "problem"
    assert found.subject == "rank 2"
    assert found.advice[1].command == "export TORCH_DISTRIBUTED_DEBUG=DETAIL"


def test_a_swapped_order_is_told_as_such() -> None:
    usual, swapped = (SUM, GATHER, SUM), (GATHER, SUM, SUM)
    (found,) = RULE.check(of(dump(0, *usual), dump(1, *usual), dump(2, *swapped)))
    assert found.title == "rank 2 called collective 1 of default_pg in another order"


def test_without_dumps_it_is_skipped() -> None:
    assert isinstance(RULE.check(evidence()), Skipped)
