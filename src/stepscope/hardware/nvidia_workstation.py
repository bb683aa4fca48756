"""NVIDIA GeForce, RTX and Quadro cards.

Matrix rates with FP32 accumulation, which torch uses: on GeForce cards half of the FP16-accumulate rate that
headlines print (and a quarter of the sparse one). Laptop parts and the cards sold under one name with different
chips (GeForce RTX 3080 10 GB and 12 GB) are left out on purpose: their peak cannot be told from the name.
"""

from __future__ import annotations

from stepscope.hardware._common import Accelerator, gb, gb_per_s, nvlink, nvlink_bridge_ga102, tflops

_TURING = "NVIDIA Turing architecture whitepaper"
_GA102 = "NVIDIA Ampere GA102 architecture whitepaper"
_ADA = "NVIDIA Ada architecture whitepaper"
_ADA_PRO = "NVIDIA Ada professional GPU architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell architecture whitepaper"
_FP16_ACCUMULATE = "{} TFLOP/s is the rate with FP16 accumulation, which training does not use"

ENTRIES: tuple[Accelerator, ...] = (
    Accelerator(
        key="rtx-2080-ti", name="GeForce RTX 2080 Ti", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 2080 Ti",),
        memory_bytes=gb(11), memory_bytes_per_s=gb_per_s(616), peak_flops_per_s=tflops(fp32=13.4, fp16=53.8),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source=f"{_TURING} (reference clocks)", date="2018-09",
        confused_with=f"{_FP16_ACCUMULATE.format('107.6')}; no BF16",
    ),
    Accelerator(
        key="titan-rtx", name="TITAN RTX", vendor="NVIDIA", form="PCIe", match=(r"TITAN RTX",),
        memory_bytes=gb(24), memory_bytes_per_s=gb_per_s(672), peak_flops_per_s=tflops(fp32=16.3, fp16=130.5),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source=f"NVIDIA TITAN RTX product page; {_TURING}",
        date="2018-12", confused_with="no BF16; unlike GeForce cards it accumulates in FP32 at full rate",
    ),
    Accelerator(
        key="quadro-rtx-6000", name="Quadro RTX 6000", vendor="NVIDIA", form="PCIe", match=(r"Quadro RTX 6000",),
        memory_bytes=gb(24), memory_bytes_per_s=gb_per_s(672), peak_flops_per_s=tflops(fp32=16.3, fp16=130.5),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source="NVIDIA Quadro RTX 6000 datasheet", date="2018-11",
        confused_with="neither the RTX A6000 (Ampere) nor the RTX 6000 Ada; no BF16",
    ),
    Accelerator(
        key="quadro-rtx-8000", name="Quadro RTX 8000", vendor="NVIDIA", form="PCIe", match=(r"Quadro RTX 8000",),
        memory_bytes=gb(48), memory_bytes_per_s=gb_per_s(672), peak_flops_per_s=tflops(fp32=16.3, fp16=130.5),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source="NVIDIA Quadro RTX 8000 datasheet", date="2018-11",
        confused_with="no BF16",
    ),
    Accelerator(
        key="rtx-3070", name="GeForce RTX 3070", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 3070",),
        memory_bytes=gb(8), memory_bytes_per_s=gb_per_s(448),
        peak_flops_per_s=tflops(fp32=20.3, tf32=20.3, fp16=40.6, bf16=40.6),
        link=None, pcie=(4, 16), source=_GA102, date="2020-09", confused_with=_FP16_ACCUMULATE.format("81.3"),
    ),
    Accelerator(
        key="rtx-3090", name="GeForce RTX 3090", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 3090",),
        memory_bytes=gb(24), memory_bytes_per_s=gb_per_s(936),
        peak_flops_per_s=tflops(fp32=35.6, tf32=35.6, fp16=71, bf16=71),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source=_GA102, date="2020-09",
        confused_with="142 TFLOP/s is sparse or with FP16 accumulation; 35.6 is the rate without tensor cores",
    ),
    Accelerator(
        key="rtx-3090-ti", name="GeForce RTX 3090 Ti", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 3090 Ti",),
        memory_bytes=gb(24), memory_bytes_per_s=gb_per_s(1008),
        peak_flops_per_s=tflops(fp32=40, tf32=40, fp16=80, bf16=80),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source=f"{_ADA} (comparison table)", date="2022-09",
        confused_with=_FP16_ACCUMULATE.format("160"),
    ),
    Accelerator(
        key="rtx-a6000", name="RTX A6000", vendor="NVIDIA", form="PCIe", match=(r"RTX A6000",),
        memory_bytes=gb(48), memory_bytes_per_s=gb_per_s(768),
        peak_flops_per_s=tflops(fp32=38.7, tf32=77.4, fp16=154.8, bf16=154.8),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source=f"NVIDIA RTX A6000 datasheet; {_GA102}", date="2020-10",
        confused_with="309.7 TFLOP/s is sparse; not the RTX 6000 Ada (364)",
    ),
    Accelerator(
        key="rtx-a5000", name="RTX A5000", vendor="NVIDIA", form="PCIe", match=(r"RTX A5000",),
        memory_bytes=gb(24), memory_bytes_per_s=gb_per_s(768),
        peak_flops_per_s=tflops(fp32=27.8, tf32=55.6, fp16=111.1, bf16=111.1),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source="NVIDIA RTX A5000 datasheet", date="2021-04",
        confused_with="222.2 TFLOP/s is sparse",
    ),
    Accelerator(
        key="rtx-6000-ada", name="RTX 6000 Ada", vendor="NVIDIA", form="PCIe", match=(r"RTX 6000 Ada Generation",),
        memory_bytes=gb(48), memory_bytes_per_s=gb_per_s(960),
        peak_flops_per_s=tflops(fp32=91.1, tf32=182.1, fp16=364.2, bf16=364.2, fp8=728.5),
        link=None, pcie=(4, 16), source=f"NVIDIA RTX 6000 Ada datasheet; {_ADA_PRO}", date="2022-12",
        confused_with="1457 TFLOP/s is sparse FP8; not the RTX A6000 (155), not the RTX PRO 6000",
    ),
    Accelerator(
        key="rtx-4070-ti", name="GeForce RTX 4070 Ti", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 4070 Ti",),
        memory_bytes=gb(12), memory_bytes_per_s=gb_per_s(504),
        peak_flops_per_s=tflops(fp32=40.1, tf32=40.1, fp16=80.2, bf16=80.2, fp8=160.4),
        link=None, pcie=(4, 16), source=_ADA, date="2023-01", confused_with=_FP16_ACCUMULATE.format("160"),
    ),
    Accelerator(
        key="rtx-4080", name="GeForce RTX 4080", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 4080",),
        memory_bytes=gb(16), memory_bytes_per_s=gb_per_s(716.8),
        peak_flops_per_s=tflops(fp32=48.7, tf32=48.7, fp16=97.5, bf16=97.5, fp8=194.9),
        link=None, pcie=(4, 16), source=_ADA, date="2022-11", confused_with=_FP16_ACCUMULATE.format("194.9"),
    ),
    Accelerator(
        key="rtx-4090", name="GeForce RTX 4090", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 4090",),
        memory_bytes=gb(24), memory_bytes_per_s=gb_per_s(1008),
        peak_flops_per_s=tflops(fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3),
        link=None, pcie=(4, 16), source=_ADA, date="2022-10",
        confused_with="330 is FP16 accumulation or sparse; 82.6 is without tensor cores; the laptop GPU and the "
        "4090 D are other chips",
    ),
    Accelerator(
        key="rtx-5080", name="GeForce RTX 5080", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 5080",),
        memory_bytes=gb(16), memory_bytes_per_s=gb_per_s(960),
        peak_flops_per_s=tflops(fp32=56.3, tf32=56.3, fp16=112.6, bf16=112.6, fp8=225.1),
        link=None, pcie=(5, 16), source=_BLACKWELL, date="2025-01", confused_with=_FP16_ACCUMULATE.format("225.1"),
    ),
    Accelerator(
        key="rtx-5090", name="GeForce RTX 5090", vendor="NVIDIA", form="PCIe", match=(r"GeForce RTX 5090",),
        memory_bytes=gb(32), memory_bytes_per_s=gb_per_s(1792),
        peak_flops_per_s=tflops(fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419),
        link=None, pcie=(5, 16), source=_BLACKWELL, date="2025-01",
        confused_with="838 is sparse with FP16 accumulation; 3352 'AI TOPS' is sparse FP4",
    ),
    Accelerator(
        key="rtx-pro-6000-workstation", name="RTX PRO 6000 Blackwell Workstation", vendor="NVIDIA", form="PCIe",
        match=(r"RTX PRO 6000 Blackwell Workstation Edition",),
        memory_bytes=gb(96), memory_bytes_per_s=gb_per_s(1792),
        peak_flops_per_s=tflops(fp32=126, tf32=251.9, fp16=503.8, bf16=503.8, fp8=1007.6),
        link=None, pcie=(5, 16), source="NVIDIA RTX Blackwell PRO architecture whitepaper", date="2025-03",
        confused_with="4000 'AI TOPS' is sparse FP4; the Max-Q and Server editions clock lower",
    ),
)  # fmt: skip
