"""Flight recorders side by side: dumps written down by hand, one fault each.

Dumps of 16 ranks of which two were broken on purpose: both are found, and nobody else is blamed.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.records.nccl import FlightDump, FlightEntry, FlightFinding, FlightGroup
from stepscope.store.importers.flight_recorder import read_folder
from stepscope.traces.flight import compare_dumps, culprits, summary

WORLD = (0, 1, 2)


def call(
    sequence: int, op: str = "all_reduce", numel: int = 100, dtype: str = "float32", **changes: Any
) -> FlightEntry:
    both = ((numel,),) if op != "barrier" else ()
    entry = FlightEntry(
        record_id=sequence - 1, group="0", sequence=sequence, op=op, name=f"gloo:{op}", input_sizes=both,
        input_dtypes=(dtype,) * len(both), output_sizes=both, output_dtypes=(dtype,) * len(both), state="completed",
    )  # fmt: skip
    return replace(entry, **changes)


def pending(
    sequence: int, op: str = "all_reduce", numel: int = 100, dtype: str = "float32", **changes: Any
) -> FlightEntry:
    return call(sequence, op, numel, dtype, state="scheduled", **changes)


def dump(rank: int, *entries: FlightEntry, kept: str = "all", groups: dict[str, tuple[int, ...]] | None = None,
         status: dict[str, tuple[int, int]] | None = None) -> FlightDump:  # fmt: skip
    """``status``: (last enqueued, last completed) by group."""
    members = groups or {"0": WORLD}
    known = status or {}
    return FlightDump(
        rank=rank,
        entries=entries,
        kept=kept,  # type: ignore[arg-type]
        groups=tuple(
            FlightGroup(
                name=name,
                description="default_pg" if name == "0" else None,
                ranks=ranks,
                last_enqueued=known.get(name, (None, None))[0],
                last_completed=known.get(name, (None, None))[1],
            )
            for name, ranks in members.items()
        ),
    )


def only(findings: tuple[FlightFinding, ...]) -> FlightFinding:
    (finding,) = [f for f in findings if f.cause]
    return finding


def test_ranks_that_did_the_same_and_finished_are_no_finding() -> None:
    assert (
        compare_dumps([dump(r, call(1), call(2, "barrier"), call(3, "all_gather")) for r in WORLD], world_size=3) == ()
    )


def test_a_rank_that_never_called_anything_is_missing_from_the_first_on() -> None:
    finding = only(compare_dumps([dump(0, pending(1)), dump(1), dump(2, pending(1))], world_size=3))
    assert (finding.kind, finding.ranks, finding.sequence) == ("missing_call", (1,), 1)


def test_a_rank_without_a_dump_is_told_of_beside_another_cause() -> None:
    findings = compare_dumps([dump(0, pending(1)), dump(1)], world_size=3)
    assert culprits(findings) == (1,)
    (silent,) = [f for f in findings if f.kind == "incomplete_dump"]
    assert silent.ranks == (2,)
    assert not silent.cause


def test_a_dump_that_could_not_be_read_says_why() -> None:
    unread = replace(dump(1), groups=(), unavailable="its flight recorder did not respond within 1 s")
    findings = compare_dumps([dump(0, pending(1)), unread, dump(2, pending(1))], world_size=3)
    assert culprits(findings) == (1,)
    assert any("did not respond" in f.sentence for f in findings)


@pytest.mark.parametrize(
    ("other", "kind", "words"),
    [
        (pending(2, numel=60), "size_mismatch", "all_reduce [60] float32"),
        (pending(2, dtype="float64"), "dtype_mismatch", "all_reduce [100] float64"),
        (pending(2, op="broadcast"), "op_mismatch", "broadcast [100] float32"),
    ],
)
def test_the_odd_one_out_is_named_with_what_it_called(other: FlightEntry, kind: str, words: str) -> None:
    usual = [dump(r, call(1), pending(2)) for r in (0, 2)]
    finding = only(compare_dumps([*usual, dump(1, call(1), other)], world_size=3))
    assert (finding.kind, finding.ranks, finding.sequence) == (kind, (1,), 2)
    assert finding.sentence == (
        f"rank 1 called {words} as collective 2 of the default group, ranks 0, 2 all_reduce [100] float32"
    )


def test_what_follows_a_mismatch_in_its_group_is_no_cause() -> None:
    usual = [dump(r, call(1), pending(2)) for r in (0, 2)]
    odd = dump(1, call(1), call(2, "broadcast"), pending(3, numel=7))
    findings = compare_dumps([*usual, odd], world_size=3)
    assert only(findings).kind == "op_mismatch"
    assert [f.kind for f in findings if not f.cause] == ["missing_call"], "0 and 2 never called 3: a consequence"


def test_a_silent_mismatch_of_long_ago_does_not_excuse_a_rank_that_is_missing_now() -> None:
    usual = [dump(r, call(1), call(2), pending(3)) for r in (0, 2)]
    findings = compare_dumps([*usual, dump(1, call(1, dtype="int32"), call(2))], world_size=3)
    assert [f.kind for f in findings if f.cause] == ["dtype_mismatch", "missing_call"]


def test_ranks_may_pass_different_sizes_to_an_all_to_all_but_not_different_dtypes() -> None:
    sizes = [dump(r, call(1, "all_to_all", numel=r + 1)) for r in WORLD]
    assert compare_dumps(sizes, world_size=3) == ()
    sizes[2] = dump(2, call(1, "all_to_all", dtype="bfloat16"))
    assert only(compare_dumps(sizes, world_size=3)).kind == "dtype_mismatch"


def test_two_swapped_collectives_are_one_finding_and_no_two_mismatches() -> None:
    usual = [dump(r, call(1), call(2, "all_gather"), call(3)) for r in (0, 2)]
    finding = only(compare_dumps([*usual, dump(1, call(1, "all_gather"), call(2), call(3))], world_size=3))
    assert (finding.kind, finding.ranks, finding.sequence) == ("order_mismatch", (1,), 1)
    assert "in the opposite order" in finding.sentence
    assert "as collective 2" in finding.sentence


def test_a_collective_left_out_in_the_middle_is_told_as_such_and_not_as_many_mismatches() -> None:
    usual = [dump(r, call(1), call(2, numel=5), call(3, numel=6), call(4, numel=7), pending(5)) for r in (0, 2)]
    odd = dump(1, call(1), call(2, numel=6), call(3, numel=7), call(4))
    finding = only(compare_dumps([*usual, odd], world_size=3))
    assert (finding.kind, finding.ranks, finding.sequence) == ("missing_call", (1,), 2)
    assert "never called collective 2 of the default group (all_reduce [5] float32)" in finding.sentence


def test_one_collective_too_many_is_told_as_such() -> None:
    usual = [dump(r, call(1), call(2, numel=6), call(3, numel=7), call(4, numel=8)) for r in (0, 2)]
    odd = dump(1, call(1), call(2, "broadcast"), call(3, numel=6), call(4, numel=7), call(5, numel=8))
    finding = only(compare_dumps([*usual, odd], world_size=3))
    assert (finding.kind, finding.ranks, finding.sequence) == ("order_mismatch", (1,), 2)
    assert "1 collective more than ranks 0, 2: broadcast" in finding.sentence


def test_one_odd_call_among_equal_ones_is_a_mismatch_of_that_place_alone() -> None:
    usual = [dump(r, *(call(s) for s in range(1, 6))) for r in (0, 2)]
    odd = dump(1, call(1), call(2, dtype="int32"), call(3), call(4), call(5))
    finding = only(compare_dumps([*usual, odd], world_size=3))
    assert (finding.kind, finding.sequence) == ("dtype_mismatch", 2)


def test_what_a_ring_has_dropped_is_not_a_call_that_was_not_made() -> None:
    groups = {"0": WORLD, "1": WORLD}
    other = [call(s, group="1", record_id=100 + s) for s in range(1, 4)]
    full = dump(1, *other, kept="latest", groups=groups)  # all of group 0 has left the ring
    rest = [dump(r, call(1), pending(2), *other, kept="all", groups=groups) for r in (0, 2)]
    assert culprits(compare_dumps([rest[0], full, rest[1]], world_size=3)) == ()


def test_a_rank_that_does_not_get_out_of_what_others_finished_is_stuck_inside() -> None:
    through = [dump(r, call(1), call(2), pending(3)) for r in (0, 2)]
    findings = compare_dumps([through[0], dump(1, call(1), pending(2)), through[1]], world_size=3)
    finding = only(findings)
    assert (finding.kind, finding.ranks, finding.sequence) == ("stuck_inside", (1,), 2)
    assert finding.sentence.endswith("ranks 0, 2 finished it")
    assert [f.kind for f in findings if not f.cause] == ["missing_call"]


def test_leaves_that_left_a_broadcast_early_prove_nothing_about_its_root() -> None:
    early = [dump(r, call(1, "broadcast")) for r in (1, 2)]
    assert culprits(compare_dumps([dump(0, pending(1, "broadcast")), *early], world_size=3)) == ()


def test_a_rank_that_itself_waits_for_another_is_not_to_blame() -> None:
    """Group 1 waits for rank 1, which waits in group 0 for rank 2."""
    groups = {"0": (1, 2), "1": (0, 1)}
    dumps = [
        dump(0, pending(1, group="1"), groups=groups),
        dump(1, pending(1), groups=groups),
        dump(2, groups={"0": (1, 2)}),
    ]
    findings = compare_dumps(dumps, world_size=3)
    assert culprits(findings) == (2,)
    assert [(f.ranks, f.cause) for f in findings if f.group == "1"] == [((1,), False)]


def test_ranks_that_wait_for_each_other_in_two_groups_are_told_as_a_circle() -> None:
    groups = {"0": (0, 1), "1": (0, 1)}
    dumps = [dump(0, pending(1), groups=groups), dump(1, pending(1, group="1"), groups=groups)]
    findings = compare_dumps(dumps, world_size=2)
    assert culprits(findings) == (0, 1)
    assert all("wait for each other" in f.sentence for f in findings)


def test_a_rank_that_waits_for_one_without_a_dump_is_not_to_blame() -> None:
    groups = {"0": (0, 1), "1": (1, 2)}
    dumps = [dump(0, pending(1), groups={"0": (0, 1)}), dump(1, pending(1, group="1"), groups=groups)]
    assert culprits(compare_dumps(dumps, world_size=3)) == (2,)


def p2p(op: str, own: int, peer: int, numel: int = 8, **changes: Any) -> FlightEntry:
    source, destination = (own, peer) if op == "send" else (peer, own)
    return pending(1, op, numel, is_p2p=True, source=source, destination=destination, **changes)


def test_a_recv_without_its_send_names_the_rank_that_did_not_send() -> None:
    findings = compare_dumps([dump(0, p2p("recv", 0, 2)), dump(1), dump(2)], world_size=3)
    finding = only(findings)
    assert (finding.kind, finding.ranks, finding.waiting, finding.is_p2p) == ("missing_call", (2,), (0,), True)
    assert "rank 2 never called the send to rank 0" in finding.sentence


def test_ranks_in_a_point_to_point_name_are_the_groups_own() -> None:
    groups = {"5": (4, 9)}
    dumps = [dump(4, p2p("send", 0, 1, group="5"), groups=groups), dump(9, groups=groups)]
    assert culprits(compare_dumps(dumps)) == (9,)


def test_a_send_and_its_recv_must_have_equal_size() -> None:
    findings = compare_dumps([dump(0, p2p("send", 0, 1)), dump(1, p2p("recv", 1, 0, numel=9)), dump(2)], world_size=3)
    assert only(findings).kind == "size_mismatch"


def test_matching_point_to_point_calls_are_no_finding() -> None:
    assert compare_dumps([dump(0, p2p("send", 0, 1)), dump(1, p2p("recv", 1, 0)), dump(2)], world_size=3) == ()


def test_the_summary_names_every_culprit_once_and_counts_the_rest() -> None:
    groups = {str(g): WORLD for g in range(6)}
    waits = [dump(r, *(pending(1, group=str(g), record_id=g) for g in range(6)), groups=groups) for r in (0, 2)]
    text = summary(compare_dumps([*waits, dump(1, groups=groups)], world_size=3))
    assert text.count("rank 1 never called") == 1, "it is missing everywhere: once is enough"
    assert summary(()) is None


DATA = Path(__file__).parents[3].parent / "shared" / "data" / "flight_recorder"


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there")
@pytest.mark.parametrize("name", ["gpu_error_1st", "lock_gil_1st"])
@pytest.mark.parametrize("lost", [None, 0, 5, 8, 15])
def test_the_causes_name_the_ranks_that_were_broken_whichever_healthy_dump_is_lost(name: str, lost: int | None) -> None:
    log = (DATA / name / "fault_injection.log").read_text()
    broken = set(json.loads(re.findall(r"Fault ranks: (\[.*\])", log)[0]))
    dumps = read_folder(DATA / name).dumps
    assert [d.rank for d in dumps] == list(range(16))
    findings = compare_dumps([d for d in dumps if d.rank != lost], world_size=16)
    assert set(culprits(findings)) == broken
    assert any(f.kind == "incomplete_dump" and lost in f.ranks for f in findings) is (lost is not None)
    assert not [f for f in findings if "mismatch" in f.kind]
