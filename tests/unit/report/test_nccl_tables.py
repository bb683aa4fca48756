"""The tables of NCCL's debug log."""

from __future__ import annotations

from pathlib import Path

from tests.nccl_log import Talk

from stepscope.report.render import terminal
from stepscope.report.table import Table
from stepscope.report.views import nccl_debug
from stepscope.store.importers.nccl_debug import read_nccl_debug


def tables(folder: Path, *lines: str) -> dict[str, Table]:
    path = folder / "job.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return {t.key: t for t in nccl_debug.build_all(read_nccl_debug(path))}


def texts(table: Table) -> list[dict[str, str]]:
    return [{c.key: v.text for c, v in zip(table.columns, row.values, strict=True)} for row in table.rows]


def test_a_whole_communicator_is_one_line_and_its_links_one_a_transport(tmp_path: Path) -> None:
    talk = Talk()
    found = tables(tmp_path, *(line for rank in range(4) for line in talk.rank_lines(rank)))
    assert list(found) == ["nccl_debug", "nccl_links"]
    (head,) = texts(found["nccl_debug"])
    assert (head["communicator"], head["ranks"], head["hosts"], head["state"]) == ("0xabc1", "4", "2", "open")
    assert (head["network"], head["rings"], head["trees"], head["nvls"]) == ("IB", "2", "2", "no")
    shown = ("transport", "where", "gdrdma", "links", "channels", "nics")
    assert [tuple(row[key] for key in shown) for row in texts(found["nccl_links"])] == [
        ("NET/IB", "hosts", "yes", "2", "2", "0-3"),
        ("P2P/CUMEM/read", "one host", "–", "2", "2", "–"),
    ]


def test_ranks_that_are_missing_or_hang_stand_out(tmp_path: Path) -> None:
    found = tables(tmp_path, *Talk().rank_lines(0), *Talk(done=False).rank_lines(3))
    (row,) = found["nccl_debug"].rows
    shown = {c.key: v for c, v in zip(found["nccl_debug"].columns, row.values, strict=True)}
    assert (shown["ranks"].text, shown["ranks"].tone) == ("2 of 4", "warn")
    assert (shown["state"].text, shown["state"].tone) == ("init not complete on rank 3", "bad")
    assert {r["where"] for r in texts(found["nccl_links"])} == {"hosts", "unknown"}  # 3 -> 0, 0 -> 1


def test_neighbouring_sizes_with_one_choice_share_a_line(tmp_path: Path) -> None:
    talk = Talk(nranks=1)
    sizes = {1024: "TREE proto LL", 2048: "TREE proto LL", 1 << 20: "RING proto SIMPLE"}
    calls = [
        talk.say(0, f"AllReduce: {size} Bytes -> Algo {way} channel{{Lo..Hi}}={{0..1}}") for size, way in sizes.items()
    ]
    found = texts(tables(tmp_path, *talk.rank_lines(0), *calls)["nccl_choices"])
    assert [(r["low_bytes"], r["high_bytes"], r["algorithm"], r["protocol"], r["calls"]) for r in found] == [
        ("1 KiB", "2 KiB", "Tree", "LL", "2"),
        ("1 MiB", "1 MiB", "Ring", "Simple", "1"),
    ]


def test_warnings_come_before_returned_errors_and_plugins_stand_below(tmp_path: Path) -> None:
    talk = Talk(nranks=1)
    found = tables(
        tmp_path,
        *talk.rank_lines(0),
        talk.say(0, "NET/Plugin: Could not find: libnccl-net.so."),
        talk.say(0, "NET/IB : Using [0]mlx5_0:1/IB; OOB eth0:10.0.0.1<0>"),
        talk.say(0, "init.cc:7 -> 2"),
        talk.say(0, "no such device", level="init.cc:6 NCCL WARN"),
    )
    assert [(r["place"], r["text"]) for r in texts(found["nccl_messages"])] == [
        ("init.cc:6", "no such device"),
        ("init.cc:7", "init.cc:7 -> 2"),
    ]
    assert found["nccl_debug"].footnotes == (
        "no external network plugin: Could not find: libnccl-net.so.",
        "NICs of alpha: mlx5_0:1/IB",
    )
    for table in found.values():
        assert table.title
        assert terminal.render(table, width=80)
