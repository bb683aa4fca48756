"""One chart of ``stepscope predict`` as a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.cli.console import log
from stepscope.core.errors import UsageError
from stepscope.report.render import picture
from stepscope.store.writer import write_bytes


def write_chart(file: Path, datum: Any, draw: Callable[[Any], Any], caption: Callable[[Any], str]) -> None:
    """Draw ``datum`` of a view with its functions. Raises UsageError for another kind of file, WriteError."""
    formats = [known for known in picture.FORMATS if known == file.suffix.removeprefix(".").lower()]
    if not formats:
        ends = ", ".join(f".{name}" for name in picture.FORMATS)
        raise UsageError(f"--chart {file} is not a picture", fix=f"end it with {ends}")
    work = json.dumps(draw(datum)), datum.title, caption(datum), (formats[0],)
    write_bytes(file, picture.pictures(work)[1])
    log(f"wrote {file}")
