"""The accelerator table: NVIDIA GPUs, then AMD's. Dense rates: where a datasheet prints "with sparsity", half of it.

form: SXM modules hang on NVSwitch or a mesh of NVLinks; PCIe cards may carry a bridge over two cards.

Matrix rates with FP32 accumulation, which torch uses: on GeForce cards half of the FP16-accumulate rate that
headlines print (and a quarter of the sparse one). Laptop parts and the cards sold under one name with different
chips (GeForce RTX 3080 10 GB and 12 GB) are left out on purpose: their peak cannot be told from the name.

AMD Instinct accelerators. On MI200 one package is two devices (GCDs) to torch: the values are one GCD's.
"""

from __future__ import annotations

from functools import partial

from stepscope.machine.peaks.rates import (
    Accelerator,
    LinkSpec,
    accelerator,
    infinity_fabric,
    nvlink,
    nvlink_bridge_ga102,
    tflops,
)

_gpu, _amd = partial(accelerator, "NVIDIA"), partial(accelerator, "AMD")
_CDNA3 = tflops(fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9)
_P100 = "NVIDIA Tesla P100 datasheet"
_V100 = "NVIDIA V100 Tensor Core GPU datasheet"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet; Hopper architecture whitepaper"
_BLACKWELL = "NVIDIA Blackwell architecture technical brief; {} datasheet"
_HOPPER_SXM = tflops(fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9)
_TURING = "NVIDIA Turing architecture whitepaper"
_GA102 = "NVIDIA Ampere GA102 architecture whitepaper"
_ADA = "NVIDIA Ada architecture whitepaper"
_ADA_PRO = "NVIDIA Ada professional GPU architecture whitepaper"
_BLACKWELL_RTX = "NVIDIA RTX Blackwell architecture whitepaper"
_FP16_ACCUMULATE = "{} TFLOP/s is the rate with FP16 accumulation, which training does not use"
_GA100 = tflops(fp32=19.5, tf32=156, fp16=312, bf16=312)

