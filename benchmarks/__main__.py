"""``python -m benchmarks [NAME ...]``: run all quick benchmarks, or the named ones. ``--list`` shows them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks

LONG = (
    "clean_runs",
    "dry_collectives",
    "dry_cpu",
    "dry_memory",
    "dry_published",
    "dry_run",
    "hidden_share",
    "launchers",
    "learning",
    "monitor_vs_traceml",
    "own_jobs",
    "predictor_left_out",
    "slurm_resume",
    "trace_vs_peers",
)
"""Minutes to an hour: only by name."""


def names() -> list[str]:
    return sorted(
        m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.ispkg and not m.name.startswith("_")
    )


def main(arguments: list[str]) -> int:
    if arguments == ["--list"]:
        for name in names():
            module = importlib.import_module(f"benchmarks.{name}")
            summary = (module.__doc__ or "").splitlines()[0]
            print(f"{name:<22} {summary}{' (long)' if name in LONG else ''}")
        return 0
    unknown = set(arguments) - set(names())
    if unknown:
        print(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(names())}", file=sys.stderr)
        return 2
    for name in arguments or [n for n in names() if n not in LONG]:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
