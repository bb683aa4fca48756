"""What a rank holds by kind: of every cell that counted it, whatever its strategy; compared only where cells differ."""

from __future__ import annotations

from tests.bench_evidence import Made, bench, made

from stepscope.report.views import memory as view
from stepscope.results.held import conclusions, differing, held_states, in_words

MB = 10**6
REPLICA = {"parameters": 4 * MB, "gradients": 4 * MB, "optimizer": 8 * MB, "activations": 2 * MB, "gathered": 0}
SHARD = {**REPLICA, "parameters": 2 * MB, "gradients": 2 * MB, "optimizer": 4 * MB}


def cell(cell_id: str, sizes: dict[str, int], **spec: object) -> Made:
    return made(cell_id, summary={"memory": sizes}, **spec)


SINGLE = cell("single", REPLICA, strategy="single", world_size=1, micro_batch=64)


def test_one_process_and_ddp_are_shown_by_kind() -> None:
    cells = bench(SINGLE, cell("ddp", REPLICA)).cells
    (table,) = view.held_table(cells)
    kinds = [column.key for column in table.columns]
    for row in table.rows:
        shown = dict(zip(kinds, (value.raw for value in row.values), strict=True))
        assert {kind: shown[kind] for kind in REPLICA} == REPLICA
        assert shown["total"] == 18 * MB
    assert differing(held_states(cells)) == ()
    assert conclusions(held_states(cells)) == (), "nothing holds less than another"


def test_cells_that_hold_the_same_are_one_line_and_those_that_counted_nothing_none() -> None:
    (line,) = in_words(held_states(bench(SINGLE, cell("ddp", REPLICA)).cells))
    assert line.startswith("a rank holds 18.0 MB: parameters 4.00 MB, gradients 4.00 MB, optimizer 8.00 MB")
    assert "single on 1 rank" in line
    assert "ddp on 2 ranks" in line
    assert view.held_table(bench(made("old")).cells) == ()


def test_holding_less_is_compared_within_the_same_work() -> None:
    found = held_states(bench(SINGLE, cell("ddp", REPLICA), cell("zero", SHARD, strategy="naive")).cells)
    assert [each.cell.cell_id for each in differing(found)] == ["ddp", "zero"]
    (text,) = conclusions(found)
    assert text.startswith("naive on 2 ranks: 10.0 MB a rank, 44% less than ddp on 2 ranks")
