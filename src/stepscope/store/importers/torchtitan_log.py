"""Output of torchtitan: ``step: 10  loss: 7.1  memory: 40.2GiB(42%)  tps: 7,120  tflops: 300.1  mfu: 30.2%``.

``tps`` (``wps`` before 2025) is tokens a second of one device. Every rank may print; the first one that does counts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.store.step_log import LoggedJob, step_log
from stepscope.store.training_runs import label

_DEGREE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=(-1|\d{1,7})")
_PER_DEVICE = "tps is per device: throughput is tps of the printing rank times the number of ranks"


@dataclass(kw_only=True)
class _Job(LoggedJob):
    @property
    def degrees(self) -> dict[str, int]:
        """Ranks along each axis of its mesh; none without one."""
        if (sizes := self.facts.get("sizes")) is None:
            return {name: int(value) for name, value in _DEGREE.findall(self.facts.get("parallelism", ""))}
        names = [name.strip(" '\"[]") for name in self.facts["axes"].split(",")]
        return dict(zip(names, map(int, re.findall(r"\d{1,7}", sizes)), strict=False))

    @property
    def ranks(self) -> int | None:
        degrees = self.degrees.values()
        return math.prod(degrees) if degrees and min(degrees) > 0 else None  # -1: what is left

    @cached_property
    def rates(self) -> list[float]:
        return [rate for point in self.points if math.isfinite(rate := point.values["tokens_per_s_per_gpu"])]

    def step_ns(self) -> Measured | None:
        """Return the step, ns, from the median of tokens a second; None where batch, sequence or ranks are unknown."""
        batch, sequence, world = self.count("global_batch"), self.count("sequence_length"), self.ranks
        steady = self.rates[1:] or self.rates
        tokens = median(steady) if steady else 0.0
        if not (batch and sequence and world and tokens > 0):
            return None
        return Measured(value=batch * sequence / (tokens * world) * 1e9, n=len(steady))

    def settings(self) -> dict[str, Any]:
        """Return pipeline, schedule and sequence length, as far as the log states them."""
        settings: dict[str, Any] = {"pipeline_parallel": self.degrees.get("pp", 1)} if self.degrees else {}
        ranks, stages = settings.get("pipeline_parallel", 1), int(self.facts.get("stages", 0))
        if stages:
            settings |= {"pipeline_schedule": self.facts["schedule"], "micro_batches": int(self.facts["micro_batches"])}
        if stages and ranks > 1 and stages % ranks == 0:
            settings["pipeline_chunks"] = stages // ranks
        sequence = self.count("sequence_length")
        return settings | ({"sequence_length": sequence} if sequence else {})

    def run_fields(self) -> dict[str, Any]:
        """Return the fields of the run: layout, step, settings."""
        layout = " ".join(f"{name}{value}" for name, value in self.degrees.items() if value > 1)
        return {
            **super().run_fields(),
            "world_size": self.ranks,
            "strategy": layout or None,
            "label": label(layout or None, self.ranks),
            "device": "cuda",
            "step_ns": self.step_ns(),
            "settings": self.settings(),
        }

    def notes(self) -> list[str]:
        what = "throughput" if self.step_ns() is None else "step time and throughput"
        return [f"{what} of {counted(len(self.rates), 'logged step')}: {_PER_DEVICE}", *super().notes()]

    def group(self, path: Path) -> str:
        sequence = self.count("sequence_length")
        parts = [part for part in (self.facts.get("model"), f"sequences of {sequence}" if sequence else None) if part]
        return ", ".join(parts) or path.absolute().parent.name


_HEAD = r"(?:Training starts|Trainer is).*?\b"
IMPORTER = step_log(
    "torchtitan_log",
    title="log of torchtitan",
    start=r"(?<!validate )\bstep:\s*\d{1,12}\s+loss:\s*\S",
    sign="GiB(",
    step=r"(?<!validate )\bstep:\s*(?P<step>\d{1,12})\s+loss:\s*(?P<loss>\S{1,20})"
    r"(?:.*?\bmemory:\s*(?P<peak_memory_gib>[\d.]{1,20})GiB\()?"
    r".*?\b(?:tps|wps):\s*(?P<tokens_per_s_per_gpu>[\d,.]{1,20})(?=\s+(?:tflops|mfu)|\s*$)"
    r"(?:.*?\bmfu:\s*(?P<mfu>[\d.]{1,20})%)?",
    facts=(
        _HEAD + r"global batch size:? (?P<global_batch>\d{1,12})",
        _HEAD + r"local batch size:? (?P<micro_batch>\d{1,12})",
        _HEAD + r"gradient accumulation steps:? (?P<accumulation>\d{1,9})",
        _HEAD + r"sequence length:? (?P<sequence_length>\d{1,12})",
        _HEAD + r"total steps:? (?P<total_steps>\d{1,12})",
        r"Building \d-D device mesh with (?P<axes>\[.*?\]), \[(?P<sizes>[\d, ]*)\]",
        r"Building device mesh with parallelism: (?P<parallelism>.*)",
        r"pipeline schedule (?P<schedule>\w{1,40}) with (?P<micro_batches>\d{1,6}) microbatches and (?P<stages>\d{1,6}) "
        "stages",
        r"(?:CUDA|XPU|HIP|GPU) capacity: (?P<hardware>.{1,60}?) with [\d.]+GiB",
        r"Model (?P<model>.{1,60}?) size: (?P<num_parameters>[\d,]{1,20}) total parameters",
    ),
    begins=r"Starting job|Building .{0,30}device mesh|Trainer is initialized|Training starts at step \d",
    done="Training completed",
    job=_Job,
    marks=("step:",),
    rank=40,
)