ACCELERATORS: tuple[Accelerator, ...] = (
    _gpu(
        "p100-sxm2", "P100-SXM2-16GB", "SXM2", match=(r"Tesla P100-SXM2-16GB",), memory=(16, 732),
        peak=tflops(fp32=10.6, fp16=21.2), link=nvlink(1, 4, peer_links=1), pcie=(3, 16), source=_P100, date="2016",
        confused_with="no tensor cores: 21.2 TFLOP/s FP16 is the vector rate",
    ),
    _gpu(
        "p100-pcie", "P100-PCIE-16GB", "PCIe", match=(r"Tesla P100-PCIE-16GB",), memory=(16, 732),
        peak=tflops(fp32=9.3, fp16=18.7), pcie=(3, 16), source=_P100, date="2016",
        confused_with="the 12 GB card has 549 GB/s",
    ),
    _gpu(
        "v100-sxm2-16gb", "V100-SXM2-16GB", "SXM2", match=(r"Tesla V100-SXM2-16GB",), memory=(16, 900),
        peak=tflops(fp32=15.7, fp16=125), link=nvlink(2, 6, peer_links=2), pcie=(3, 16), source=_V100, date="2017-05",
        confused_with="no BF16 and no TF32; the PCIe card has 112 TFLOP/s",
    ),
    _gpu(
        "v100-sxm2-32gb", "V100-SXM2-32GB", "SXM2", match=(r"Tesla V100-SXM2-32GB",), memory=(32, 900),
        peak=tflops(fp32=15.7, fp16=125), link=nvlink(2, 6, peer_links=2), pcie=(3, 16), source=_V100, date="2018-03",
        confused_with="no BF16 and no TF32; the PCIe card has 112 TFLOP/s",
    ),
    _gpu(
        "v100-sxm3-32gb", "V100-SXM3-32GB", "SXM3", match=(r"Tesla V100-SXM3-32GB",), memory=(32, 900),
        peak=tflops(fp32=15.7, fp16=125), link=nvlink(2, 6), pcie=(3, 16), source=f"{_V100}; DGX-2 datasheet",
        date="2018-03", confused_with="the DGX-2H part (SXM3-32GB-H) clocks higher and is not this one",
    ),
    _gpu(
        "v100-pcie-16gb", "V100-PCIE-16GB", "PCIe", match=(r"Tesla V100-PCIE-16GB",), memory=(16, 900),
        peak=tflops(fp32=14, fp16=112), pcie=(3, 16), source=_V100, date="2017-05",
        confused_with="112 TFLOP/s, not the SXM2 module's 125",
    ),
    _gpu(
        "v100-pcie-32gb", "V100-PCIE-32GB", "PCIe", match=(r"Tesla V100-PCIE-32GB",), memory=(32, 900),
        peak=tflops(fp32=14, fp16=112), pcie=(3, 16), source=_V100, date="2018-03",
        confused_with="112 TFLOP/s, not the SXM2 module's 125",
    ),
    _gpu(
        "v100s-pcie-32gb", "V100S-PCIE-32GB", "PCIe", match=(r"Tesla V100S-PCIE-32GB",), memory=(32, 1134),
        peak=tflops(fp32=16.4, fp16=130), pcie=(3, 16), source=f"{_V100} (V100S column)", date="2020-01",
        confused_with="V100S: 130 TFLOP/s and 1134 GB/s; V100 PCIe: 112 and 900",
    ),
    _gpu(
        "t4", "T4", "PCIe", match=(r"Tesla T4", r"T4"), memory=(16, 320), peak=tflops(fp32=8.1, fp16=65), pcie=(3, 16),
        source="NVIDIA T4 datasheet and product brief", date="2018-09",
        confused_with="no BF16; 130 is its INT8 rate; at 70 W it rarely holds 65 TFLOP/s",
    ),
    _gpu(
        "a100-sxm4-40gb", "A100-SXM4-40GB", "SXM4", match=(r"A100-SXM4-40GB", r"A100-SXM-40GB"), memory=(40, 1555),
        peak=_GA100, link=nvlink(3, 12), pcie=(4, 16), source=_A100, date="2020-05",
        confused_with="624 TFLOP/s is sparse; no FP8 (624 TOPS is INT8); 600 GB/s NVLink counts both directions",
    ),
    _gpu(
        "a100-sxm4-80gb", "A100-SXM4-80GB", "SXM4", match=(r"A100-SXM4-80GB", r"A100-SXM-80GB"), memory=(80, 2039),
        peak=_GA100, link=nvlink(3, 12), pcie=(4, 16), source=_A100, date="2021-06",
        confused_with="624 TFLOP/s is sparse; no FP8 (624 TOPS is INT8); 600 GB/s NVLink counts both directions",
    ),
    _gpu(
        "a100-pcie-40gb", "A100-PCIE-40GB", "PCIe", memory=(40, 1555), peak=_GA100, link=nvlink(3, 12, optional=True),
        pcie=(4, 16), source=_A100, date="2020-06",
        confused_with="same peak as SXM4 on paper, but 250 W: large products run at about 250 TFLOP/s",
    ),
    _gpu(
        "a100-pcie-80gb", "A100 80GB PCIe", "PCIe", match=(r"A100 80GB PCIe", r"A100-PCIE-80GB"), memory=(80, 1935),
        peak=_GA100, link=nvlink(3, 12, optional=True), pcie=(4, 16), source=_A100, date="2021-06",
        confused_with="the SXM4 module has 2039 GB/s; 600 GB/s NVLink exists only inside a bridged pair",
    ),
    _gpu(
        "a800-sxm4-80gb", "A800-SXM4-80GB", "SXM4", memory=(80, 2039), peak=_GA100, link=nvlink(3, 8), pcie=(4, 16),
        source="NVIDIA A800 datasheet", date="2022-11",
        confused_with="computes like an A100, but 8 NVLinks: 200 GB/s per direction instead of 300",
    ),
    _gpu(
        "a30", "A30", "PCIe", memory=(24, 933), peak=tflops(fp32=10.3, tf32=82, fp16=165, bf16=165),
        link=nvlink(3, 4, optional=True), pcie=(4, 16), source="NVIDIA A30 Tensor Core GPU datasheet", date="2021-04",
        confused_with="330 TFLOP/s is sparse",
    ),
    _gpu(
        "a40", "A40", "PCIe", memory=(48, 696), peak=tflops(fp32=37.4, tf32=74.8, fp16=149.7, bf16=149.7),
        link=nvlink_bridge_ga102(), pcie=(4, 16), source="NVIDIA A40 datasheet", date="2020-10",
        confused_with="299.4 TFLOP/s is sparse",
    ),
    _gpu(
        "a10", "A10", "PCIe", memory=(24, 600), peak=tflops(fp32=31.2, tf32=62.5, fp16=125, bf16=125), pcie=(4, 16),
        source="NVIDIA A10 Tensor Core GPU datasheet", date="2021-04",
        confused_with="not the A10G of AWS, which has 70 TFLOP/s",
    ),
    _gpu(
        "a10g", "A10G", "PCIe", memory=(24, 600), peak=tflops(fp32=31.5, tf32=35, fp16=70, bf16=70), pcie=(4, 16),
        source="NVIDIA A10G datasheet for AWS G5", date="2021-11",
        confused_with="not the A10: its 125 TFLOP/s would make MFU 1.8x too low; 140 is sparse",
    ),
    _gpu(
        "l4", "L4", "PCIe", memory=(24, 300), peak=tflops(fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242),
        pcie=(4, 16), source="NVIDIA L4 Tensor Core GPU datasheet", date="2023-03",
        confused_with="the datasheet's 242 (BF16) and 485 (FP8) are sparse",
    ),
    _gpu(
        "l40", "L40", "PCIe", memory=(48, 864), peak=tflops(fp32=90.5, tf32=90.5, fp16=181, bf16=181, fp8=362),
        pcie=(4, 16), source="NVIDIA L40 datasheet", date="2022-10",
        confused_with="half the tensor rate of the L40S, which has 362 TFLOP/s BF16",
    ),
    _gpu(
        "l40s", "L40S", "PCIe", memory=(48, 864), peak=tflops(fp32=91.6, tf32=183, fp16=362, bf16=362, fp8=733),
        pcie=(4, 16), source="NVIDIA L40S datasheet", date="2023-08",
        confused_with="733 (BF16) and 1466 (FP8) are sparse; the L40 has 181",
    ),
    _gpu(
        "h100-sxm", "H100 SXM5 80GB", "SXM5", match=(r"H100 80GB HBM3", r"H100 SXM5?(?: 80GB)?", r"H100-SXM5-80GB"),
        memory=(80, 3350), peak=_HOPPER_SXM, link=nvlink(4, 18), pcie=(5, 16), source=_H100, date="2022-11",
        confused_with="1979 (BF16) and 3958 (FP8) are sparse; 900 GB/s NVLink counts both directions",
    ),
    _gpu(
        "h100-pcie", "H100 PCIe 80GB", "PCIe", match=(r"H100 PCIe", r"H100-PCIe-80GB"), memory=(80, 2000),
        peak=tflops(fp32=51.2, tf32=378, fp16=756, bf16=756, fp8=1513), link=nvlink(4, 12, optional=True), pcie=(5, 16),
        source="NVIDIA H100 PCIe GPU product brief", date="2022-11",
        confused_with="756 dense, not the SXM5 module's 989; 1513 is sparse BF16 or dense FP8",
    ),
    _gpu(
        "h100-nvl", "H100 NVL 94GB", "PCIe", match=(r"H100 NVL", r"H100-NVL-94GB"), memory=(94, 3938),
        peak=tflops(fp32=60, tf32=417.5, fp16=835, bf16=835, fp8=1670.5), link=nvlink(4, 12, optional=True),
        pcie=(5, 16), source="NVIDIA H100 NVL GPU product brief", date="2023-03",
        confused_with="835 per GPU; 1671 is sparse, and launch slides add both GPUs of a pair",
    ),
    _gpu(
        "h800-sxm", "H800 SXM5 80GB", "SXM5", match=(r"H800",), memory=(80, 3350), peak=_HOPPER_SXM, link=nvlink(4, 8),
        pcie=(5, 16), source="NVIDIA H800 datasheet", date="2023-03",
        confused_with="computes like an H100, but 200 GB/s NVLink per direction instead of 450",
    ),
    _gpu(
        "h20", "H20 96GB", "SXM5", match=(r"H20",), memory=(96, 4000),
        peak=tflops(fp32=44, tf32=74, fp16=148, bf16=148, fp8=296), link=nvlink(4, 18), pcie=(5, 16),
        source="NVIDIA H20 datasheet", date="2023-11",
        confused_with="Hopper with 148 TFLOP/s, not 989, but more memory and full NVLink",
    ),
    _gpu(
        "h200-sxm", "H200 SXM5 141GB", "SXM5", match=(r"H200", r"H200 SXM5?", r"H200-SXM5?-141GB"), memory=(141, 4800),
        peak=_HOPPER_SXM, link=nvlink(4, 18), pcie=(5, 16), source="NVIDIA H200 Tensor Core GPU datasheet",
        date="2023-11", confused_with="computes like an H100 SXM (989, not 1979): only memory is larger and faster",
    ),
    _gpu(
        "h200-nvl", "H200 NVL 141GB", "PCIe", match=(r"H200 NVL",), memory=(141, 4800),
        peak=tflops(fp32=60, tf32=417.5, fp16=835.5, bf16=835.5, fp8=1670.5), link=nvlink(4, 18, optional=True),
        pcie=(5, 16), source="NVIDIA H200 Tensor Core GPU datasheet", date="2024-11",
        confused_with="836 dense, not the SXM module's 989; 1671 BF16 is sparse",
    ),
    _gpu(
        "gh200-96gb", "GH200 96GB", "superchip", match=(r"GH200 480GB", r"GH200 120GB", r"GH200 96GB(?: HBM3)?"),
        memory=(96, 4000), peak=_HOPPER_SXM, link=nvlink(4, 18), source="NVIDIA GH200 Grace Hopper Superchip datasheet",
        date="2023-08",
        confused_with="480GB in its name is the CPU's memory; the GPU has 96 GB. 900 GB/s is NVLink-C2C to the CPU",
    ),
    _gpu(
        "gh200-144gb", "GH200 144GB", "superchip", match=(r"GH200 144G(?:B)?(?: HBM3e)?",), memory=(144, 4900),
        peak=_HOPPER_SXM, link=nvlink(4, 18), source="NVIDIA GH200 Grace Hopper Superchip datasheet", date="2023-11",
        confused_with="the 96 GB part has 4.0 TB/s",
    ),
    _gpu(
        "b200", "B200 180GB", "SXM6", match=(r"B200", r"B200 180GB(?: HBM3e)?"), memory=(180, 8000),
        peak=tflops(fp32=80, tf32=1125, fp16=2250, bf16=2250, fp8=4500), link=nvlink(5, 18), pcie=(5, 16),
        source=_BLACKWELL.format("DGX B200"), date="2024-03",
        confused_with="4500 (BF16) and 9000 (FP8) are sparse; the GB200's GPUs have 2500",
    ),
    _gpu(
        "gb200", "GB200 (one GPU)", "superchip", match=(r"GB200",), memory=(186, 8000),
        peak=tflops(fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000), link=nvlink(5, 18),
        source=_BLACKWELL.format("GB200 NVL72"), date="2024-03",
        confused_with="a superchip is two of these; 5000 BF16 is sparse, or the dense rate of the pair",
    ),
    _gpu(
        "b300", "B300 SXM6", "SXM6", match=(r"B300 SXM6 AC", r"B300"), memory=(288, 8000),
        peak=tflops(fp32=80, tf32=1125, fp16=2250, bf16=2250, fp8=4500), link=nvlink(5, 18), pcie=(6, 16),
        source=_BLACKWELL.format("HGX B300"), date="2025-03",
        confused_with="faster than a B200 in FP4 only; 4500 BF16 is sparse; about 270 of the 288 GB are usable",
    ),
    _gpu(
        "gb300", "GB300 (one GPU)", "superchip", match=(r"GB300",), memory=(288, 8000),
        peak=tflops(fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000), link=nvlink(5, 18),
        source=_BLACKWELL.format("GB300 NVL72"), date="2025-03",
        confused_with="a superchip is two of these; faster than a GB200 in FP4 only",
    ),
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
        peak=tflops(fp32=56.3, tf32=56.3, fp16=112.6, bf16=112.6, fp8=225.1), pcie=(5, 16), source=_BLACKWELL_RTX,
        date="2025-01", confused_with=_FP16_ACCUMULATE.format("225.1"),
    ),
    _gpu(
        "rtx-5090", "GeForce RTX 5090", "PCIe", memory=(32, 1792),
        peak=tflops(fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419), pcie=(5, 16), source=_BLACKWELL_RTX,
        date="2025-01", confused_with="838 is sparse with FP16 accumulation; 3352 'AI TOPS' is sparse FP4",
    ),
    _gpu(
        "rtx-pro-6000-workstation", "RTX PRO 6000 Blackwell Workstation", "PCIe",
        match=(r"RTX PRO 6000 Blackwell Workstation Edition",), memory=(96, 1792),
        peak=tflops(fp32=126, tf32=251.9, fp16=503.8, bf16=503.8, fp8=1007.6), pcie=(5, 16),
        source="NVIDIA RTX Blackwell PRO architecture whitepaper", date="2025-03",
        confused_with="4000 'AI TOPS' is sparse FP4; the Max-Q and Server editions clock lower",
    ),
    _amd(
        "mi100", "Instinct MI100", "PCIe", memory=(32, 1228.8), peak=tflops(fp32=23.1, fp16=184.6, bf16=92.3),
        link=infinity_fabric(46, count=3), pcie=(4, 16), source="AMD Instinct MI100 data sheet", date="2020-11",
        confused_with="BF16 runs at half the FP16 rate; 46.1 TFLOP/s is FP32 on the matrix units",
    ),
    _amd(
        "mi210", "Instinct MI210", "PCIe", memory=(64, 1638.4), peak=tflops(fp32=22.6, fp16=181, bf16=181),
        link=LinkSpec(name="Infinity Fabric bridge", count=3, each_bytes_per_s=50e9, peer_links=1, optional=True),
        pcie=(4, 16), source="AMD Instinct MI210 data sheet", date="2022-03",
        confused_with="45.3 TFLOP/s is FP32 on the matrix units",
    ),
    _amd(
        "mi250", "Instinct MI250 (one GCD)", "OAM", match=(r"Instinct MI250",), memory=(64, 1638.4),
        peak=tflops(fp32=22.65, fp16=181.05, bf16=181.05),
        link=LinkSpec(name="Infinity Fabric", count=7, each_bytes_per_s=50e9, peer_links=1), pcie=(4, 16),
        source="AMD Instinct MI250 data sheet, halved", date="2021-11",
        confused_with="362 TFLOP/s and 128 GB are the package's two GCDs together; torch sees two devices",
    ),
    _amd(
        "mi250x", "Instinct MI250X (one GCD)", "OAM", match=(r"Instinct MI250X",), memory=(64, 1638.4),
        peak=tflops(fp32=23.95, fp16=191.5, bf16=191.5),
        link=LinkSpec(name="Infinity Fabric", count=8, each_bytes_per_s=50e9, peer_links=1), pcie=(4, 16),
        source="AMD Instinct MI250X data sheet, halved", date="2021-11",
        confused_with="383 TFLOP/s and 128 GB are the package's two GCDs together; the GCDs of one package share 4 links",
    ),
    _amd(
        "mi300a", "Instinct MI300A", "SH5", memory=(128, 5300),
        peak=tflops(fp32=122.6, tf32=490.3, fp16=980.6, bf16=980.6, fp8=1961.2), pcie=(5, 16),
        source="AMD Instinct MI300A data sheet", date="2023-12",
        confused_with="an APU: fewer compute units than the MI300X (1307); memory is shared with the CPU cores",
    ),
    _amd(
        "mi300x", "Instinct MI300X", "OAM", match=(r"Instinct MI300X(?: OAM)?",), memory=(192, 5300), peak=_CDNA3,
        link=infinity_fabric(64), pcie=(5, 16), source="AMD Instinct MI300X data sheet", date="2023-12",
        confused_with="2615 BF16 is sparse; 448 GB/s is the sum over seven peers, a pair has 64",
    ),
    _amd(
        "mi325x", "Instinct MI325X", "OAM", match=(r"Instinct MI325X(?: OAM)?",), memory=(256, 6000), peak=_CDNA3,
        link=infinity_fabric(64), pcie=(5, 16), source="AMD Instinct MI325X data sheet", date="2024-10",
        confused_with="computes like an MI300X; 2615 BF16 is sparse",
    ),
    _amd(
        "mi350x", "Instinct MI350X", "OAM", match=(r"Instinct MI350X(?: OAM)?",), memory=(288, 8000),
        peak=tflops(fp32=144.2, fp16=2300, bf16=2300, fp8=4600), link=infinity_fabric(76.8), pcie=(5, 16),
        source="AMD Instinct MI350X data sheet", date="2025-06",
        confused_with="4600 BF16 is sparse; the liquid-cooled MI355X has 2500; no TF32 in hardware",
    ),
    _amd(
        "mi355x", "Instinct MI355X", "OAM", match=(r"Instinct MI355X(?: OAM)?",), memory=(288, 8000),
        peak=tflops(fp32=157.3, fp16=2500, bf16=2500, fp8=5000), link=infinity_fabric(76.8), pcie=(5, 16),
        source="AMD Instinct MI355X data sheet", date="2025-06",
        confused_with="5000 BF16 is sparse; no TF32 in hardware",
    ),
)  # fmt: skip
