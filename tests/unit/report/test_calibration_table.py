"""The table of a calibration."""

from __future__ import annotations

from dataclasses import replace

from tests.calibration_rows import MACHINE, sweep

from stepscope.predict.calibration import calibrate
from stepscope.records.calibration import Calibration
from stepscope.report.render import terminal
from stepscope.report.table import Table
from stepscope.report.views.predicted import calibration_table


def table(*rows) -> Table:
    return calibration_table(calibrate([one for part in rows for one in part], run="run", machine=MACHINE))


def column(made: Table, key: str) -> list[str]:
    index = [c.key for c in made.columns].index(key)
    return [row.values[index].text for row in made.rows]


def test_alpha_and_beta_stand_with_their_intervals_in_us_and_gb() -> None:
    made = table(sweep(alpha_ns=12_300, beta_bytes_per_s=4.5e9))
    assert column(made, "alpha_ns")[0].startswith("12.3 ±")
    assert column(made, "beta_bytes_per_s")[0].startswith("4.50 ±")
    assert column(made, "r_squared") == ["1.0000"]


def test_the_link_is_shown_for_gloo_between_hosts_alone() -> None:
    here = table(sweep())
    assert "link_bytes_per_s" not in [c.key for c in here.columns]
    both = table(sweep(), sweep(network="1gbit:2", beta_bytes_per_s=1e9 / 8 * 1448 / 1514))
    assert column(both, "link_bytes_per_s") == ["–", "1"]
    assert any("MTU 1500" in text for text in both.footnotes)


def test_a_barrier_has_no_rate() -> None:
    assert column(table(sweep("barrier")), "beta_bytes_per_s") == ["–"]


def test_failing_lines_and_skipped_sweeps_are_told_below() -> None:
    made = table(sweep(bend=lambda size: 2.0 if size == 2**16 else 1.0), sweep("gather", sizes=(1024,)))
    assert any("the straight line is" in note and "all_reduce" in note for note in made.notes)
    assert any(note.startswith("not fitted: gather") for note in made.notes)


def test_it_fits_a_terminal_of_80_characters() -> None:
    made = table(sweep(), sweep(world_size=4), sweep("broadcast", world_size=4))
    lines = terminal.render(made, width=80).plain.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[0].startswith("collective")


def test_a_rate_that_is_hardly_known_shows_its_range() -> None:
    (fit,) = calibrate(sweep(), run="run", machine=MACHINE).fits
    wide = replace(fit, line=replace(fit.line, beta_bytes_per_s_low=0.5e9, beta_bytes_per_s_high=40e9))
    made = calibration_table(Calibration(run="run", machine=MACHINE, fits=(wide,)))
    assert column(made, "beta_bytes_per_s") == ["1.00 (0.5 to 40.0)"]
