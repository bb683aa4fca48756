"""Clean runs of every strategy and of presets: does a diagnosis of a run with nothing wrong accuse anybody?

``python -m benchmarks.clean_runs [RUNS] [NAME,...]``; names: ``strategies``, or presets.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns.start import probe_emulation

RUNS = 20
SHORT = ("--set", "measure.budget_s=1", "--set", "measure.timeout_s=120")
PRESETS = (
    "accumulation",
    "bucket-size",
    "checkpointing",
    "demo",
    "fsdp-unit-size",
    "precision",
    "quick",
    "strong-scaling",
    "tp-vs-dp",
    "weak-scaling",
    "zero-stages",
)
"""Those whose cells end within seconds; the others train whole data sets or 40 layers of 4096."""

STRATEGIES = """
version: 1
name: strategies
base:
  workload: gpt
  model: {d_model: 64, n_heads: 4, num_layers: 4, max_seq_len: 32, vocab_size: 256}
  dataset: synthetic
  dataset_options: {samples: 2048}
  optimizer: adamw
  lr: 0.001
  steps: 12
  global_batch: 16
  world_size: 2
include:
- {strategy: single, world_size: 1}
- strategy: ddp
  axes: {world_size: [2, 4]}
- strategy: naive
- strategy: interleaved
- strategy: bucketed
- strategy: zero1
  axes: {world_size: [2, 4]}
- strategy: fsdp2
  axes: {world_size: [2, 4]}
- {strategy: fsdp2, strategy_options: {reshard_after_forward: false}}
- {strategy: hsdp, world_size: 4, mesh: {dp_replicate: 2, dp_shard: 2}}
- {strategy: tensor_parallel, mesh: {tp: 2}}
- {strategy: tensor_parallel, world_size: 4, mesh: {dp: 2, tp: 2}}
- strategy: pipeline
  mesh: {pp: 2}
  axes: {strategy_options.schedule: [gpipe, 1f1b]}
- {strategy: ddp, accumulation: 2}
- {strategy: fsdp2, accumulation: 2}
measure: {warmup: 2, profile: true, timeout_s: 120}
"""

FALSE_HERE = frozenset(
    {
        "allocator-pressure", "batch-shrank", "busbw-drop", "clock-skew", "collective-mismatch", "data-loading",
        "duplicated-data", "expert-skew", "failed-cells", "fragmentation", "gradient-sync-each-micro-step", "hang",
        "math-differs", "near-oom", "plan-broken", "quality-lost", "slow-link", "straggler", "throttling", "two-writers",
        "wrong-results",
    }
)  # fmt: skip
"""Rules whose problems and warnings nothing in these runs can make true on one idle machine."""


def main(arguments: list[str] | None = None) -> None:
    asked = arguments if arguments is not None else sys.argv[1:]
    runs = int(asked[0]) if asked else RUNS
    names = asked[1].split(",") if len(asked) > 1 else ["strategies", *_presets()]
    heading(f"{runs} clean runs each of {', '.join(names)}")
    for name in names:
        told: Counter[str] = Counter()
        accused: list[str] = []
        for number in range(runs):
            for finding in _findings(name):
                told[finding["rule"]] += 1
                if _accuses(finding):
                    accused.append(
                        f"run {number}: {finding['rule']}, {finding['subject']}: {finding['title']} "
                        f"[{finding['confidence']}]"
                    )
        print(f"{name}: {len(accused)} accusations in {runs} runs; bar: 0", *accused, sep="\n  ", flush=True)
        print(f"  problems and warnings of all rules: {dict(told.most_common())}", flush=True)


def _accuses(finding: Mapping[str, Any]) -> bool:
    """Ranks that wait for each other in turn are what 2 cores do: only a rank that is named is accused."""
    return finding["rule"] in FALSE_HERE and (finding["rule"] != "straggler" or bool(finding["ranks"]))


def _presets() -> Iterator[str]:
    emulated = not isinstance(probe_emulation(), Unavailable)
    return (name for name in PRESETS if emulated or name != "tp-vs-dp")


def _findings(name: str) -> list[dict[str, Any]]:
    """Problems and warnings of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        if name == "strategies":
            matrix = Path(folder) / "strategies.yaml"
            matrix.write_text(STRATEGIES)
            stepscope("bench", str(matrix), "-o", str(run))
        else:
            stepscope("bench", "--preset", name, *SHORT, "--profile", "-o", str(run))
        document = json.loads(stepscope("diagnose", str(run), "--json"))
    return [finding for finding in document["findings"] if finding["severity"] != "info"]


if __name__ == "__main__":
    main()
