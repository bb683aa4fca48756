"""Pixels as a PNG file without filters: for the flat colours of charts three times as fast, and the file no larger."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

LEVEL = 3
"""Of zlib; 6 takes twice as long for a tenth less."""

_TRUE_COLOR = 2


def encode(pixels: NDArray[np.uint8], *, dpi: int, texts: Mapping[str, str]) -> bytes:
    """``pixels`` [height, width, red green blue (alpha, ignored)] as a PNG; ``texts``: keyword -> text (UTF-8)."""
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each row begins with its filter: 0, none
    rows[:, 1:] = pixels[:, :, :3].reshape(height, -1)
    per_metre = round(dpi / 0.0254)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _TRUE_COLOR, 0, 0, 0)),
            _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            *(_chunk(b"iTXt", _text(keyword, text)) for keyword, text in texts.items()),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), LEVEL)),
            _chunk(b"IEND", b""),
        ]
    )


def _text(keyword: str, text: str) -> bytes:
    """Uncompressed, no language: keyword, NUL, two flags, two empty strings, text."""
    return keyword.encode("latin-1") + b"\0\0\0\0\0" + text.encode(errors="replace")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
