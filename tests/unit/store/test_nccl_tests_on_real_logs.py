"""Every real log of nccl-tests and rccl-tests: figures equal to what its own text prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.records.imported import Imported
from stepscope.store.importers import read_foreign

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
LOGS = SHARED / "nccl_tests"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not LOGS.is_dir(), reason=f"no real logs at {LOGS}"),
]

FACTS = {
    "a100x8_allgather.log": ("all_gather", 8, 1, 34, 5),
    "a100x8_allreduce.log": ("all_reduce", 8, 1, 34, 2),
    "a100x8_alltoall.log": ("all_to_all", 8, 1, 34, 5),
    "gh200x8_cxi_plugin_allreduce.log": ("all_reduce", 8, 2, 25, 0),
    "h100x16_a3mega_allreduce.log": ("all_reduce", 16, 2, 31, 0),
    "h100x8_dgxcloud_allreduce.log": ("all_reduce", 8, 1, 32, 0),
    "h200x16_runai_allreduce.log": ("all_reduce", 16, 2, 5, 0),
    "p4d_srun_label_allreduce.log": ("all_reduce", 16, None, 29, 0),
    "rccl_mi300_2node_allreduce.log": ("all_reduce", 16, 2, 32, 0),
}
"""collective, ranks, hosts, rows in the text, of those with 0 bytes"""

ROW = re.compile(
    r"(?:^|:)\s*(\d+)\s+\d+\s+float\s+(?:sum\s+)?(?:-1\s+)?"
    r"([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s*$",
    re.MULTILINE,
)


def read(name: str) -> tuple[Imported, str]:
    return read_foreign(LOGS / name), (LOGS / name).read_text()


@pytest.mark.parametrize("name", sorted(FACTS))
def test_facts_equal_the_files_text(name: str) -> None:
    found, text = read(name)
    op, ranks, hosts, rows, empty = FACTS[name]
    assert found.format == "nccl_tests"
    assert {(r.op, r.world_size, r.hosts) for r in found.comm_rows} == {(op, ranks, hosts)}
    assert len(ROW.findall(text)) == rows
    assert len(found.comm_rows) == 2 * (rows - empty)
    if hosts is not None:
        listed = re.findall(r"Rank\s+\d+ .*Pid\s+\d+ on\s+(\S+) device", text)
        assert (len(listed), len(set(listed))) == (ranks, hosts)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_every_figure_equals_the_one_printed(name: str) -> None:
    found, text = read(name)
    printed = [m for m in ROW.findall(text) if m[0] != "0"]
    for place in (False, True):
        rows = [r for r in found.comm_rows if r.in_place is place]
        for row, (size, *figures) in zip(rows, printed, strict=True):
            time, algbw, busbw, errors = figures[4:] if place else figures[:4]
            assert row.size_bytes == int(size)
            assert row.time_ns_mean == pytest.approx(float(time) * 1e3, rel=1e-12)
            slack = 0.005 + 0.5 * 10.0 ** -len(time.partition(".")[2]) / float(time) * float(busbw) + 1e-9
            assert (row.algbw_bytes_per_s or 0) / 1e9 == pytest.approx(float(algbw), abs=slack)
            assert (row.busbw_bytes_per_s or 0) / 1e9 == pytest.approx(float(busbw), abs=slack)
            assert row.correct is (None if errors == "N/A" else True)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_its_own_average_is_that_of_the_rows_read(name: str) -> None:
    """So that no row is missing: the note about another average is not there, and there was one to compare with."""
    found, text = read(name)
    assert ("Avg bus bandwidth" in text) is (name != "p4d_srun_label_allreduce.log")
    assert not [n for n in found.notes if "average bus" in n or "damaged" in n or "size / time" in n]


@pytest.mark.parametrize(
    ("name", "fraction"),
    [
        ("h100x8_dgxcloud_allreduce.log", 1.067),
        ("a100x8_allreduce.log", 0.784),
        ("a100x8_alltoall.log", 0.754),
    ],
)
def test_share_of_the_links_peak(name: str, fraction: float) -> None:
    """busbw of the largest size over 450 and 300 GB/s per direction."""
    found, _ = read(name)
    best = max(r.link_fraction or 0.0 for r in found.comm_rows)
    assert best == pytest.approx(fraction, abs=0.002)


def test_a_log_with_lines_of_nccl_gives_those_too() -> None:
    """The NCCL_DEBUG log of the other set is nccl-tests' output, too; lines of NCCL run through every row."""
    path = SHARED / "nccl_debug" / "a100pcie_x2_nccl2.27.7.log"
    found = read_foreign(path)
    assert found.format == "nccl_tests"
    assert found.nccl.versions == ("2.27.7+cuda13.0",)
    assert [r.size_bytes for r in found.comm_rows if r.in_place] == [1 << n for n in range(23, 34)]
    assert found.comm_rows[0].time_ns_mean == 83_330.0
    assert not any("damaged" in note or "average bus" in note for note in found.notes)
