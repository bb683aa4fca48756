"""A root unit that holds much of the model."""

from __future__ import annotations

from pathlib import Path

from tests.sharded_jobs import fsdp, traces_of
from tests.trace_evidence import found

from stepscope.diagnose.rules.fsdp_root_unit import RULE

TIMES = {"forward_ns": 1_000_000, "backward_ns": 2_000_000}


def test_a_large_root_is_named_with_its_share(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(fsdp(root=128 << 20, **TIMES), tmp_path))
    assert finding.title.startswith("the root unit holds 57% of the bytes")
    assert finding.evidence == ("512 MiB in the root, 6 other units",)
    assert finding.advice[0].text.startswith("FSDP2: fully_shard(model.embedding)")
