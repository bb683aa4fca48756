"""Tables of a comm run: nccl-tests' columns, honest gaps, what goes first on a narrow terminal."""

from __future__ import annotations

from tests.comm_rows import KIB, MIB, SIZES, collective, pairs, row, sweep
from tests.tables import texts as column

from stepscope.core.units import format_decimal, format_size
from stepscope.report.contents import comm_tables
from stepscope.report.table import microseconds
from stepscope.report.views import comm
from stepscope.report.views import links as pairs_view


def test_figures_have_the_decimals_of_nccl_tests() -> None:
    # as in nccl-tests' logs: 35.20, 162.0, 1162.2, 16215 us
    assert [microseconds(us * 1e3).text for us in (35.2, 162.0, 1162.2, 16215.0, 9999.99, 10000.0)] == [
        "35.20", "162.0", "1162.2", "16215", "10000.0", "10000",
    ]  # fmt: skip
    assert [format_decimal(x) for x in (230.29, 1.0, 0.5, 0.0031, 0.000013, 0.0)] == [
        "230.29", "1.00", "0.500", "0.0031", "0.000013", "0.00",
    ]  # fmt: skip
    assert [format_size(n) for n in (512, KIB, 1536, 64 * MIB)] == ["512 B", "1 KiB", "1.5 KiB", "64 MiB"]


def test_roots_are_minus_one_where_there_is_none() -> None:
    table = comm.comm_table([*sweep(sizes=SIZES[:1]), *sweep("broadcast", sizes=SIZES[:1], root=1)])
    assert column(table, "root") == ["-1", "1"]


def test_many_sweeps_have_an_overview() -> None:
    rows = [r for n in (2, 3, 4, 5, 6) for r in sweep(world_size=n, sizes=SIZES[:3])]
    assert [t.key for t in comm_tables(rows)] == ["comm", "comm_overview"]
    assert not any("Avg bus" in note for note in comm.comm_table(rows).footnotes)
    table = comm.overview_table([*rows, row(op="gather", world_size=2, status="unsupported", error="not there")])
    assert column(table, "sizes")[:1] == ["3"]
    assert any(r.failure == "unsupported: not there" for r in table.rows)


def test_only_tables_with_something_to_show_are_shown() -> None:
    assert comm_tables([]) == ()
    assert [t.key for t in comm_tables(sweep())] == ["comm"]
    assert [t.key for t in comm_tables(pairs(4))] == ["comm_pairs"]
    assert [t.key for t in comm_tables(pairs(4, slow_egress={0: 5.0}))] == ["comm_pairs", "comm_slow_pairs"]
    assert [t.key for t in comm_tables(pairs(2))] == ["comm_pairs"]


def test_the_matrix_marks_slow_pairs_and_leaves_the_diagonal_empty() -> None:
    table = pairs_view.pairs_table(pairs(4, slow_links={(1, 2): 4.0}))
    assert column(table, "to_2")[1].startswith("*")
    assert column(table, "to_1")[1] == "·"
    assert sum(v.text.startswith("*") for r in table.rows for v in r.values) == 1
    both = pairs_view.pairs_table(pairs(4, bidirectional=True))
    assert column(both, "to_0") == ["·", "", "", ""]


def test_of_small_messages_the_matrix_shows_the_time() -> None:
    table = pairs_view.pairs_table([*pairs(4, size_bytes=4, us=30.0), *pairs(4)])
    assert column(table, "quantity") == ["time (us)"] * 4 + ["busbw (GB/s)"] * 4
    assert column(table, "to_1")[0] == "30.00"
    assert column(table, "to_1")[4] == "0.123"


def test_a_matrix_wider_than_eyes_is_left_out_and_said() -> None:
    table = pairs_view.pairs_table(pairs(33))
    assert table.rows == ()
    assert table.notes == ("the matrix of 33 ranks is left out: more than 32 columns",)


def test_the_fastest_settings_are_named_only_where_intervals_are_apart() -> None:
    ring, near = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}
    rows = [
        collective(1024, 20.0, env=ring), collective(1024, 26.0), collective(1024, 40.0, env=near),
        collective(4096, 20.1, env=near), collective(4096, 20.0, env=ring),
        collective(8192, 20.0, env=ring), collective(8192, 30.0, env=near, time_ns_low=None),
        collective(16384, 20.0),
    ]  # fmt: skip
    table = comm.winners_table(rows)
    assert column(table, "settings") == [
        "NCCL_ALGO=Ring",
        "no clear one: NCCL_ALGO=Ring or NCCL_ALGO=Tree",
        "no clear one: NCCL_ALGO=Ring or NCCL_ALGO=Tree",
    ]
    assert column(table, "over_default") == ["1.30x", "–", "–"]
    assert column(table, "over_next") == ["1.30x", "1.00x", "1.50x"]


def test_overlap_says_who_pays() -> None:
    ratios = [(1.0, 1.0), (1.5, 1.0), (1.0, 1.5), (1.5, 1.5), (None, None)]
    rows = [collective(1024, 9.0, kind="overlap", slowdown=a, beside_slowdown=b) for a, b in ratios]
    assert column(comm.beside_table(rows), "verdict") == [
        "neither slows the other", "the collective pays", "the product pays", "both pay", "–",
    ]  # fmt: skip
