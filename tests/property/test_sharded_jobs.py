"""Jobs of every kind of parallelism without a fault, many sizes: no rule on sharding, stages or experts fires.

One planted fault of each kind is named among the findings: what the rules are for.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.sharded_jobs import experts, folder_of, fsdp, pipeline, transfer_ns
from tests.trace_evidence import traced

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules import REGISTRY
from stepscope.examples.training_job import SimulatedJob
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import FOR_FINDINGS, Wanted

KEYS = (
    "fsdp_no_prefetch", "fsdp_small_units", "fsdp_regathers", "fsdp_root_unit", "fsdp_wait_on_copy", "pipeline_imbalance",
    "expert_skew",
)  # fmt: skip
RULES = [REGISTRY.load(key) for key in KEYS]
CLEAN = 50


def clean(seed: int) -> SimulatedJob:
    """A job of a kind, world, sizes, jitter of its own; computation hides what a good job hides."""
    random = Random(seed)
    some: dict[str, Any] = {"world": random.choice((2, 3, 4)), "steps": 1, "jitter": random.uniform(0, 0.03)}
    forward = random.randrange(200, 3_000) * 1_000
    if seed % 3 == 1:
        some["world"] = random.choice((3, 4))
        return pipeline(layers=random.randrange(2, 7), forward_ns=forward, backward_ns=2 * forward, **some)
    if seed % 3 == 2:
        even = {rank: random.uniform(0.95, 1.05) for rank in range(some["world"])}
        return experts(hot=even, layers=random.randrange(1, 5), forward_ns=forward, backward_ns=2 * forward, **some)
    elements = random.randrange(4, 40) << 20
    forward = round(transfer_ns(elements) * random.uniform(1.4, 3))
    return fsdp(
        units=random.randrange(8, 12), elements=elements, root=elements // random.randrange(4, 30), forward_ns=forward,
        backward_ns=2 * forward, annotated=random.random() < 0.7, keep=random.random() < 0.3,
        copy_out_ns=forward // 30, **some,
    )  # fmt: skip


def fired(job: SimulatedJob, folder: Path) -> set[str]:
    summary = analyse_job(folder_of(job, folder), Wanted(sections=FOR_FINDINGS, processes=1))
    shutil.rmtree(folder)
    return {rule.name for rule in RULES if isinstance(check(rule, traced(summary)), tuple)}


def test_none_fires_on_clean_jobs(tmp_path: Path) -> None:
    wrong = {seed: names for seed in range(CLEAN) if (names := fired(clean(seed), tmp_path / str(seed)))}
    assert not wrong


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", sorted({key.replace("_", "-") for key in KEYS} - {"fsdp-root-unit"}))
def test_a_planted_fault_is_named(tmp_path: Path, rule: str, seed: int) -> None:
    random = Random(f"{rule} {seed}")
    some: dict[str, Any] = {"world": random.choice((3, 4)), "steps": 1, "jitter": random.uniform(0, 0.03)}
    rank = random.randrange(some["world"])
    large = random.randrange(16, 40) << 20
    moved = transfer_ns(large)
    job = {
        "fsdp-no-prefetch": lambda: fsdp(
            prefetch=False, elements=large, forward_ns=2 * moved, backward_ns=4 * moved, **some
        ),
        "fsdp-small-units": lambda: fsdp(
            units=random.randrange(10, 30), elements=1 << 18, forward_ns=30_000, backward_ns=60_000, **some
        ),
        "fsdp-regathers": lambda: fsdp(elements=large, forward_ns=moved // 2, backward_ns=moved, **some),
        "fsdp-wait-on-copy": lambda: fsdp(
            elements=large,
            forward_ns=2 * moved,
            backward_ns=4 * moved,
            annotated=bool(seed % 2),
            **{("copy_out_ns", "offload_ns")[seed % 2]: moved},
            **some,
        ),
        "pipeline-imbalance": lambda: pipeline(slow={rank: random.uniform(1.4, 2.0)}, **some),
        "expert-skew": lambda: experts(hot={rank: random.uniform(1.6, 3.0)}, **some),
    }[rule]()
    assert rule in fired(job, tmp_path / "job")
