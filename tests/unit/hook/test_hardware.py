"""Samples of GPUs and network ports: what they hold, whose they are, and that nothing of them reaches the job."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.fake_driver import FakeDriver

from stepscope.store.hardware import HardwareSamples, read_hardware

ENOUGH_S = 10.0


@pytest.fixture
def driver(hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    hurry(hook, monkeypatch)
    made = FakeDriver(tmp_path)
    monkeypatch.setattr(hook.devices, "NVML", str(made.path))
    monkeypatch.setattr(hook.devices, "CUDA", str(made.path))
    return made


class Rig:
    """A process that has stepped."""

    def __init__(self, hook: Any, folder: Path, *, devices: tuple[int, ...], world: int, rank: int = 3) -> None:
        self.folder = folder / ".stepscope"
        self.folder.mkdir(exist_ok=True)
        self.notes: list[str] = []
        self.diary = SimpleNamespace(
            pages=SimpleNamespace(name=f"{rank:05d}-0"), number=7, note=self.notes.append, rank=rank, world=world, restart=0,
            unix_s=time.time, data_used=[0, 0],
            control=hook.control.Control({"output": str(folder), "tool_version": "0"}),
        )  # fmt: skip
        self.diary.control.host = "node0"
        self.sampler = hook.hardware.Hardware(self.diary, SimpleNamespace(devices=devices))
        self.path = self.folder / f"devices-{rank:05d}-0.bin"

    def run(self, samples: int = 1) -> HardwareSamples:
        """Until so many are written; the last look at them."""
        self.sampler.look()
        found = self.wait(
            lambda: (read := read_hardware(self.path)) is not None and read.unix_s.size >= samples and read
        )
        self.sampler.close()
        return found

    def begin(self) -> None:
        """Until the first sample is written."""
        self.sampler.look()
        self.wait(lambda: (read := read_hardware(self.path)) is not None and read.unix_s.size)

    @staticmethod
    def wait(for_: Any) -> Any:
        until = time.monotonic() + ENOUGH_S
        while not (found := for_()):
            assert time.monotonic() < until
            time.sleep(0.005)
        return found


def hurry(hook: Any, monkeypatch: pytest.MonkeyPatch, *, loads: bool = False) -> None:
    """loads: the processors are sampled, too."""
    if not loads:
        monkeypatch.setattr(hook.hardware.Hardware, "loads", lambda _: [])
    for name in ("EVERY_S", "PORTS_EVERY_S"):
        monkeypatch.setattr(hook.hardware, name, 0.02)


@pytest.fixture
def of_one(hook: Any, tmp_path: Path, driver: FakeDriver) -> Iterator[Rig]:
    assert driver.number("opened") == 0
    rig = Rig(hook, tmp_path, devices=(0,), world=1)
    yield rig
    rig.sampler.close()


def test_what_a_sample_of_a_gpu_holds(of_one: Rig, driver: FakeDriver) -> None:
    driver.set(0, "reasons", 0x40)
    found = of_one.run()
    (device,) = found.header.devices
    assert (device.name, device.uuid, device.bus_id, device.missing) == ("Fake H100", "GPU-0", "0000:10:00.0", {})
    assert (device.sm_clock_max_hz, device.memory_clock_max_hz) == (1.98e9, 2.619e9)
    assert (device.power_limit_default_w, device.memory_bytes) == (700.0, 80 * 2**30)
    first = {name: float(values[0, 0]) for name, values in found.columns.items()}
    assert first == pytest.approx({
        "sm_clock_hz": 1.7e9, "memory_clock_hz": 2.6e9, "power_w": 650.0, "power_limit_w": 700.0, "temperature_c": 60.0,
        "throttle_reasons": 0x40, "busy_fraction": 0.99, "memory_used_bytes": 61 * 2**30, "ecc_corrected": 0.0,
        "ecc_uncorrected": 0.0, "pcie_replays": 0.0, "nvlink_errors": 0.0,
    }, rel=1e-6)  # fmt: skip
    assert found.step[0] == 7
    assert abs(found.unix_s[0] - time.time()) < 60
    assert (driver.number("opened"), driver.number("closed"), of_one.notes) == (1, 1, [])


def test_counters_count_from_the_first_sample_and_go_on_where_they_begin_again(of_one: Rig, driver: FakeDriver) -> None:
    of_one.begin()
    totals = []
    for value in (9, 1):  # 4 more; then the driver was loaded again and has counted 1
        driver.set(0, "corrected", value)
        driver.set(0, "nvlink", value)
        before = driver.number("calls")
        of_one.wait(lambda before=before: driver.number("calls") > before + 30)
        read = read_hardware(of_one.path)
        assert read is not None
        totals.append((read.columns["ecc_corrected"][-1, 0], read.columns["nvlink_errors"][-1, 0]))
    assert totals == [(4, 9), (5, 10)]


@pytest.mark.parametrize(("visible", "uuid"), [(0, "GPU-0"), (5, "GPU-5")])
def test_a_device_is_the_one_that_the_process_sees(of_one: Rig, driver: FakeDriver, visible: int, uuid: str) -> None:
    driver.see(0, visible)
    driver.set(5, "sm", 1200)
    found = of_one.run()
    assert found.header.devices[0].uuid == uuid
    assert found.columns["sm_clock_hz"][0, 0] == pytest.approx(1.2e9 if visible == 5 else 1.7e9)


def test_what_one_gpu_does_not_know_is_named_and_the_rest_is_there(of_one: Rig, driver: FakeDriver) -> None:
    driver.refuse("corrected", 3)
    driver.refuse("power", 4)
    found = of_one.run(3)
    assert found.header.devices[0].missing == {
        "ecc_corrected": "nvmlDeviceGetTotalEccErrors: Not Supported",
        "power_w": "nvmlDeviceGetPowerUsage: Insufficient Permissions",
    }
    assert np.isnan(found.columns["power_w"]).all()
    assert np.isfinite(found.columns["sm_clock_hz"]).all()
    assert of_one.notes == []


def test_memory_of_a_divided_gpu_is_not_that_of_the_job(of_one: Rig, driver: FakeDriver) -> None:
    driver.set(0, "mig", 1)
    found = of_one.run()
    assert list(found.header.devices[0].missing) == ["memory_used_bytes"]
    assert np.isnan(found.columns["memory_used_bytes"]).all()


@pytest.mark.parametrize("how", ["no library", "no permission", "no cuda"])
def test_without_a_driver_the_record_says_why_and_the_thread_ends(
    hook: Any, of_one: Rig, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "no permission":
        driver.number("init_code", 4)
    else:
        monkeypatch.setattr(hook.devices, "NVML" if how == "no library" else "CUDA", "/nowhere/libnothing.so.1")
    of_one.sampler.look()
    of_one.sampler.thread.join(ENOUGH_S)
    read = read_hardware(of_one.path)
    assert read is not None
    assert (read.header.devices, read.unix_s.size, list(read.header.missing)) == ((), 0, ["0"])
    assert of_one.notes == []
    assert not of_one.sampler.thread.is_alive()


def test_a_driver_that_is_gone_ends_the_samples_with_one_note(of_one: Rig, driver: FakeDriver) -> None:
    of_one.begin()
    driver.number("lost", 1)
    of_one.sampler.thread.join(ENOUGH_S)
    assert not of_one.sampler.thread.is_alive()
    assert of_one.notes
    assert all(note.startswith("devices: nvml") and note.endswith("GPU is lost") for note in of_one.notes)
    read = read_hardware(of_one.path)
    assert read is not None
    assert np.isnan(read.columns["sm_clock_hz"][-1]).all()


def test_one_fact_that_fails_is_noted_once_and_asked_again(of_one: Rig, driver: FakeDriver) -> None:
    of_one.begin()
    for code in (999, 0):
        driver.refuse("power", code)
        before = driver.number("calls")
        of_one.wait(lambda before=before: driver.number("calls") > before + 30)
    assert of_one.notes == ["devices: nvmlDeviceGetPowerUsage: Unknown Error"]
    read = read_hardware(of_one.path)
    assert read is not None
    assert read.columns["power_w"][-1, 0] == pytest.approx(650.0)


def test_a_driver_that_does_not_answer_holds_up_neither_the_diary_nor_the_end(
    hook: Any, of_one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(hook.hardware, "MOST_S", 0.01)
    monkeypatch.setattr(hook.hardware, "Driver", lambda: answer.wait(ENOUGH_S))
    of_one.sampler.look()
    of_one.sampler.look()
    of_one.sampler.close()
    assert of_one.sampler.thread.is_alive(), "the others went on without it"
    answer.set()
    of_one.sampler.thread.join(ENOUGH_S)


def test_a_full_disk_ends_the_samples(hook: Any, of_one: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one.begin()
    monkeypatch.setattr(hook.hardware.os, "write", lambda *_: 3)
    of_one.sampler.thread.join(ENOUGH_S)
    monkeypatch.undo()
    assert of_one.notes == ["devices: the disk is full"]


def card(root: Path, name: str, **counters: int) -> Path:
    folder = root / "infiniband" / name / "ports" / "1" / "counters"
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in counters.items():
        (folder / file).write_text(f"{value}\n")
    return folder


@pytest.fixture
def system(hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of /sys with one InfiniBand port, a physical interface, a bridge and the loopback."""
    hurry(hook, monkeypatch)
    card(tmp_path, "mlx5_0", port_rcv_data=1000, port_xmit_data=10, port_rcv_errors=0, symbol_error=3, link_downed=1)
    for name in ("eth0", "docker0", "lo"):
        (tmp_path / "net" / name / "statistics").mkdir(parents=True)
        for file in ("rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped"):
            (tmp_path / "net" / name / "statistics" / file).write_text("100\n")
    (tmp_path / "net" / "eth0" / "device").mkdir()
    monkeypatch.setattr(hook.ports, "INFINIBAND", str(tmp_path / "infiniband"))
    monkeypatch.setattr(hook.ports, "NET", str(tmp_path / "net"))
    return tmp_path


