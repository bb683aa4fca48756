"""A report whose charts cannot be drawn: everything else is written, and the charts are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trace_builder import build, write_job

GIB = 1 << 30

KILLED = """
import os, signal
from pathlib import Path
left = Path(__file__).with_name("left")

def vegalite_to_svg(spec, vl_version):
    deaths = int(left.read_text())
    left.write_text(str(deaths - 1))
    if deaths > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return "<svg></svg>"
"""
"""A module in place of the one that draws: its first processes are killed."""

TWO_CORES = """
import sys
from stepscope.cli import main, report_run
report_run.usable_cores = lambda: 2
main.main(sys.argv[1:])
"""


def reported(folder: Path, setup: str = "") -> tuple[int, dict[str, str], str]:
    """The exit code, charts that were not drawn with the reason, and what was said of them."""
    traces = write_job(build(world=2, steps=3), folder / "job")
    words = ("report", str(traces), "-o", str(folder / "out"), "--html", "--svg", "--txt", "--json")
    done = subprocess.run(
        [sys.executable, "-c", setup + TWO_CORES, *words],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )
    return done.returncode, json.loads(done.stdout)["not_drawn"], done.stderr


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_drawing_process_that_dies_is_followed_by_one_and_then_its_charts_are_named(
    deaths: int, tmp_path: Path
) -> None:
    (tmp_path / "vl_convert.py").write_text(KILLED)
    (tmp_path / "left").write_text(str(deaths))
    code, missing, said = reported(tmp_path)
    assert code == (0 if deaths == 1 else 3)
    assert len(missing) == (deaths - 1)
    assert (tmp_path / "out/performance_report.txt").stat().st_size > 500
    for text in ((tmp_path / "out" / name).read_text() for name in ("report.html", "charts.md")):
        assert all(f"Not drawn: {reason}" in text for reason in missing.values())
        assert ("Not drawn:" in text) is bool(missing)
    assert said.count("not drawn") == len(missing)


@pytest.mark.skipif(sys.platform != "linux", reason="address spaces are limited so on Linux")
def test_limited_addresses_are_named_before_they_end_the_process(tmp_path: Path) -> None:
    setup = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({8 * GIB}, {8 * GIB}))\n"
    code, missing, said = reported(tmp_path, setup)
    assert code == 3
    assert missing
    assert all("66.0 GiB of addresses" in reason for reason in missing.values())
    assert said.count("66.0 GiB") == 1
    assert (tmp_path / "out/performance_report.txt").exists()
