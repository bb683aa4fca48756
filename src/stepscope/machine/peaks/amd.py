"""AMD Instinct accelerators. On MI200 one package is two devices (GCDs) to torch: the values are one GCD's."""

from __future__ import annotations

from functools import partial

from stepscope.machine.peaks._common import Accelerator, LinkSpec, accelerator, infinity_fabric, tflops

_gpu = partial(accelerator, "AMD")
_CDNA3 = tflops(fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9)

ENTRIES: tuple[Accelerator, ...] = (
    _gpu(
        "mi100", "Instinct MI100", "PCIe", memory=(32, 1228.8), peak=tflops(fp32=23.1, fp16=184.6, bf16=92.3),
        link=infinity_fabric(46, count=3), pcie=(4, 16), source="AMD Instinct MI100 data sheet", date="2020-11",
        confused_with="BF16 runs at half the FP16 rate; 46.1 TFLOP/s is FP32 on the matrix units",
    ),
    _gpu(
        "mi210", "Instinct MI210", "PCIe", memory=(64, 1638.4), peak=tflops(fp32=22.6, fp16=181, bf16=181),
        link=LinkSpec(name="Infinity Fabric bridge", count=3, each_bytes_per_s=50e9, peer_links=1, optional=True),
        pcie=(4, 16), source="AMD Instinct MI210 data sheet", date="2022-03",
        confused_with="45.3 TFLOP/s is FP32 on the matrix units",
    ),
    _gpu(
        "mi250", "Instinct MI250 (one GCD)", "OAM", match=(r"Instinct MI250",), memory=(64, 1638.4),
        peak=tflops(fp32=22.65, fp16=181.05, bf16=181.05),
        link=LinkSpec(name="Infinity Fabric", count=7, each_bytes_per_s=50e9, peer_links=1), pcie=(4, 16),
        source="AMD Instinct MI250 data sheet, halved", date="2021-11",
        confused_with="362 TFLOP/s and 128 GB are the package's two GCDs together; torch sees two devices",
    ),
    _gpu(
        "mi250x", "Instinct MI250X (one GCD)", "OAM", match=(r"Instinct MI250X",), memory=(64, 1638.4),
        peak=tflops(fp32=23.95, fp16=191.5, bf16=191.5),
        link=LinkSpec(name="Infinity Fabric", count=8, each_bytes_per_s=50e9, peer_links=1), pcie=(4, 16),
        source="AMD Instinct MI250X data sheet, halved", date="2021-11",
        confused_with="383 TFLOP/s and 128 GB are the package's two GCDs together; the GCDs of one package share 4 links",
    ),
    _gpu(
        "mi300a", "Instinct MI300A", "SH5", memory=(128, 5300),
        peak=tflops(fp32=122.6, tf32=490.3, fp16=980.6, bf16=980.6, fp8=1961.2), pcie=(5, 16),
        source="AMD Instinct MI300A data sheet", date="2023-12",
        confused_with="an APU: fewer compute units than the MI300X (1307); memory is shared with the CPU cores",
    ),
    _gpu(
        "mi300x", "Instinct MI300X", "OAM", match=(r"Instinct MI300X(?: OAM)?",), memory=(192, 5300), peak=_CDNA3,
        link=infinity_fabric(64), pcie=(5, 16), source="AMD Instinct MI300X data sheet", date="2023-12",
        confused_with="2615 BF16 is sparse; 448 GB/s is the sum over seven peers, a pair has 64",
    ),
    _gpu(
        "mi325x", "Instinct MI325X", "OAM", match=(r"Instinct MI325X(?: OAM)?",), memory=(256, 6000), peak=_CDNA3,
        link=infinity_fabric(64), pcie=(5, 16), source="AMD Instinct MI325X data sheet", date="2024-10",
        confused_with="computes like an MI300X; 2615 BF16 is sparse",
    ),
    _gpu(
        "mi350x", "Instinct MI350X", "OAM", match=(r"Instinct MI350X(?: OAM)?",), memory=(288, 8000),
        peak=tflops(fp32=144.2, fp16=2300, bf16=2300, fp8=4600), link=infinity_fabric(76.8), pcie=(5, 16),
        source="AMD Instinct MI350X data sheet", date="2025-06",
        confused_with="4600 BF16 is sparse; the liquid-cooled MI355X has 2500; no TF32 in hardware",
    ),
    _gpu(
        "mi355x", "Instinct MI355X", "OAM", match=(r"Instinct MI355X(?: OAM)?",), memory=(288, 8000),
        peak=tflops(fp32=157.3, fp16=2500, bf16=2500, fp8=5000), link=infinity_fabric(76.8), pcie=(5, 16),
        source="AMD Instinct MI355X data sheet", date="2025-06",
        confused_with="5000 BF16 is sparse; no TF32 in hardware",
    ),
)  # fmt: skip
