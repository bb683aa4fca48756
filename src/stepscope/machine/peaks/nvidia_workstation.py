"""NVIDIA GeForce, RTX and Quadro cards.

Matrix rates with FP32 accumulation, which torch uses: on GeForce cards half of the FP16-accumulate rate that
headlines print (and a quarter of the sparse one). Laptop parts and the cards sold under one name with different
chips (GeForce RTX 3080 10 GB and 12 GB) are left out on purpose: their peak cannot be told from the name.
"""

from __future__ import annotations

from functools import partial

from stepscope.machine.peaks._common import Accelerator, accelerator, nvlink, nvlink_bridge_ga102, tflops

_gpu = partial(accelerator, "NVIDIA")
_TURING = "NVIDIA Turing architecture whitepaper"
_GA102 = "NVIDIA Ampere GA102 architecture whitepaper"
_ADA = "NVIDIA Ada architecture whitepaper"
_ADA_PRO = "NVIDIA Ada professional GPU architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell architecture whitepaper"
_FP16_ACCUMULATE = "{} TFLOP/s is the rate with FP16 accumulation, which training does not use"

ENTRIES: tuple[Accelerator, ...] = (
    _gpu(
        "rtx-2080-ti", "GeForce RTX 2080 Ti", "PCIe", memory=(11, 616), peak=tflops(fp32=13.4, fp16=53.8),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source=f"{_TURING} (reference clocks)", date="2018-09",
        confused_with=f"{_FP16_ACCUMULATE.format('107.6')}; no BF16",
    ),
    _gpu(
        "titan-rtx", "TITAN RTX", "PCIe", memory=(24, 672), peak=tflops(fp32=16.3, fp16=130.5),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source=f"NVIDIA TITAN RTX product page; {_TURING}",
        date="2018-12", confused_with="no BF16; unlike GeForce cards it accumulates in FP32 at full rate",
    ),
    _gpu(
        "quadro-rtx-6000", "Quadro RTX 6000", "PCIe", memory=(24, 672), peak=tflops(fp32=16.3, fp16=130.5),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source="NVIDIA Quadro RTX 6000 datasheet", date="2018-11",
        confused_with="neither the RTX A6000 (Ampere) nor the RTX 6000 Ada; no BF16",
    ),
    _gpu(
        "quadro-rtx-8000", "Quadro RTX 8000", "PCIe", memory=(48, 672), peak=tflops(fp32=16.3, fp16=130.5),
        link=nvlink(2, 2, optional=True), pcie=(3, 16), source="NVIDIA Quadro RTX 8000 datasheet", date="2018-11",
        confused_with="no BF16",
    ),
    _gpu(
        "rtx-3070", "GeForce RTX 3070", "PCIe", memory=(8, 448),
        peak=tflops(fp32=20.3, tf32=20.3, fp16=40.6, bf16=40.6), pcie=(4, 16), source=_GA102, date="2020-09",
        confused_with=_FP16_ACCUMULATE.format("81.3"),
    ),
    _gpu(
        "rtx-3090", "GeForce RTX 3090", "PCIe", memory=(24, 936), peak=tflops(fp32=35.6, tf32=35.6, fp16=71, bf16=71),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source=_GA102, date="2020-09",
        confused_with="142 TFLOP/s is sparse or with FP16 accumulation; 35.6 is the rate without tensor cores",
    ),
    _gpu(
        "rtx-3090-ti", "GeForce RTX 3090 Ti", "PCIe", memory=(24, 1008),
        peak=tflops(fp32=40, tf32=40, fp16=80, bf16=80), link=nvlink_bridge_ga102(), pcie=(4, 16),
        source=f"{_ADA} (comparison table)", date="2022-09", confused_with=_FP16_ACCUMULATE.format("160"),
    ),
    _gpu(
        "rtx-a6000", "RTX A6000", "PCIe", memory=(48, 768), peak=tflops(fp32=38.7, tf32=77.4, fp16=154.8, bf16=154.8),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source=f"NVIDIA RTX A6000 datasheet; {_GA102}", date="2020-10",
        confused_with="309.7 TFLOP/s is sparse; not the RTX 6000 Ada (364)",
    ),
    _gpu(
        "rtx-a5000", "RTX A5000", "PCIe", memory=(24, 768), peak=tflops(fp32=27.8, tf32=55.6, fp16=111.1, bf16=111.1),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source="NVIDIA RTX A5000 datasheet", date="2021-04",
        confused_with="222.2 TFLOP/s is sparse",
    ),
    _gpu(
        "rtx-6000-ada", "RTX 6000 Ada", "PCIe", match=(r"RTX 6000 Ada Generation",), memory=(48, 960),
        peak=tflops(fp32=91.1, tf32=182.1, fp16=364.2, bf16=364.2, fp8=728.5), pcie=(4, 16),
        source=f"NVIDIA RTX 6000 Ada datasheet; {_ADA_PRO}", date="2022-12",
        confused_with="1457 TFLOP/s is sparse FP8; not the RTX A6000 (155), not the RTX PRO 6000",
    ),
    _gpu(
        "rtx-4070-ti", "GeForce RTX 4070 Ti", "PCIe", memory=(12, 504),
        peak=tflops(fp32=40.1, tf32=40.1, fp16=80.2, bf16=80.2, fp8=160.4), pcie=(4, 16), source=_ADA, date="2023-01",
        confused_with=_FP16_ACCUMULATE.format("160"),
    ),
    _gpu(
        "rtx-4080", "GeForce RTX 4080", "PCIe", memory=(16, 716.8),
        peak=tflops(fp32=48.7, tf32=48.7, fp16=97.5, bf16=97.5, fp8=194.9), pcie=(4, 16), source=_ADA, date="2022-11",
        confused_with=_FP16_ACCUMULATE.format("194.9"),
    ),
    _gpu(
        "rtx-4090", "GeForce RTX 4090", "PCIe", memory=(24, 1008),
        peak=tflops(fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3), pcie=(4, 16), source=_ADA, date="2022-10",
        confused_with="330 is FP16 accumulation or sparse; 82.6 is without tensor cores; the laptop GPU and "
        "the 4090 D are other chips",
    ),
    _gpu(
        "rtx-5080", "GeForce RTX 5080", "PCIe", memory=(16, 960),
        peak=tflops(fp32=56.3, tf32=56.3, fp16=112.6, bf16=112.6, fp8=225.1), pcie=(5, 16), source=_BLACKWELL,
        date="2025-01", confused_with=_FP16_ACCUMULATE.format("225.1"),
    ),
    _gpu(
        "rtx-5090", "GeForce RTX 5090", "PCIe", memory=(32, 1792),
        peak=tflops(fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419), pcie=(5, 16), source=_BLACKWELL,
        date="2025-01", confused_with="838 is sparse with FP16 accumulation; 3352 'AI TOPS' is sparse FP4",
    ),
    _gpu(
        "rtx-pro-6000-workstation", "RTX PRO 6000 Blackwell Workstation", "PCIe",
        match=(r"RTX PRO 6000 Blackwell Workstation Edition",), memory=(96, 1792),
        peak=tflops(fp32=126, tf32=251.9, fp16=503.8, bf16=503.8, fp8=1007.6), pcie=(5, 16),
        source="NVIDIA RTX Blackwell PRO architecture whitepaper", date="2025-03",
        confused_with="4000 'AI TOPS' is sparse FP4; the Max-Q and Server editions clock lower",
    ),
)  # fmt: skip