def test_ports_of_a_host_and_what_they_count(hook: Any, system: Path) -> None:
    first, second = hook.ports.ports()
    assert [(each.name, each.kind) for each in (first, second)] == [("mlx5_0/1", "infiniband"), ("eth0", "net")]
    card(system, "mlx5_0", port_rcv_data=1500, symbol_error=5)
    (system / "net" / "eth0" / "statistics" / "rx_errors").write_text("107\n")
    of_card, of_net = (dict(zip(each.columns, each.read(), strict=True)) for each in (first, second))
    assert (of_card["received_bytes"], of_card["symbol_errors"], of_card["downs"]) == (4 * 500, 2, 0)
    assert np.isnan(of_card["receive_drops"]), "an InfiniBand port has no such counter"
    assert set(first.facts()["missing"]) == {"send_drops", "integrity_errors", "recoveries"}
    assert (of_net["receive_errors"], of_net["received_bytes"]) == (7, 0)
    assert set(second.facts()["missing"]) == {"downs"}


def test_a_container_without_a_physical_interface_has_those_it_sees(hook: Any, system: Path) -> None:
    (system / "net" / "eth0" / "device").rmdir()
    assert [each.name for each in hook.ports.ports() if each.kind == "net"] == ["docker0", "eth0"]


def test_one_process_of_a_host_samples_its_ports(hook: Any, system: Path) -> None:
    rigs = [Rig(hook, system, devices=(), world=2, rank=rank) for rank in range(2)]
    files = system / ".stepscope"
    for rig in rigs:
        rig.sampler.look()
    for rig in rigs:
        rig.wait(lambda: len(list(files.glob("ports-*"))) == 1)
    read = rigs[0].wait(
        lambda: (found := read_hardware(files / "ports-node0-0.bin")) and found.unix_s.size > 1 and found
    )
    assert [each.name for each in read.header.ports] == ["mlx5_0/1", "eth0"]
    rigs[0].wait(lambda: len([rig for rig in rigs if rig.sampler.thread.is_alive()]) == 1)
    for rig in rigs:
        rig.sampler.close()
    assert [each.name for each in files.glob("ports-*")] == ["ports-node0-0.bin"]


