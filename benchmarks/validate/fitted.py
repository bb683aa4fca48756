"""Which rows the shipped constants (:mod:`stepscope.predict.step.calibration`) were fitted on.

Groups of one source, model and number of GPUs, sorted, every other one: whole groups, about half of each source. Only row
numbers stand here: ``python -m benchmarks.fit_step FOLDER`` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from stepscope.predict.step.run_rows import TrainingRow

SEEN_CODES = frozenset({"nanotron", "composer", "fsdp2", "megatron", "megatron tokendrop", "megatron-2021"})
"""Code that ran rows which the constants were fitted on, where a row names it."""

_ROWS: Mapping[str, str] = {
    "bigscience-a100": "3080c00000003fc03f3bc0000078898000",
    "dgxc-benchmarking": "124bc0000004454544454540005154a2a2a2104200000a50a2800000000001085454420825285140000000",
    "flagperf": "3e821e000",
    "internevo": "aad5400015400",
    "llm-foundry": "283af8a0140283afebc8000000000000000008050141febef00000",
    "megatron-bridge": "10000101800a040070900000038480000000384800000000e12000001f001c200006400640",
    "nanotron-ultrascale": (
        "1100080a40800070209180001408e99341010a51050040e042445403c021160150e0826d21420b4c01341480480c092c1801"
        "0010c05004cd0850d202c011ed4c0342044049100401030c0e08b095508c90ab051200d410040409080288a25090000461a9"
        "007042610002d82e064902129231003c1a020141401899b1a4ab9c00866179403b1840f80f3a054681791103aae604c4ef11"
        "00026020a0c010229a568c0bb800ed0636502bdec95c6825b1d5aa4d0c5133ca000006844005001c012084049ca048000848"
        "800e1213501480010014c6042200800"
    ),
    "torchao": "e",
    "torchtitan": "7e000000",
}
"""Numbers of rows by source: a bit each, lowest first, as a hexadecimal number."""


_COLLECTIVES = (
    "amd-mi300x-1n", "amd-mi325x", "aws-p4de-2n", "aws-p5-1n", "coreweave-64", "coreweave-gb200-72", "cscs-gh200-2n",
    "gcp-a3mega-allgather", "liplus-a100-sendrecv", "mleng-a100-1n", "mleng-b200-1n", "mleng-h200-16g",
    "mleng-mi300x", "mleng-nvls-h200", "nebius-h100-16", "oci-a100-2n", "oci-h100-2n", "superbench-a100-allgather",
    "superbench-a100-allreduce", "superbench-a100-reduce",
)  # fmt: skip
"""Tables that the model of collectives was settled with."""


def fitted_on_collectives(source: str) -> bool:
    return source in _COLLECTIVES


def fitted_on(row: TrainingRow) -> bool:
    """Whether the constants have seen this row."""
    number = _number(row)
    return number is not None and bool(_bits(row.source) >> number & 1)


def half(rows: Iterable[TrainingRow]) -> dict[str, str]:
    """The rows to fit on, as they stand here."""
    groups: dict[tuple[str, str, int], list[TrainingRow]] = {}
    for row in rows:
        groups.setdefault((row.source, row.model, row.n_gpus), []).append(row)
    bits: dict[str, int] = {}
    for group in sorted(groups)[::2]:
        for row in groups[group]:
            number = _number(row)
            if number is not None:
                bits[row.source] = bits.get(row.source, 0) | 1 << number
    return {source: f"{value:x}" for source, value in bits.items()}


def _number(row: TrainingRow) -> int | None:
    found = re.search(r"-(\d+)$", row.row_id)
    return int(found[1]) if found else None


@cache
def _bits(source: str) -> int:
    return int(_ROWS.get(source, "0"), 16)
