"""Reading a run folder as a user's script would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows(run: Path) -> dict[str, dict[str, Any]]:
    """results.jsonl by strategy and model kind, as a user's script would read it."""
    lines = (run / "results.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    return {f"{r['workload']}-{r['strategy']}-w{r['world_size']}": r for r in parsed}


def status_of(run: Path, row: dict[str, Any]) -> dict[str, Any]:
    return json.loads((run / "cells" / row["cell_id"] / "status.json").read_text())


def samples_of(run: Path, row: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    text = (run / "cells" / row["cell_id"] / f"samples-{rank:05d}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()[1:]]
