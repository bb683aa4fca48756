"""Published training runs as scripts, dry-run here and priced: tokens/s and memory beside what was measured."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.validate.fitted import fitted_on
from stepscope.core.dataclass import record
from stepscope.launch.hooked_job import HOOK
from stepscope.predict.dry.step import predict_dry
from stepscope.predict.step.calibration import STACKS, of_dry_runs
from stepscope.predict.step.layout import Cluster
from stepscope.predict.step.memory import AHEAD_LIMIT
from stepscope.predict.step.run_fit import Material, speed
from stepscope.predict.step.run_layout import Asked, as_asked
from stepscope.records import codec
from stepscope.records.dry_run import DryRank
from stepscope.records.prediction import DryStep

SCRIPTS = Path(__file__).with_name("dry_scripts")
BARS = {"tokens/s, mean": 0.15, "tokens/s, median": 0.10, "memory, mean": 0.10}
HBM2E = 2.4e12
"""Bytes/s of the H100 with 96 GB of HBM2e that torchtitan's tables name: six stacks, of which the PCIe card has five."""
MOST_MICRO_BATCHES = 3
"""More of them are more of the same, and a dry run runs them all."""
TRITON_2023 = 0.2
"""Share of the matrix rate that flash attention in Triton reached then, either way."""
MOST_SLICES = 2048
"""Ranks x layers of nanotron's ZeRO-1, which copies each parameter's slice for each rank by itself."""
FMS_RECOMPUTES = {"Llama2-13b": "half", "Llama2-34b": "full", "Llama2-70b": "full"}
"""HFU over MFU as stated: 1.13, 1.35, 1.35; 7/6 and 4/3 of these."""
SOURCES = ("torchtitan", "torchao", "fms-fsdp", "llm-foundry", "nanotron-ultrascale")


@record
class ScriptedRow:
    """A published row and the words after ``python`` that are its script."""

    asked: Asked
    words: tuple[str, ...]

    @property
    def cluster(self) -> Cluster:
        cluster = self.asked.cluster
        slow = "HBM2e" in self.asked.row.hardware
        return replace(cluster, gpu=replace(cluster.gpu, memory_bytes_per_s=HBM2E)) if slow else cluster


