"""A comm run with known figures, rendered: what a user reads, letter by letter.

To renew after a wanted change: ``STEPSCOPE_RENEW_GOLDEN=1 pytest tests/golden``, then read the difference.
"""

from __future__ import annotations

import json
import random

import pytest
from tests import comm_rows
from tests.comm_rows import KIB, MIB, SIZES, collective, pairs, row, sweep
from tests.golden.agreed import agreed

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.narrator import headline
from stepscope.records.comm import CommRow
from stepscope.report.comm_document import comm_suite_document, rows_csv
from stepscope.report.contents import comm_tables
from stepscope.report.render import files, terminal
from stepscope.results.evidence import Evidence

HOSTS = ("node-a", "node-b", "node-c", "node-d")


def rows() -> list[CommRow]:
    """Two worlds, a skipped size, a failed and a wrong sweep, pairs with a slow host, overlap, matrix products."""
    found = sweep(world_size=2, link_peak_bytes_per_s=12.5e9) + sweep(world_size=4, alpha_us=2000, rate=0.8e9)
    found += sweep("all_gather", world_size=4, sizes=SIZES[:3], cell_id="gather")
    too_large = "needs 1.10 TB, 8.00 GB are free"
    found.append(
        row(
            op="all_gather", cell_id="gather", world_size=4, reduce_op=None, status="skipped", error=too_large,
            asked_bytes=2**40,
        )
    )  # fmt: skip
    found.append(
        row(
            op="broadcast", cell_id="late", world_size=4, reduce_op=None, status="timeout",
            error="rank 1 did not enter broadcast of 1 MiB",
        )
    )  # fmt: skip
    wrong = "wrong result on rank 1: element 3: got 5.0, expected 6.0"
    found.append(collective(4 * KIB, 99.0, op="reduce", cell_id="bad", correct=False, error=wrong, status="error"))
    found += pairs(4, slow_egress={3: 5.0}, noise=random.Random(1), rank_hosts=HOSTS, hosts=4)
    found += [
        collective(size, 900.0, kind="overlap", slowdown=1.4, beside_slowdown=1.02, cell_id="beside")
        for size in (MIB, 4 * MIB)
    ]
    found += [
        collective(4 * n * n, us, kind="matmul", cell_id="matmul", numel=n * n, flops_per_s=2e6 * n**3 / us)
        for n, us in ((512, 6000.0), (1024, 36000.0))
    ]
    return found


def settings() -> list[CommRow]:
    """Three worlds of settings; the default has the smallest time nowhere but at 64 KiB, by a little."""
    shape = {"device": "cuda", "backend": "nccl", "world_size": 8}
    return [
        *sweep(alpha_us=50, rate=2e9, **shape),
        *sweep(alpha_us=20, rate=1e9, env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, **shape),
        *sweep(alpha_us=60, rate=2.6e9, env={"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}, **shape),
    ]


def _shown(shown: list[CommRow], width: int) -> str:
    tables = [f"== {table.title}\n\n{terminal.render(table, width=width).plain}" for table in comm_tables(shown)]
    found = [headline(finding) for finding in diagnose(Evidence(sources=(), comm=tuple(shown))).findings]
    return "\n\n".join([*tables, *found]) + "\n"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_terminal_tables_read_as_agreed(width: int) -> None:
    agreed(f"comm/terminal-{width}.txt", _shown(rows(), width))


def test_a_sweep_of_settings_reads_as_agreed() -> None:
    agreed("comm/settings.txt", _shown(settings(), 120))


def test_the_markdown_reads_as_agreed() -> None:
    agreed("comm/tables.md", "\n".join(files.as_markdown(table) for table in comm_tables(rows())))


def test_the_csv_reads_as_agreed() -> None:
    agreed("comm/results.csv", rows_csv(rows()))


def test_comm_suite_document_reads_as_agreed() -> None:
    document = comm_suite_document(rows(), "runs/comm-1", timestamp="2026-11-21T06:00:00Z", device="Example CPU")
    agreed("comm/document-001.json", json.dumps(document, indent=1, allow_nan=False) + "\n")


def test_charts_are_described_as_agreed() -> None:
    from stepscope.report.charts import charts_of

    measured = rows()
    fit = comm_rows.fit(measured[: len(SIZES)], alpha_us=60, rate=2.1e9, wiggle=0.04)
    records = {"rows": measured, "calibration": comm_rows.calibration(fit)}
    found = {
        figure.stem: {
            "caption": figure.caption,
            **{k: v for k, v in figure.spec.items() if k not in ("$schema", "config")},
        }
        for figure in charts_of(records)[0]
    }
    agreed("comm/charts.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
