"""Figures of dry runs: ``python -m benchmarks.dry_run [--collectives] [--memory] [--cpu] [--published FOLDER]``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

SECTIONS = {
    "--collectives": "dry_collectives",
    "--memory": "dry_memory",
    "--published": "dry_published",
    "--cpu": "dry_cpu",
}


def main(words: Sequence[str] = ("--collectives", "--memory")) -> int:
    """Run the sections; return how many have figures that are off. FOLDER has the published rows."""
    given = [word for word in words if word not in SECTIONS]
    off = 0
    for name in [word for word in words if word in SECTIONS]:
        print(f"== {name[2:]}", flush=True)
        section = importlib.import_module(f"benchmarks.{SECTIONS[name]}")
        off += bool(section.main(given) if given else section.main())
    return off


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ("--collectives", "--memory")))
