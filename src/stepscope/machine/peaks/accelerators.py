"""The accelerator table, ``accelerators.csv`` beside this file: NVIDIA GPUs, then AMD's.

Dense rates in TFLOP/s: where a datasheet prints "with sparsity", half of it. form: SXM modules hang on NVSwitch or a mesh of
NVLinks; PCIe cards may carry a bridge over two cards. match: expressions, ``;`` between them; none: the name alone. link,
links, link_gb_per_s: one link, one direction. NVLink's whole count reaches one peer through a switch or bridge
(peer_links); AMD's mesh has one link for each. GA102's bridge: 4 links of 14.0625 GB/s, 112.5 GB/s both directions.
pcie: generation x lanes. driver_gib: what its driver reports, the least seen (2026-11): totalGlobalMem of profiler traces
(V100 32 GB, A100 40 GB, MI300X), and of the others what torch prints as total capacity in public logs; variants of one chip
and memory share it. generation: row of NCCL's tables: volta (and older), ampere (Ada too; AMD's devices, unused), hopper or
blackwell. node, rack: GPUs of one, as usual; rack: that NVLink reaches. adapter_gbit_per_s: usual for one GPU between nodes.
reached: share of the BF16 peak that the best matrix product reaches: stas00/ml-engineering, compute/accelerator, MAMF.

Matrix rates with FP32 accumulation, which torch uses: on GeForce cards half of the FP16-accumulate rate that
headlines print (and a quarter of the sparse one). Laptop parts and the cards sold under one name with different
chips (GeForce RTX 3080 10 GB and 12 GB) are left out on purpose: their peak cannot be told from the name.

AMD Instinct accelerators: on MI200 one package is two devices (GCDs) to torch, and the values are one GCD's.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from stepscope.machine.peaks.rates import DTYPES, Accelerator, LinkSpec

USUAL_REACH = 0.80


_TEXTS = ("key", "name", "vendor", "form", "generation", "source", "date", "confused_with")


def _accelerator(row: Mapping[str, str]) -> Accelerator:
    """Return the accelerator of a row of the table."""
    numbers = ("memory_gb", "memory_gb_per_s", "driver_gib", "reached", "watts", "adapter_gbit_per_s")
    memory, rate, driver, reached, watts, adapter = (float(row[column] or "nan") for column in numbers)
    link, pcie = None, [int(number) for number in row["pcie"].split("x") if number]
    if row["link"]:
        link = LinkSpec(
            name=row["link"],
            count=int(row["links"]),
            each_bytes_per_s=float(row["link_gb_per_s"]) * 1e9,
            peer_links=int(row["peer_links"]),
            optional=row["optional"] == "yes",
        )
    return Accelerator(
        **{name: row[name] for name in _TEXTS},
        match=tuple((row["match"] or row["name"]).split(";")),
        memory_bytes=round(memory * 1e9),
        memory_bytes_per_s=rate * 1e9,
        total_bytes=round(driver * 2**30) if row["driver_gib"] else round(memory * 1e9),
        peak_flops_per_s={dtype: float(row[dtype]) * 1e12 for dtype in DTYPES if row[dtype]},
        link=link,
        node=int(row["node"]),
        rack=int(row["rack"] or 0),
        adapter_bytes_per_s=adapter / 8 * 1e9,
        peer_access=row["peer_access"] != "no",
        reached=reached if row["reached"] else USUAL_REACH,
        watts=watts if row["watts"] else None,
        pcie=(pcie[0], pcie[1]) if pcie else None,
    )


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _table:
    ACCELERATORS: tuple[Accelerator, ...] = tuple(map(_accelerator, csv.DictReader(_table)))
