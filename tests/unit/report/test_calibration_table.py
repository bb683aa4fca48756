"""The table of a calibration."""

from __future__ import annotations

from dataclasses import replace

from tests.calibration_rows import MACHINE, sweep
from tests.tables import texts as column

from stepscope.predict.calibration import calibrate
from stepscope.records.calibration import Calibration
from stepscope.report.table import Table
from stepscope.report.views.predicted import calibration_table


def table(*rows) -> Table:
    return calibration_table(calibrate([one for part in rows for one in part], run="run", machine=MACHINE))


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


def test_a_rate_that_is_hardly_known_shows_its_range() -> None:
    (fit,) = calibrate(sweep(), run="run", machine=MACHINE).fits
    wide = replace(fit, line=replace(fit.line, beta_bytes_per_s_low=0.5e9, beta_bytes_per_s_high=40e9))
    made = calibration_table(Calibration(run="run", machine=MACHINE, fits=(wide,)))
    assert column(made, "beta_bytes_per_s") == ["1.00 (0.5 to 40.0)"]
