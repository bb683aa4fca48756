"""Texts that are kept letter by letter. To renew: ``STEPSCOPE_RENEW_GOLDEN=1 pytest tests/golden``; read the difference."""

from __future__ import annotations

import os
from pathlib import Path


def agreed(name: str, text: str) -> None:
    """Check ``text`` against the file ``name`` of this folder."""
    path = Path(__file__).parent / name
    if os.environ.get("STEPSCOPE_RENEW_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
