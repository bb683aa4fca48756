"""A run and its baseline differ in more than the number of ranks, which distorts the speed-up.

What
----
Strategy, stage of sharding, precision and batch: where an imported run and its baseline differ in them, no rule rates
their ratio. Beside them, facts (model, data, accumulation, device) and settings of the model, the optimizer and data
loading that both a run and its baseline record and that differ. `scaling-mixed` covers batches.

Why
---
A speed-up shows the gain of more ranks. Another precision, model size, accumulation, device or number of data workers
adds an unknown effect.

Known problems
--------------
Settings that a source does not record cannot be compared. A learning rate scaled with the global batch, or with its root,
is intended and no difference, nor is an accumulation that keeps the global batch of the same micro-batch on more ranks; the
reader judges others.

References
----------
docs/reference/metrics.md, Scaling: the same model, precision, accumulation and batch rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from stepscope.core.words import counted, grouped, in_words, listed
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import learning_rate
from stepscope.results.evidence import NEEDS, Evidence, cell_of
from stepscope.results.pairs import Pair, pairs
from stepscope.results.scaling import FEW, beside_ranks

_FACTS = (
    "model", "dataset", "dataset_size", "precision", "accumulation", "device", "hardware", "num_parameters", "unit",
)  # fmt: skip
_SETTINGS = frozenset({
    "lr", "learning_rate", "lr_warmup", "warmup_steps", "optimizer", "momentum", "betas", "weight_decay", "loss", "clip",
    "gradient_clip", "grad_clip", "max_grad_norm", "seed", "dropout", "num_workers", "pin_memory", "persistent_workers",
    "prefetch_factor", "cudnn_benchmark", "compile", "torch_compile", "tf32", "activation_checkpointing",
    "gradient_checkpointing", "max_seq_len", "seq_len", "sequence_length", "image_size", "vocab_size", "labels",
})  # fmt: skip
"""Last parts of the names of settings that decide how fast or what a job trains; what a source measured is none."""
_SECTIONS = ("model.", "optimizer.", "dataset_options.")

Differing = dict[str, tuple[Any, Any]]
"""Name -> (the run's value, the baseline's), for what both state and must not differ."""


def check(evidence: Evidence) -> Statement:
    """Look for: a run and its baseline differ in more than the number of ranks."""
    first: dict[object, tuple[Pair, Differing]] = {}  # of each group and set of differing names
    for pair in pairs(evidence):
        if differing := pair.mixed | _differing_settings(pair):
            first.setdefault((pair.row.group, pair.base.run_id, tuple(sorted(differing))), (pair, differing))
    findings = [
        _no_ratio_finding(
            pair.run, pair.base, pair.mixed, f"{pair.row.speedup:.2f}x between them; {pair.relative:g}x the ranks"
        )
        if pair.mixed  # its ratio is not that of the ranks, whatever it is
        else _settings_differ_finding(evidence, pair, differing)
        for pair, differing in first.values()
    ]
    findings += _unpaired_findings(evidence)
    if not findings and not pairs(evidence):
        return skipped(*NEEDS["scaling"])
    return findings or (f"{counted(len(pairs(evidence)), 'run')}: only the number of ranks differs")


def _no_ratio_finding(run: TrainingRun, base: TrainingRun, differing: Differing, ratio: str) -> Finding:
    """Return the finding of runs that cannot be compared. ratio: what they lack."""
    ours, theirs = (counted(side.world_size or 0, "rank") for side in (run, base))
    return finding(
        f"the runs on {ours} and {theirs} differ in {in_words(differing)}, not only in the number of ranks: no efficiency",
        [f"{name}: {own} on {ours}, {other} on {theirs}" for name, (own, other) in list(differing.items())[:8]],
        f"{ratio}: what is of the ranks, and what of the rest, is unknown",
        confidence="certain: the source states both",
        advice=[f"measure again with the same {in_words(differing)} on {theirs} and on {ours}"],
        of=(run, base),
        priority="wrong",
        case="mixed",
        wrong_runs=(run.run_id,),
    )


def _unpaired_findings(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for runs of one table that nothing else compares, and that are the same but for ranks and settings."""
    of_source = grouped(
        (run for run in evidence.runs if run.status == "ok" and run.world_size and run.workload is None),
        lambda run: re.sub(r":\d+$", "", run.source),
    )
    rated = {row.run_id for row in evidence.scaling if not row.is_baseline}
    for runs in of_source.values():
        base, *rest = sorted(runs, key=lambda run: run.world_size or 0)
        if not 1 <= len(rest) < FEW or any(run.run_id in rated for run in runs):
            continue
        run = rest[-1]
        differing = beside_ranks(run, base, among=len(runs)) | _separating_settings(run, base)
        if run.world_size != base.world_size and differing:
            yield _no_ratio_finding(run, base, differing, "their rates are of different work")


