"""AMD Instinct accelerators. On MI200 one package is two devices (GCDs) to torch: the values are one GCD's."""

from __future__ import annotations

from stepscope.hardware._common import Accelerator, LinkSpec, gb, gb_per_s, infinity_fabric, tflops

_CDNA3 = tflops(fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9)

ENTRIES: tuple[Accelerator, ...] = (
    Accelerator(
        key="mi100", name="Instinct MI100", vendor="AMD", form="PCIe", match=(r"Instinct MI100",),
        memory_bytes=gb(32), memory_bytes_per_s=gb_per_s(1228.8),
        peak_flops_per_s=tflops(fp32=23.1, fp16=184.6, bf16=92.3),
        link=infinity_fabric(46, count=3), pcie=(4, 16), source="AMD Instinct MI100 data sheet", date="2020-11",
        confused_with="BF16 runs at half the FP16 rate; 46.1 TFLOP/s is FP32 on the matrix units",
    ),
    Accelerator(
        key="mi210", name="Instinct MI210", vendor="AMD", form="PCIe", match=(r"Instinct MI210",),
        memory_bytes=gb(64), memory_bytes_per_s=gb_per_s(1638.4),
        peak_flops_per_s=tflops(fp32=22.6, fp16=181, bf16=181),
        link=LinkSpec(name="Infinity Fabric bridge", count=3, each_bytes_per_s=50e9, peer_links=1, optional=True),
        pcie=(4, 16), source="AMD Instinct MI210 data sheet", date="2022-03",
        confused_with="45.3 TFLOP/s is FP32 on the matrix units",
    ),
    Accelerator(
        key="mi250", name="Instinct MI250 (one GCD)", vendor="AMD", form="OAM", match=(r"Instinct MI250",),
        memory_bytes=gb(64), memory_bytes_per_s=gb_per_s(1638.4),
        peak_flops_per_s=tflops(fp32=22.65, fp16=181.05, bf16=181.05),
        link=LinkSpec(name="Infinity Fabric", count=7, each_bytes_per_s=50e9, peer_links=1), pcie=(4, 16),
        source="AMD Instinct MI250 data sheet, halved", date="2021-11",
        confused_with="362 TFLOP/s and 128 GB are the package's two GCDs together; torch sees two devices",
    ),
    Accelerator(
        key="mi250x", name="Instinct MI250X (one GCD)", vendor="AMD", form="OAM", match=(r"Instinct MI250X",),
        memory_bytes=gb(64), memory_bytes_per_s=gb_per_s(1638.4),
        peak_flops_per_s=tflops(fp32=23.95, fp16=191.5, bf16=191.5),
        link=LinkSpec(name="Infinity Fabric", count=8, each_bytes_per_s=50e9, peer_links=1), pcie=(4, 16),
        source="AMD Instinct MI250X data sheet, halved", date="2021-11",
        confused_with="383 TFLOP/s and 128 GB are the package's two GCDs together; the GCDs of one package share 4 links",
    ),
    Accelerator(
        key="mi300a", name="Instinct MI300A", vendor="AMD", form="SH5", match=(r"Instinct MI300A",),
        memory_bytes=gb(128), memory_bytes_per_s=gb_per_s(5300),
        peak_flops_per_s=tflops(fp32=122.6, tf32=490.3, fp16=980.6, bf16=980.6, fp8=1961.2),
        link=None, pcie=(5, 16), source="AMD Instinct MI300A data sheet", date="2023-12",
        confused_with="an APU: fewer compute units than the MI300X (1307); memory is shared with the CPU cores",
    ),
    Accelerator(
        key="mi300x", name="Instinct MI300X", vendor="AMD", form="OAM", match=(r"Instinct MI300X(?: OAM)?",),
        memory_bytes=gb(192), memory_bytes_per_s=gb_per_s(5300), peak_flops_per_s=_CDNA3,
        link=infinity_fabric(64), pcie=(5, 16), source="AMD Instinct MI300X data sheet", date="2023-12",
        confused_with="2615 BF16 is sparse; 448 GB/s is the sum over seven peers, a pair has 64",
    ),
    Accelerator(
        key="mi325x", name="Instinct MI325X", vendor="AMD", form="OAM", match=(r"Instinct MI325X(?: OAM)?",),
        memory_bytes=gb(256), memory_bytes_per_s=gb_per_s(6000), peak_flops_per_s=_CDNA3,
        link=infinity_fabric(64), pcie=(5, 16), source="AMD Instinct MI325X data sheet", date="2024-10",
        confused_with="computes like an MI300X; 2615 BF16 is sparse",
    ),
    Accelerator(
        key="mi350x", name="Instinct MI350X", vendor="AMD", form="OAM", match=(r"Instinct MI350X(?: OAM)?",),
        memory_bytes=gb(288), memory_bytes_per_s=gb_per_s(8000),
        peak_flops_per_s=tflops(fp32=144.2, fp16=2300, bf16=2300, fp8=4600),
        link=infinity_fabric(76.8), pcie=(5, 16), source="AMD Instinct MI350X data sheet", date="2025-06",
        confused_with="4600 BF16 is sparse; the liquid-cooled MI355X has 2500; no TF32 in hardware",
    ),
    Accelerator(
        key="mi355x", name="Instinct MI355X", vendor="AMD", form="OAM", match=(r"Instinct MI355X(?: OAM)?",),
        memory_bytes=gb(288), memory_bytes_per_s=gb_per_s(8000),
        peak_flops_per_s=tflops(fp32=157.3, fp16=2500, bf16=2500, fp8=5000),
        link=infinity_fabric(76.8), pcie=(5, 16), source="AMD Instinct MI355X data sheet", date="2025-06",
        confused_with="5000 BF16 is sparse; no TF32 in hardware",
    ),
)  # fmt: skip
