from __future__ import annotations

from dataclasses import replace

from tests.evidence import evidence, run, step

from stepscope.report.views.comparison import build_all
from stepscope.results.comparing import Side, compare


def test_memory_is_in_the_unit_of_the_other_tables() -> None:
    one = replace(run("cell", ranks=2, step_ns=step(10)), peak_memory_bytes=340 * 2**20)
    sides = [Side(name=name, rounds=(evidence(one),)) for name in ("a", "b")]
    shown = [value.text for table in build_all(compare(sides)) for row in table.rows for value in row.values]
    assert shown.count("340 MiB") == 2
