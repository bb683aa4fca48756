"""Output of tools of the machine, as they print it: nvidia-smi, ibstat, perftest, nvbandwidth, p2pBandwidthLatencyTest."""

from __future__ import annotations

from collections.abc import Callable

Rates = Callable[[int, int], float]
LINE = "-" * 87


def perftest(
    *rows: tuple[int, float], test: str = "RDMA_Write BW", device: str = "mlx5_2", link: str = "IB", unit: str = "MiB"
) -> str:
    """ib_write_bw and its kin. rows: bytes, average."""
    sizes = (
        f" {size}      5000             {average + 9:.2f}            {average:.2f}   \t\t   0.19"
        for size, average in rows
    )
    lines = (
        LINE, f"                    {test} Test", f" Dual-port       : OFF\t\tDevice         : {device}",
        " Number of qps   : 1\t\tTransport type : IB", " Connection type : RC\t\tUsing SRQ      : OFF",
        " Mtu             : 4096[B]", f" Link type       : {link}", LINE,
        " local address: LID 0x01 QPN 0x0066 PSN 0xdcb546 RKey 0x1fffbd VAddr 0x007255bb410000", LINE,
        f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]",
        *sizes,
        LINE,
    )  # fmt: skip
    return "\n".join((*lines, ""))


def ibstat(device: str = "mlx5_0", **facts: str) -> str:
    """A card of one port."""
    known = {"state": "Active", "physical": "LinkUp", "rate": "200", "layer": "InfiniBand", "card": "MT4123", **facts}
    return (
        f"CA '{device}'\n\tCA type: {known['card']}\n\tNumber of ports: 1\n\tFirmware version: 20.31.1014\n\tPort 1:\n"
        f"\t\tState: {known['state']}\n\t\tPhysical state: {known['physical']}\n\t\tRate: {known['rate']}\n"
        f"\t\tBase lid: 12\n\t\tLMC: 0\n\t\tCapability mask: 0x2651e848\n\t\tLink layer: {known['layer']}\n"
    )


def ibstatus(device: str, state: str, physical: str) -> str:
    return (
        f"Infiniband device '{device}' port 1 status:\n\tbase lid:\t 0x5\n\tstate:\t\t {state}\n\tphys state:\t {physical}\n"
        "\trate:\t\t 200 Gb/sec (4X HDR)\n\tlink_layer:\t InfiniBand\n\n"
    )


QUIET = {
    "SW Power Cap": "Not Active", "HW Slowdown": "Not Active", "HW Thermal Slowdown": "Not Active",
    "HW Power Brake Slowdown": "Not Active", "SW Thermal Slowdown": "Not Active", "generation": "4", "width": "16x",
    "Gpu": "97 %", "DRAM Uncorrectable": "0", "Pending": "No", "Remapping Failure Occurred": "No",
    "Current Power Limit": "400.00 W",
}  # fmt: skip


def smi_q(*gpus: dict[str, str]) -> str:
    """``nvidia-smi -q`` of A100s at 00:00.0, 01:00.0, ..: what differs from a healthy one under load."""
    out = (
        f"\n==============NVSMI LOG==============\n\nDriver Version     : 550.90.07\nAttached GPUs      : {len(gpus)}\n"
    )
    for index, changed in enumerate(gpus):
        of = {**QUIET, **changed}
        reasons = "".join(f"        {name:<33} : {of[name]}\n" for name in QUIET if name.startswith(("SW", "HW")))
        out += (
            f"GPU 00000000:{index:02X}:00.0\n    Product Name          : NVIDIA A100-SXM4-80GB\n    PCI\n"
            f"        GPU Link Info\n            PCIe Generation\n                Max     : 4\n"
            f"                Current : {of['generation']}\n            Link Width\n                Max     : 16x\n"
            f"                Current : {of['width']}\n    Clocks Event Reasons\n{reasons}"
            f"    Clocks Event Reasons Counters\n        HW Thermal Slowdown           : 3 us\n    Utilization\n"
            f"        Gpu               : {of['Gpu']}\n    ECC Mode\n        Pending           : Enabled\n"
            f"    ECC Errors\n        Volatile\n            SRAM Uncorrectable        : 0\n"
            f"            DRAM Uncorrectable        : {of['DRAM Uncorrectable']}\n        Aggregate\n"
            f"            DRAM Uncorrectable        : 7\n    Remapped Rows\n        Correctable Error             : 1\n"
            f"        Pending                       : {of['Pending']}\n"
            f"        Remapping Failure Occurred    : {of['Remapping Failure Occurred']}\n    Temperature\n"
            f"        GPU Current Temp              : 71 C\n    GPU Power Readings\n"
            f"        Current Power Limit           : {of['Current Power Limit']}\n"
            f"        Default Power Limit           : 400.00 W\n    Module Power Readings\n"
            f"        Default Power Limit           : N/A\n"
        )
    return out


SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   34C    P0             62W /  400W |       3MiB /  81920MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:0B:00.0 Off |                  ECC |
| N/A   34C    P0             62W /  CAPW |       3MiB /  81920MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""
"""``nvidia-smi``: CAP and ECC of the second GPU."""


def matrix(title: str, count: int, rates: Rates) -> str:
    rows = (
        f"{a:6d} " + " ".join(f"{rates(a, b) if a != b else 1500.5:6.2f}" for b in range(count)) for a in range(count)
    )
    return "\n".join((title, "   D\\D  " + "".join(f"{n:7d}" for n in range(count)), *rows, ""))


def p2p(model: str, count: int, enabled: Rates, disabled: Rates, *, reach: bool = True) -> str:
    """The CUDA sample: rates with P2P and without, GB/s in one direction."""
    others = [(a, b) for a in range(count) for b in range(count) if a != b]
    return "".join(
        (
            "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n",
            *(f"Device: {n}, {model}, pciBusID: {n + 1:x}, pciDeviceID: 0, pciDomainID:0\n" for n in range(count)),
            *(f"Device={a} {'CAN' if reach else 'CANNOT'} Access Peer Device={b}\n" for a, b in others),
            "\nP2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n     1\t     1     1\n",
            matrix("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", count, disabled),
            matrix("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", count, enabled),
            matrix("Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)", count, lambda a, b: 1.8 * disabled(a, b)),
            matrix("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", count, lambda a, b: 1.95 * enabled(a, b)),
            matrix("P2P=Disabled Latency Matrix (us)", count, lambda *_: 17.3),
            matrix("P2P=Enabled Latency (P2P Writes) Matrix (us)", count, lambda *_: 2.6),
        )
    )


def nvbandwidth(model: str, count: int, host: Callable[[int], float], rates: Rates, *, arrow: str = "<-") -> str:
    head = "  " + "".join(f"{n:10d}" for n in range(count))
    cells = [["       N/A" if a == b else f"{rates(a, b):10.2f}" for b in range(count)] for a in range(count)]
    return "\n".join(
        (
            "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\nDriver Version: 580.95.05\n",
            *(f"Device {n}: {model} (00000000:{n + 3:02x}:00)" for n in range(count)),
            "\nRunning host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", head,
            " 0" + "".join(f"{host(n):10.2f}" for n in range(count)), "\nSUM host_to_device_memcpy_ce 99.90\n",
            "Running host_to_device_bidirectional_memcpy_ce.\nmemcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)", head,
            " 0" + "".join(f"{host(n) / 3:10.2f}" for n in range(count)),
            f"\nRunning device_to_device_memcpy_read_ce.\nmemcpy CE GPU(row) {arrow} GPU(column) bandwidth (GB/s)", head,
            *(f" {a}" + "".join(row) for a, row in enumerate(cells)), "\nSUM device_to_device_memcpy_read_ce 715.53\n",
            "Running device_local_copy.\nmemcpy local GPU(column) bandwidth (GB/s)", head,
            " 0" + "".join(f"{900.0:10.2f}" for _ in range(count)), "",
        )
    )  # fmt: skip
