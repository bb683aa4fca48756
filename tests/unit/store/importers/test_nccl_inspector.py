"""Files of the NCCL Inspector: what becomes of them, and that a late rank is the one with the shortest time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError
from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.open import load_evidence
from stepscope.store.importers import read_foreign


def line(
    rank: int, number: int, us: int, *, ranks: int, op: str, size: int, name: str, **changes: Any
) -> dict[str, Any]:
    """One line as version 4 of the format has it."""
    of_all = size * ranks if op in ("AllGather", "ReduceScatter") else size
    algbw = of_all / us / 1e3
    call = {
        "coll": op, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": us,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": round(algbw, 6), "coll_busbw_gbs": round(algbw * 1.5, 6),
    }  # fmt: skip
    return {
        "header": {"id": name, "rank": rank, "n_ranks": ranks, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "hostname": f"node{rank * 2 // ranks}",
            "pid": 40 + rank,
        },
        "coll_perf": call | changes,
    }


def job(
    folder: Path, *, ranks: int = 4, calls: int = 30, late: int | None = None, by_us: float = 700.0, noise_us: float = 30.0,
    op: str = "AllReduce", size: int = 1 << 24, transfer_us: float = 900.0, name: str = "0x51",
    of: Iterable[int] | None = None,
) -> Path:  # fmt: skip
    """Write one file a process, as the plugin names them: all leave a call together, the last one's wait is none."""
    folder.mkdir(exist_ok=True)
    chance = random.Random(7)
    for number in range(calls):
        entered = [chance.random() * noise_us + (by_us if rank == late else 0.0) for rank in range(ranks)]
        end = max(entered) + transfer_us
        for rank in range(ranks) if of is None else of:
            text = json.dumps(line(rank, number, round(end - entered[rank]), ranks=ranks, op=op, size=size, name=name))
            with (folder / f"node{rank * 2 // ranks}-pid{40 + rank}.log").open("a") as file:
                file.write(text + "\n")
    return folder


def of_rule(path: Path) -> list[Finding]:
    return [found for found in diagnose(load_evidence([path])).findings if found.rule == "straggler"]


def test_a_row_for_each_operation_and_size_has_the_time_of_the_last_rank(tmp_path: Path) -> None:
    job(tmp_path, late=2, transfer_us=900)
    job(tmp_path, op="AllGather", size=1 << 20, transfer_us=200)
    found = read_foreign(tmp_path)
    assert (found.format, found.notes, found.left_out) == ("nccl_inspector", (), ())
    reduced, gathered = found.comm_rows
    assert (reduced.op, reduced.world_size, reduced.hosts, reduced.size_bytes) == ("all_reduce", 4, 2, 1 << 24)
    assert reduced.time_ns_mean == pytest.approx(900_000, rel=0.01)
    assert reduced.busbw_bytes_per_s == pytest.approx((1 << 24) / 900e-6 * 1.5, rel=0.01)
    assert (gathered.op, gathered.size_bytes) == ("all_gather", 4 << 20)  # what is written is the part of one rank


def test_the_rank_with_the_shortest_times_is_late_and_the_others_are_not(tmp_path: Path) -> None:
    (found,) = of_rule(job(tmp_path, late=2))
    assert found.ranks == (2,)
    assert "rank 2 on node1 comes last" in found.title
    assert "30 of 30 calls" in found.evidence[0]


@pytest.mark.parametrize(("calls", "by_us"), [(5, 700.0), (30, 0.0), (200, 4.0)])
def test_few_calls_and_chance_accuse_nobody(tmp_path: Path, calls: int, by_us: float) -> None:
    assert not of_rule(job(tmp_path, calls=calls, late=1, by_us=by_us, noise_us=60))


def test_a_late_rank_of_a_part_of_the_job_is_named_with_its_communicator(tmp_path: Path) -> None:
    job(tmp_path, late=0, name="0xaa")
    job(tmp_path, name="0xbb")
    (found,) = of_rule(tmp_path)
    assert found.ranks == ()
    assert "rank 0 of 0xaa on node0" in found.title


def test_without_the_files_of_all_ranks_nobody_is_named_and_a_note_says_what_times_hold(tmp_path: Path) -> None:
    job(tmp_path, late=2, of=(0, 2))
    assert not of_rule(tmp_path)
    (note,) = read_foreign(tmp_path).notes
    assert "1 sizes of which no call is in the files of all ranks" in note


def test_what_leaves_a_root_early_says_nothing_of_who_came_late(tmp_path: Path) -> None:
    assert not of_rule(job(tmp_path, op="Broadcast", late=1))


def test_lines_are_also_read_indented_and_other_records_are_passed_over(tmp_path: Path) -> None:
    one = line(0, 3, 110, ranks=32, op="ReduceScatter", size=65536, name="0x9e")
    stats = {"header": one["header"], "metadata": one["metadata"], "dump_stats": {"coll_records": 1}}
    path = tmp_path / "pasted.json"
    path.write_text("\n".join([json.dumps(one, indent=2), json.dumps(stats), json.dumps(one)[:-30]]) + "\n")
    found = read_foreign(path)
    (row,) = found.comm_rows
    assert (row.size_bytes, row.world_size, row.iterations) == (65536 * 32, 32, 1)
    assert row.algbw_bytes_per_s == pytest.approx(19.065018e9, rel=1e-3)
    assert "1 damaged lines left out" in found.notes


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"coll_timing_source": "collective_cpu"}, "no device timed them"),
        ({"coll": "AlltoAll", "coll_algobw_gbs": 0.0}, "their rate is unknown"),
        ({"coll_algobw_gbs": 1.0}, "contradict each other"),
    ],
)
def test_calls_that_have_no_honest_rate_are_left_out(tmp_path: Path, changes: dict[str, Any], note: str) -> None:
    odd = line(0, 1, 100, ranks=4, op="AllReduce", size=1 << 20, name="0x1", **changes)
    path = tmp_path / "a.log"
    path.write_text(json.dumps(odd) + "\n")
    with pytest.raises(DataError, match="no collective with a time") as error:
        read_foreign(path)
    assert note in (error.value.why or "")
    right = line(0, 2, 100, ranks=4, op="AllReduce", size=1 << 20, name="0x1")
    path.write_text(json.dumps(odd) + "\n" + json.dumps(right) + "\n")
    found = read_foreign(path)
    assert len(found.comm_rows) == 1
    assert note in found.notes[0]