def _separating_settings(run: TrainingRun, base: TrainingRun) -> Differing:
    """Return what puts two runs of a table into groups of their own."""
    ours, theirs = ({**side.settings, **{name: getattr(side, name) for name in _FACTS}} for side in (run, base))
    return {
        name: (value, theirs[name])
        for name, value in ours.items()
        if value is not None and str(value) in run.group and not _same_value(value, theirs.get(name, value))
    }


def _differing_settings(pair: Pair) -> Differing:
    """Return the settings in which a run and its baseline differ, but for those that grow with the ranks."""
    run, base = pair.run, pair.base
    ours, theirs = _stated_settings(run), _stated_settings(base)
    grows = {"dataset_size"} if pair.row.scaling == "weak" else set()
    if run.micro_batch == base.micro_batch is not None and run.global_batch == base.global_batch is not None:
        grows |= {"accumulation"}  # more ranks make the same global batch in fewer micro-steps: that is strong scaling
    if _rate_follows_batch(pair):
        grows |= {"lr", "learning_rate"}
    return {
        name: (value, theirs[name])
        for name, value in ours.items()
        if name in theirs and not _same_value(value, theirs[name]) and name.rpartition(".")[2] not in grows
    }


def _rate_follows_batch(pair: Pair) -> bool:
    """Whether the learning rate is scaled with the global batch, or with its root: the usual rules of weak scaling."""
    rate, base_rate = learning_rate(pair.run), learning_rate(pair.base)
    ours, theirs = pair.run.global_batch, pair.base.global_batch
    if not rate or not base_rate or not ours or not theirs:
        return False
    batch = ours / theirs
    return batch != 1 and any(math.isclose(rate / base_rate, batch**power, rel_tol=0.01) for power in (1, 0.5))


def _stated_settings(run: TrainingRun) -> dict[str, Any]:
    """Return the facts and settings that decide what a run's step is."""
    facts = {name: value for name in _FACTS if (value := getattr(run, name)) is not None}
    stated = {
        name: value
        for name, value in run.settings.items()
        if value is not None and (name.rpartition(".")[2] in _SETTINGS or name.startswith(_SECTIONS))
    }
    return {**stated, **facts}


def _same_value(one: Any, other: Any) -> bool:
    """Return whether values are equal, numbers up to what a file's digits make of them."""
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _settings_differ_finding(evidence: Evidence, pair: Pair, differing: Differing) -> Finding:
    """Return the finding, with evidence, stake and advice: a run and its baseline differ in more than the number of
    ranks."""
    from stepscope.results.labels import SETTINGS  # a log of one run is shown without it

    cell, ours = cell_of(evidence, pair.base), [(name, own) for name, (own, _) in differing.items()]
    in_matrix = cell is not None and differing.keys() <= {*SETTINGS, "precision", "accumulation"}
    return finding(
        f"{pair.run.label} and its baseline differ in more than the number of ranks: {listed(differing)}",
        [f"{name}: {own} against {theirs}" for name, (own, theirs) in list(differing.items())[:8]],
        confidence="certain: both sources record the settings; whether the difference matters is for the reader to judge",
        advice=[
            (
                "measure the baseline again with the run's settings",
                again(evidence, cell, *ours) if in_matrix and cell is not None else None,
            )
        ],
        of=(pair.run, pair.base),
    )


RULE = Rule(
    symptom="a run and its baseline differ in more than the number of ranks",
    needs=("runs",),
    look=check,
    folded=True,
    decided_by="any setting but the ranks",
    protocol=1,
)
