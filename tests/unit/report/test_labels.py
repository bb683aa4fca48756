"""Names of strategies in tables."""

from __future__ import annotations

from stepscope.report.labels import strategy_labels


def test_a_swept_number_is_shown_on_every_row_even_where_it_is_the_default(fakes) -> None:
    rows = [
        fakes.row("c", strategy="bucketed", strategy_options={"bucket_cap_mb": cap}) for cap in (1.0, 25.0)
    ]
    assert strategy_labels(rows, defaults=lambda _: {"bucket_cap_mb": 25.0}) == (
        "bucketed bucket_cap_mb=1",
        "bucketed bucket_cap_mb=25",
    )
