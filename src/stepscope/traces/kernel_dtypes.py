"""The dtype in which a matrix kernel multiplies, as far as its name tells."""

from __future__ import annotations

import re
from functools import lru_cache

_NAMED: tuple[tuple[str, str], ...] = (
    ("fp8", r"(?i:e4m3|e5m2|fp8|float8)|_B?F8|nvjet_(sm\d+_)?qq"),
    ("bf16", r"(?i:bf16|bfloat16)|Cijk_\w+?_B[BS]S?(_|H)|nvjet_(sm\d+_)?t[a-z]t"),
    ("tf32", r"(?i:tf32|tfloat32)|Cijk_\w+?_S_MX_"),
    ("fp16", r"(?i:fp16|(?<![bft])f16(?!\d)|half)|_h\d*gemm|h(cudnn|884|1688|16816)|Cijk_\w+?_H([HS]S|H?B)_"
             r"|nvjet_(sm\d+_)?h[a-z]h"),
    ("int8", r"(?i:int8|i8i8|_s8_)|(?<![a-z])i(8816|16832)|Cijk_\w+?_(I8|4xi8)"),
    ("fp64", r"(_|\b)dgemm|d(884|1688|16816)gemm|f64f64|Cijk_\w+?_DB_|gemm\w*<double"),
    ("fp32", r"(_|\b|convolve_|simt_)sgemm|scudnn|Cijk_\w+?_S(B|_B)_|_ffma|f32f32_f32f32|fp32"
             r"|(gemm|fprop|dgrad|wgrad|winograd)\w*<(int, )?float"),
    ("fp16", r"(turing|_75)\w*?_s1688|(?<![a-z])s884"),
    ("tf32", r"(?<![a-z])s16(88|84)"),
)  # fmt: skip
"""dtype and pattern, first match wins: a type that is spelled out, then what an instruction implies. ``s1688`` takes
FP32 inputs as TF32 where no type is named; Turing, whose tensor cores have no TF32, and Volta's ``s884`` multiply FP16.
``s16816`` without a type (FP16 or BF16) tells nothing. Tensile writes the input's type first: HHS, BBS, SB, DB, I8; ``S_MX``
is FP32 as XF32. nvjet writes input, accumulator, output: t = BF16, h = FP16, q = FP8 (cuBLAS 12.4 to 13.0 as seen in traces,
2026-11)."""

_PATTERNS = tuple((dtype, re.compile(pattern)) for dtype, pattern in _NAMED)


@lru_cache(maxsize=1 << 14)
def kernel_dtype(name: str) -> str | None:
    """fp8 | bf16 | fp16 | tf32 | fp32 | fp64 | int8 of a matrix kernel of this name; None where the name does not tell."""
    return next((dtype for dtype, pattern in _PATTERNS if pattern.search(name)), None)