def test_a_port_that_is_taken_away_leaves_the_others(hook: Any, system: Path) -> None:
    rig = Rig(hook, system, devices=(), world=2)
    path = rig.folder / "ports-node0-0.bin"
    rig.sampler.look()
    rig.wait(lambda: (found := read_hardware(path)) and found.unix_s.size > 1)
    for file in (system / "net" / "eth0" / "statistics").iterdir():
        file.unlink()
    size = path.stat().st_size
    rig.wait(lambda: path.stat().st_size > size + 1000)
    rig.sampler.close()
    read = read_hardware(path)
    assert read is not None
    assert np.isnan(read.columns["received_bytes"][-1]).tolist() == [False, True]
    assert 1 <= len(rig.notes) <= 3


def test_after_a_restart_another_process_samples_the_ports(hook: Any, system: Path) -> None:
    rig = Rig(hook, system, devices=(), world=2)
    gone = {"rank": 0, "world_size": 2, "host": "node0", "pid": 2**22 + 5, "restart": 0, "columns": []}
    (rig.folder / "ports-node0-0.bin").write_text(json.dumps(gone) + "\n")
    rig.sampler.look()
    rig.wait(lambda: (rig.folder / "ports-node0-1.bin").exists())
    rig.sampler.close()


def test_a_job_of_one_rank_has_no_ports(hook: Any, system: Path) -> None:
    rig = Rig(hook, system, devices=(), world=1)
    rig.sampler.look()
    rig.sampler.thread.join(ENOUGH_S)
    assert list(rig.folder.iterdir()) == []


def test_a_record_cut_short_is_left_out(of_one: Rig) -> None:
    of_one.run(3)
    whole = read_hardware(of_one.path)
    assert whole is not None
    of_one.path.write_bytes(of_one.path.read_bytes()[:-5])
    cut = read_hardware(of_one.path)
    assert cut is not None
    assert cut.unix_s.tolist() == whole.unix_s.tolist()[:-1]
    last = read_hardware(of_one.path, last=1)
    assert last is not None
    assert last.unix_s.tolist() == cut.unix_s.tolist()[-1:]
