"""What tools of the machine report of devices: the fault, whose it is, and that healthy ones are silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.machine_texts import SMI, ibstat, ibstatus, smi_q

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.open import load_evidence

REASONS = """\
    Clocks Throttle Reasons
        Idle                        : Not Active
        SW Power Cap                : Active
        HW Slowdown                 : Not Active
"""
OLD = """\
==============NVSMI LOG==============

GPU 00000000:3D:00.0
    Product Name                    : Tesla V100-SXM2-32GB
    Ecc Errors
        Volatile
            Single Bit
                Total               : 3
            Double Bit
                Total               : 0
        Aggregate
            Double Bit
                Total               : 9
    Retired Pages
        Double Bit ECC              : 2
        Pending                     : Yes
"""


DEVINFO = """\
hca_id:\tmlx5_4
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tInfiniBand
"""
QUERY = """\
timestamp, index, name, temperature.gpu, power.limit [W], clocks_event_reasons.hw_thermal_slowdown
2026/11/02 10:00:12.120, 3, NVIDIA A100-SXM4-80GB, 91, 400.00 W, {}
2026/11/02 10:00:13.120, 3, NVIDIA A100-SXM4-80GB, 91, 400.00 W, {}
"""
"""One GPU, asked twice."""


def found(tmp_path: Path, text: str, rule: str = "device-fault") -> list[Finding]:
    path = tmp_path / "out.txt"
    path.write_text(text)
    return [f for f in diagnose(load_evidence([path])).findings if f.rule == rule]


@pytest.mark.parametrize(
    ("text", "title", "severity"),
    [
        (smi_q({}, {"HW Slowdown": "Active", "HW Thermal Slowdown": "Active"}), "GPU 01:00.0: too hot", "problem"),
        ("\n".join(line.strip() for line in smi_q({"SW Thermal Slowdown": "Active"}, {}).splitlines()),
         "GPU 00:00.0: too hot", "problem"),
        (smi_q(*[{"HW Slowdown": "Active", "HW Power Brake Slowdown": "Active"}] * 2),
         "GPU 00:00.0, GPU 01:00.0: the power brake", "problem"),
        (smi_q({"HW Slowdown": "Active"}), "GPU 00:00.0: hardware slowdown", "problem"),
        (smi_q({"DRAM Uncorrectable": "4", "Pending": "Yes"}, {}), "GPU 00:00.0: uncorrected memory errors", "problem"),
        (smi_q({}, {"Pending": "Yes"}), "GPU 01:00.0: a row or page of its memory waits", "warning"),
        (smi_q({"Remapping Failure Occurred": "Yes"}), "GPU 00:00.0: a row of its memory cannot be replaced", "problem"),
        (OLD, "GPU 3D:00.0: a row or page of its memory waits", "warning"),
        (SMI.replace("ECC |", "  6 |").replace("CAP", "400"), "GPU 1: uncorrected memory errors", "problem"),
        (ibstat() + ibstat("mlx5_3", state="Down", physical="Polling", rate="10"), "mlx5_3 port 1: down", "problem"),
        (ibstat(state="Initializing"), "mlx5_0 port 1: the link is up, and no subnet manager", "problem"),
        (ibstat(state="Down", physical="Disabled"), "mlx5_0 port 1: the port is not active", "warning"),
        (ibstatus("mlx5_0", "4: ACTIVE", "5: LinkUp") + ibstatus("mlx5_1", "1: DOWN", "2: Polling"),
         "mlx5_1 port 1: down", "problem"),
        ("".join(f"node{n}: {line}\n" for n in (3, 4) for line in ibstat(state="Down" if n == 4 else "Active").splitlines()),
         "node4 mlx5_0 port 1: the port is not active", "warning"),
        ("".join(f"0: {line}\n" for line in SMI.replace("ECC |", "  6 |").replace("CAP", "400").splitlines()),
         "task 0 GPU 1: uncorrected memory errors", "problem"),
        ("".join(f"2026-11-02T10:00:12.123456Z {line}\n" for line in smi_q({"HW Thermal Slowdown": "Active"}).splitlines()),
         "GPU 00:00.0: too hot", "problem"),
        (SMI.replace("1  NVIDIA A100-SXM4-80GB", "1  ERR!                 ").replace("ECC |", "ERR!|").replace("CAP", "400"),
         "GPU 1: the driver cannot read the GPU", "problem"),
        ("Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system to recover it\n",
         "GPU 0B:00.0: the driver has lost the GPU", "problem"),
        ("Unable to determine the device handle for GPU3: 0000:4B:00.0: Unknown Error\n", "GPU 4B:00.0: the driver cannot",
         "problem"),
        ("gp-04: Failed to initialize NVML: Driver/library version mismatch\n", "gp-04: the driver does not run", "problem"),
        (DEVINFO.replace("PORT_ACTIVE (4)", "PORT_DOWN (1)"), "mlx5_4 port 1: the port is not active", "warning"),
        (DEVINFO.replace("PORT_ACTIVE (4)", "PORT_INIT (2)"), "mlx5_4 port 1: the link is up, and no subnet", "problem"),
        (QUERY.format("Not Active", "Active"), "GPU 3: too hot", "problem"),
        (QUERY.format("Active", "Not Active"), "GPU 3: too hot", "problem"),
        ("State: Down\nPhysical state: Polling\nRate: 10\n", "the port: down", "problem"),
    ],
)  # fmt: skip
def test_a_fault_is_one_finding_of_its_devices(tmp_path: Path, text: str, title: str, severity: str) -> None:
    (finding,) = found(tmp_path, text)
    assert finding.title.startswith(title)
    assert finding.severity == severity
    assert finding.advice


@pytest.mark.parametrize(
    "text",
    [
        smi_q({"SW Power Cap": "Active"}, {}),
        smi_q({"generation": "1", "Gpu": "0 %"}),
        SMI.replace("ECC |", "  0 |").replace("CAP", "400"),
        ibstat() + ibstat("mlx5_9", state="Down", physical="Disabled", layer="Ethernet"),
        REASONS,
        DEVINFO,
        QUERY.format("Not Active", "Not Active"),
        OLD.replace(": Yes", ": No"),
    ],
)
def test_healthy_devices_are_an_observation(tmp_path: Path, text: str) -> None:
    (finding,) = found(tmp_path, text)
    assert finding.severity == "info"
    assert "no " in finding.title
    assert ("SW Power Cap is active on 1 GPU" in " ".join(finding.evidence)) == (
        "SW Power Cap  " in text and ": Active" in text
    )


@pytest.mark.parametrize("text", [smi_q({}, {"Current Power Limit": "300.00 W"}), SMI.replace("CAP", "300")])
def test_a_lowered_power_limit_is_one_of_throttling(tmp_path: Path, text: str) -> None:
    (finding,) = found(tmp_path, text, "throttling")
    assert "GPU 1 may draw 300 of 400 W" in finding.title
    assert not found(tmp_path, text.replace("300", "400"), "throttling")
