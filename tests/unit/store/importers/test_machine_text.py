"""Readings of tools of the machine: devices, facts and rates; texts that only look like them are not taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.machine_texts import SMI, ibstat, nvbandwidth, p2p, perftest, smi_q

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.importers import read_foreign


def read(tmp_path: Path, text: str, name: str = "out.txt") -> Imported:
    path = tmp_path / name
    path.write_text(text)
    return read_foreign(path)


def test_several_tools_in_one_text(tmp_path: Path) -> None:
    text = f"$ ibstat\n{ibstat('mlx5_2')}$ ib_write_bw\n{perftest((65536, 23000.0))}$ nvidia-smi -q\n{smi_q({})}"
    readings = read(tmp_path, text).readings
    assert [(reading.tool, reading.device) for reading in readings] == [
        ("ibstat", "mlx5_2 port 1"), ("perftest", "mlx5_2"), ("nvidia-smi", "GPU 00:00.0")
    ]  # fmt: skip
    port, rate, gpu = readings
    assert (port.facts["ca type"], port.number("rate"), rate.bytes_per_s) == ("MT4123", 200, 23000 * 2**20)
    assert (gpu.facts["link width current"], gpu.facts["pcie generation max"]) == ("16x", "4")
    assert (gpu.facts["volatile dram uncorrectable"], gpu.facts["aggregate dram uncorrectable"]) == ("0", "7")
    assert (gpu.facts["hw thermal slowdown"], gpu.facts["default power limit"]) == ("Not Active", "400.00 W")


def test_rates_of_pairs_have_their_direction_and_latencies_are_none(tmp_path: Path) -> None:
    sample = read(tmp_path, p2p("NVIDIA A10G", 3, lambda a, b: 10 * a + b + 0.5, lambda *_: 5.0)).readings
    rates = {r.device: r.bytes_per_s for r in sample if r.test == "Unidirectional P2P=Enabled Bandwidth (P2P Writes)"}
    assert rates["GPU 2 -> GPU 1"] == 21.5e9
    assert len(rates) == 6
    assert {r.test.split()[0] for r in sample if r.bytes_per_s} == {"Unidirectional", "Bidirectional"}
    reads = read(tmp_path, nvbandwidth("NVIDIA A10G", 3, lambda n: 20.5 + n, lambda a, b: 10 * a + b + 0.5)).readings
    rates = {r.device: r.bytes_per_s for r in reads if not r.test.startswith("host_to_device_bi")}
    assert (rates["GPU 1 -> GPU 2"], rates["host -> GPU 2"]) == (21.5e9, 22.5e9)
    assert all(r.facts == {"model": "NVIDIA A10G"} for r in reads)


@pytest.mark.parametrize("name", ["out", "out.log", "ibstat.out"])
def test_any_name_is_read(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, ibstat(), name).format == "machine_text"


def test_the_log_of_a_job_that_prints_nvidia_smi_first_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read(tmp_path, SMI + "starting\n" + "step 1 of 3\n" * 40)
    assert read(tmp_path, f"Wed Nov 12 10:03:08 2026\n{SMI}").format == "machine_text"
