"""Planted bad configurations: does `stepscope tune` remove the cause within 6 trials, and is the gain the one predicted?

Needs emulated networks for two of them. A case runs for minutes; name those wanted: python -m benchmarks.tune_planted loader
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns.start import probe_emulation

TRIALS, BUDGET = 6, "4s"
BAR_POINTS = 10.0
JOB = Path(__file__).with_name("tuned_job.py")
GPT = {"d_model": 128, "num_layers": 6, "vocab_size": 1024, "max_seq_len": 32, "n_heads": 4}
CELL = {"workload": "gpt", "model": GPT, "dataset": "synthetic", "steps": "auto", "world_size": 2, "strategy": "ddp"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """cause: settings of which one has to change. cell: keys of a matrix; or command: words after torchrun."""

    cause: tuple[str, ...]
    cell: Mapping[str, Any] | None = None
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


CASES = {
    "batch": Case(cause=("micro_batch",), cell={**CELL, "micro_batch": 1}, options=("--allow", "batch")),
    "bucket-large": Case(
        cause=("strategy_options.bucket_cap_mb",),
        cell={**CELL, "micro_batch": 8, "network": "1gbit", "strategy_options": {"bucket_cap_mb": 1000}},
    ),
    "bucket-small": Case(
        cause=("strategy_options.bucket_cap_mb",),
        cell={**CELL, "micro_batch": 8, "network": "1gbit,delay=1ms", "strategy_options": {"bucket_cap_mb": 0.1}},
    ),
    "loader": Case(cause=("num_workers",), command=("--load-ms", "4")),
    "no-sync": Case(cause=("no_sync",), command=("--accumulation", "8", "--batch-size", "4")),
    "unit-deep": Case(
        cause=("strategy_options.blocks_per_unit", "strategy_options.reshard_after_forward"),
        cell={
            **CELL,
            "model": {**GPT, "d_model": 64, "num_layers": 12},
            "micro_batch": 16,
            "strategy": "fsdp2",
            "network": "1gbit",
        },
    ),
    "unit-small": Case(
        cause=("strategy_options.blocks_per_unit", "strategy_options.reshard_after_forward"),
        cell={**CELL, "micro_batch": 8, "strategy": "fsdp2", "network": "1gbit,delay=1ms"},
    ),
}


def main(arguments: list[str] | None = None) -> None:
    wanted = arguments if arguments is not None else sys.argv[1:]
    heading(f"planted configurations, at most {TRIALS} trials")
    refused = probe_emulation(delayed=True)
    print(f"{'case':<14}{'trials':>7}{'predicted':>11}{'measured':>22}{'points':>8}  verdict", flush=True)
    removed = close = made = 0
    for name in wanted or CASES:
        case = CASES[name]
        if case.cell is not None and "network" in case.cell and isinstance(refused, Unavailable):
            print(f"{name:<14}skipped: {refused.reason}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = _tuned(Path(folder), case)
        gone, near = _tell(name, case, found)
        removed, close, made = removed + gone, close + near, made + 1
    print(f"cause removed in {removed} of {made}, gain within {BAR_POINTS:g} points in {close} of {made}", flush=True)


def _tuned(folder: Path, case: Case) -> dict[str, Any]:
    words = ["--trials", str(TRIALS), "--budget", BUDGET, "-o", str(folder / "tuned"), "--json", *case.options]
    if case.cell is None:
        words += ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(JOB), *case.command]
    else:
        matrix = folder / "planted.yaml"
        matrix.write_text(json.dumps({"version": 1, "base": dict(case.cell), "launch": {"threads_per_rank": 1}}))
        words.insert(0, str(matrix))
    document: dict[str, Any] = json.loads(stepscope("tune", *words))
    return document


def _tell(name: str, case: Case, found: Mapping[str, Any]) -> tuple[bool, bool]:
    """One line; (cause removed, gain as predicted). points: of the time of a sample that goes, predicted minus measured."""
    trials = {trial["key"]: trial for trial in found["trials"]}
    best = trials[found["best"]]
    if best["proposal"] is None or best["gain"] is None:
        print(f"{name:<14}{len(trials) - 1:>7}  nothing surely faster: {_lost(trials)}", flush=True)
        return False, False
    gone = any(cause in best["proposal"]["changes"] for cause in case.cause)
    gain, told = best["gain"], best["proposal"]["gain"]
    ends = f"({gain['low']:.2f} to {gain['high']:.2f})" if gain.get("low") else ""
    points = None if told is None else 100 * (1 / gain["value"] - 1 / told["value"])
    near = points is not None and abs(points) <= BAR_POINTS
    print(
        f"{name:<14}{len(trials) - 1:>7}{'unknown' if told is None else format(told['value'], '.2f') + 'x':>11}"
        f"{gain['value']:>7.2f}x {ends:<14}{'' if points is None else format(points, '+.1f'):>7}  "
        f"{'removed' if gone else 'NOT removed'}: {best['key']}",
        flush=True,
    )
    return gone, near


def _lost(trials: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(f"{key}: {trial['lost']}" for key, trial in trials.items() if trial["lost"])


if __name__ == "__main__":
    main()
