"""Links: what each should carry, and what it carries."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.machine.topology import Topology
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord
from stepscope.report.table import Column, Table, Value, byte_size, percent, tabled, unknown, whole
from stepscope.report.view import View
from stepscope.report.views._comm import ABOVE, gigabytes
from stepscope.results.comm_facts import LinkRate, link_rates

LEAST, USUAL = 0.5, 0.7
"""Shares of the peak below which a link is red, and yellow: protocols and headers leave large messages 70 to 90% of it."""


def build(rows: Sequence[CommRow], environment: EnvironmentRecord | None, topology: Topology | None) -> Table:
    """One row a pair of ranks, then one a collective."""
    found = link_rates(rows, environment, topology)
    above = dict.fromkeys(rate.above for rate in found if rate.above is not None)
    why = dict.fromkeys(rate.unknown for rate in found if rate.unknown is not None)
    return tabled(
        "links",
        "Bandwidth of links, expected and measured",
        (
            Column("link", "ranks or collective", lambda rate: rate.name, role="identity", lead=True),
            Column("world_size", "ranks", lambda rate: rate.world_size, whole, role="identity"),
            Column("path", "between them", lambda rate: rate.path, role="identity"),
            Column("size_bytes", "at size", lambda rate: rate.size_bytes, byte_size, drop=1),
            Column("expected", "expected (GB/s)", _expected, gigabytes, role="identity", lead=True),
            Column("measured", "measured (GB/s)", lambda rate: rate.measured_bytes_per_s, gigabytes, short_title="measured"),
            Column("share", "share", _share, percent),
        ),
        found,
        footnotes=(
            "measured: best busbw over the sizes from 1 MiB on, one direction; expected: peak of the link in one direction,"
            " which protocols and headers leave 70 to 90% of.",
            *(f"{ABOVE}: faster than expected: {reason}." for reason in above),
            *(f"expected unknown: {reason}." for reason in why),
        ),
    )  # fmt: skip


def _expected(rate: LinkRate) -> Value:
    if rate.expected_bytes_per_s is None:
        return Value(text="unknown", raw=None, tone="dim")
    return gigabytes(rate.expected_bytes_per_s)


def _share(rate: LinkRate) -> Value:
    if rate.above is not None:
        return Value(text=ABOVE, raw=None, tone="dim")
    if rate.share is None:
        return unknown()
    return percent(rate.share, tone="bad" if rate.share < LEAST else "warn" if rate.share < USUAL else "good")


VIEW = View(key="links", title="Bandwidth of links", needs=("comm_rows", "environment", "topology"), table=build)