def scripted(material: Material) -> Iterator[ScriptedRow]:
    """Yield the rows whose script is here: all of torchtitan, torchao and fms-fsdp, of llm-foundry those on the fewest and
    the most GPUs of each model, GPU and recomputation, of nanotron the first of each model and layout."""
    groups: dict[tuple[object, ...], list[ScriptedRow]] = {}
    for asked in _asked(material):
        row, layout = asked.row, asked.layout
        if layout.pp > 1 or layout.cp > 1 or layout.micro_batches > MOST_MICRO_BATCHES or "async TP" in row.notes:
            continue
        if row.source == "nanotron-ultrascale" and layout.zero and layout.dp * asked.model.layers > MOST_SLICES:
            continue
        key: tuple[object, ...] = (row.source, row.model, asked.gpu, row.row_id)
        if row.source == "nanotron-ultrascale":
            key = (row.source, row.model, layout.tp, layout.zero)
        elif row.source == "llm-foundry":
            key = (row.source, row.model, asked.gpu, layout.recompute)
        groups.setdefault(key, []).append(ScriptedRow(asked=asked, words=tuple(map(str, _words(asked)))))
    for rows in groups.values():
        yield rows[0]
        if rows[0].asked.row.source == "llm-foundry" and len(rows) > 1:
            yield rows[-1] if rows[-1].asked.layout.gpus != rows[0].asked.layout.gpus else rows[len(rows) // 2]


def _asked(material: Material) -> Iterator[Asked]:
    """Yield rows with a speed, and not in the slow half of a sweep; fms-fsdp's with the sequences that it states for one of
    them, and no accumulation."""
    for asked in material.timed:
        if asked.row.source in SOURCES and not material.slow(asked):
            yield asked
    for row in material.rows:
        if row.source == "fms-fsdp":
            stated = replace(row, seq_len=4096, grad_accum=1, network="RoCE, 400 Gbps per node", gpus_per_node=8)
            asked_fms = as_asked(stated)
            if isinstance(asked_fms, Asked):
                yield asked_fms


def _words(asked: Asked) -> Iterator[object]:
    model, layout, row = asked.model, asked.layout, asked.row
    common = ("--seq", layout.seq_len, "--batch", layout.micro_batch)
    if row.source == "llm-foundry":
        yield from ("mpt.py", "--model", model.layers, model.hidden, model.heads, model.vocab, *common)
        yield from ("--micro-batches", layout.micro_batches, "--recompute", layout.recompute)
        yield from ("--reduce", "bfloat16" if "PURE" in row.sharding else "float32")
    elif row.source == "nanotron-ultrascale":
        yield from ("nanotron.py", "--model", model.layers, model.hidden, model.heads, model.ffn, model.vocab, *common)
        yield from ("--micro-batches", layout.micro_batches, "--tp", layout.tp, "--zero", layout.zero)
        yield from ("--tied", int(model.tied))
    else:
        dimensions = model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab
        yield from ("titan.py", "--model", *dimensions, *common, "--tp", layout.tp)
        yield from ("--replicas", layout.gpus // layout.tp // (layout.shard_group or layout.gpus // layout.tp))
        recompute = {"half": "selective"}.get(layout.recompute, layout.recompute)
        if row.source == "fms-fsdp" and recompute == "selective":  # of some layers: as many as the two utilisations say
            recompute = FMS_RECOMPUTES[row.model]
        yield from ("--recompute", recompute, "--compile", row.compiled or "")
        if row.source == "fms-fsdp":  # its policy bfSixteen
            yield from ("--reduce", "bfloat16")
        if layout.precision == "fp8":
            yield from ("--fp8", "rowwise" if "rowwise" in f"{row.precision} {row.notes}" else "tensorwise")


def dry(row: ScriptedRow, kept: Path, *, new: bool = True) -> DryRank | str | None:
    """Run the row's script, or read what it recorded before; a text says why there is none. new: False: it is not run."""
    name = hashlib.sha1(f"{row.words} {row.asked.layout.gpus}".encode(), usedforsecurity=False).hexdigest()[:12]
    folder, world = kept / name, row.asked.layout.gpus
    path = folder / ".stepscope" / f"world-{world:06}-rank-000000.json"
    if not path.exists() and not new:
        return None
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        gpu = row.cluster.gpu
        options = {
            "output": str(folder), "tool_version": "benchmark", "world": world, "rank": 0, "ranks_per_node": min(world, 8),
            "gpu": {"key": gpu.key, "name": gpu.name, "memory_bytes": gpu.total_bytes, "generation": gpu.generation},
        }  # fmt: skip
        environment = {
            **os.environ, "RANK": "0", "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(min(world, 8)),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOOK),
            "STEPSCOPE_HOOK": json.dumps({"dry": options}),
        }  # fmt: skip
        with (folder / "log").open("wb") as log:
            subprocess.run(
                [sys.executable, *row.words], env=environment, cwd=SCRIPTS, stdout=log, stderr=log, check=False
            )
    if not path.exists():
        why = [json.loads(failure.read_bytes()) for failure in path.parent.glob("failure-*.json")]
        return f"{why[0]['text']} ({why[0]['place']})" if why else (folder / "log").read_text()[-300:]
    return codec.decode(path.read_bytes(), DryRank, source=str(path))


def predicted(row: ScriptedRow, rank: DryRank) -> DryStep:
    """Price the row's script. llm-foundry's attention of 2023 was a Triton kernel, which its configuration names and a
    script of today does not have."""
    c = of_dry_runs(row.cluster.gpu)
    if row.asked.row.source == "llm-foundry":
        c = replace(c, attention_share=TRITON_2023, attention_backward_share=TRITON_2023)
    return predict_dry(rank, row.cluster, c)


def needed_bytes(row: ScriptedRow, rank: DryRank, step: DryStep) -> float:
    """Memory of the step. nanotron's torch frees a tensor that another stream uses only when the device is done with it: the
    step model's inputs that are gathered ahead of the device, and its room for them."""
    fit = step.memory
    gathers = [call.size_bytes for call in rank.calls if call.op == "all_gather" and call.phase == "forward"]
    if row.asked.stack != "nanotron" or row.asked.layout.tp == 1 or not gathers:
        return fit.needs_bytes
    room = AHEAD_LIMIT * row.cluster.gpu.memory_bytes - fit.needs_bytes
    want = STACKS["nanotron"]["gathered_ahead"] * max(gathers)
    return fit.needs_bytes + (want if want <= room else max(0.0, room) / 2)


def grade(folder: Path, kept: Path, *, new: bool) -> bool:
    """Print each row's prediction beside what was measured, and means against the bars. new: rows that have not been run are
    run; else they are left out."""
    speeds: list[tuple[Asked, float]] = []
    memories: list[tuple[Asked, float]] = []
    left, inside = 0, 0
    for row in scripted(Material(folder)):
        asked = row.asked
        rank = dry(row, kept, new=new)
        if rank is None:
            left += 1
            continue
        text = f"{asked.row.row_id:24} {asked.layout.gpus:4} x {asked.gpu:15}"
        if isinstance(rank, str):
            print(f"{text} no step: {rank}", flush=True)
            continue
        step = predicted(row, rank)
        made = step.tokens_per_s_per_gpu or 0.0
        speeds.append((asked, made / speed(asked) - 1))
        inside += step.low_ns <= step.step_ns * made / speed(asked) <= step.high_ns
        text += f" tokens/s {speed(asked):7.0f} -> {made:7.0f} {speeds[-1][1]:+6.1%}"
        if asked.row.memory_bytes:
            needs = needed_bytes(row, rank, step)
            memories.append((asked, needs / asked.row.memory_bytes - 1))
            text += f"  GB {asked.row.memory_bytes / 1e9:5.1f} -> {needs / 1e9:5.1f} {memories[-1][1]:+6.1%}"
        print(f"{text}  {step.limit}", flush=True)
    print(f"\n{inside} of {len(speeds)} speeds within the 80% interval; {left} rows not run")
    figures: dict[str, float] = {}
    for name, rows in (("tokens/s", speeds), ("memory", memories)):
        groups = {"": rows, ", the half that nothing was fitted on": [(a, x) for a, x in rows if not fitted_on(a.row)]}
        groups |= {f", {source}": [(a, x) for a, x in rows if a.row.source == source] for source in SOURCES}
        for which, some in groups.items():
            sizes = [abs(value) for _, value in some]
            if sizes:
                mean, median = statistics.fmean(sizes), statistics.median(sizes)
                print(f"{name}{which}: {len(sizes)} rows, mean {mean:.1%}, median {median:.1%}")
                figures |= {} if which else {f"{name}, mean": mean, f"{name}, median": median}
    missed = [name for name, bar in BARS.items() if figures.get(name, 1.0) > bar]
    print("; ".join(f"{name} <= {bar:.0%}{': missed' if name in missed else ''}" for name, bar in BARS.items()))
    return not missed


def main(argv: Sequence[str]) -> int:
    """FOLDER: of published tables; KEPT: of what scripts recorded, for the next time. Two folders and ``--kept``: only rows
    that are there."""
    words = [word for word in argv if not word.startswith("--")]
    with tempfile.TemporaryDirectory() as temporary:
        kept = Path(words[1] if len(words) > 1 else temporary)
        return int(not grade(Path(words[0]), kept, new="--kept" not in argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
