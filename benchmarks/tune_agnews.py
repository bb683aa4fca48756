"""A published text classifier on two hosts: AG News, far from linear scaling, tuned to near it, as predicted?

The case of the source document: width 128, 2 layers, 8 texts a rank, DDP. Two emulated hosts of one rank and one thread
each, against one rank with one thread and the same batch. Needs emulated networks, and the folder of the data set:
python -m benchmarks.tune_agnews DATA_DIR [RATE]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns.start import probe_emulation
from stepscope.results.open import load_evidence

RATE = "2500mbit"
START, BAR, BAR_POINTS = 0.6, 0.8, 10.0
MODEL = {"d_model": 128, "n_heads": 4, "num_layers": 2, "dim_feedforward": 256, "max_seq_len": 64, "vocab_size": 8000}
BASE = {
    "workload": "text_classifier", "model": MODEL, "dataset": "ag_news", "optimizer": "adam", "lr": 1e-3, "steps": "auto",
}  # fmt: skip
LAUNCH = {"threads_per_rank": 1}
BATCH = 8


def main(arguments: list[str] | None = None) -> None:
    given = arguments if arguments is not None else sys.argv[1:]
    if not given:
        sys.exit("name the folder of the data sets: python -m benchmarks.tune_agnews DATA_DIR [RATE]")
    data, rate = given[0], given[1] if len(given) > 1 else RATE
    heading(f"AG News, 2 hosts at {rate}, {BATCH} texts a rank")
    refused = probe_emulation(delayed=False)
    if isinstance(refused, Unavailable):
        print(f"skipped: {refused.reason}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        two = {**BASE, "strategy": "ddp", "world_size": 2, "network": rate, "micro_batch": BATCH}
        matrix = _matrix(folder / "agnews.yaml", two)
        words = ("--data-dir", data, "--max-loss-change", "10%", "--trials", "5", "--budget", "4s", "--json")
        found = json.loads(stepscope("tune", matrix, *words, "-o", str(folder / "tuned")))
        for trial in found["trials"]:
            told, gain, loss = (trial["proposal"] or {}).get("gain"), trial["gain"], trial["loss_change"]
            predicted, measured = ("-" if each is None else f"{each['value']:.2f}x" for each in (told, gain))
            change = "-" if loss is None else f"{loss:+.1%}"
            why = trial["lost"] or "kept"
            print(f"  {trial['key']}: predicted {predicted}, measured {measured}, loss {change}, {why}", flush=True)
        best = next(trial for trial in found["trials"] if trial["key"] == found["best"])
        changes = {} if best["proposal"] is None else best["proposal"]["changes"]
        larger = int(changes.get("micro_batch", BATCH))
        before, after = _efficiency(folder, data, two, {}), _efficiency(folder, data, two, changes)
        print(f"one rank, one thread: {before[0]:.1f} texts/s with {BATCH} a step, {after[0]:.1f} with {larger}")
        print(f"two ranks: {before[1]:.1f} texts/s, tuned ({found['best']}) {after[1]:.1f}")
        told = None if best["proposal"] is None else best["proposal"]["gain"]["value"]
        start, end = before[1] / before[0] / 2, after[1] / after[0] / 2
        predicted = None if told is None else told * before[1] / after[0] / 2
        print(f"of linear scaling: {start:.2f} (bar: below {START}), tuned {end:.2f} (bar: {BAR} or more)")
        if predicted is not None:
            print(f"predicted {predicted:.2f}: off by {100 * (predicted - end):+.1f} points (bar: {BAR_POINTS:g})")


def _matrix(path: Path, *cells: dict[str, Any]) -> str:
    path.write_text(
        json.dumps({"version": 1, "base": {}, "include": list(cells), "launch": LAUNCH, "measure": {"budget_s": 20}})
    )
    return str(path)


def _efficiency(folder: Path, data: str, two: dict[str, Any], changes: dict[str, Any]) -> tuple[float, float]:
    """(one rank's, two ranks') texts a second, measured beside each other."""
    cell = json.loads(json.dumps(two))
    for key, value in changes.items():
        group, _, option = key.rpartition(".")
        if group:
            cell.setdefault(group, {})[option] = value
        else:
            cell[key] = value
    alone = {k: v for k, v in cell.items() if k not in ("network", "strategy_options")} | {
        "strategy": "single",
        "world_size": 1,
    }
    name = f"check-{len(changes)}"
    run = folder / name
    stepscope("bench", _matrix(folder / f"{name}.yaml", alone, cell), "--data-dir", data, "-o", str(run))
    rates = {each.world_size: each.samples_per_s for each in load_evidence([run], traces=False).runs}
    return _known(rates[1]), _known(rates[2])


def _known(rate: Any) -> float:
    return float(getattr(rate, "value", rate))


if __name__ == "__main__":
    main()
