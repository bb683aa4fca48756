"""Units gathered after the computation that could hide them."""

from __future__ import annotations

from pathlib import Path

from tests.sharded_jobs import fsdp, traces_of, used_by
from tests.trace_evidence import found, generated, quiet, skipped

from stepscope.diagnose.rules.fsdp_no_prefetch import RULE


def test_gathers_without_prefetch_are_named_with_what_hiding_them_returns(tmp_path: Path) -> None:
    evidence = traces_of(fsdp(prefetch=False, forward_ns=2_000_000, backward_ns=4_000_000), tmp_path)
    finding = found(RULE, evidence)
    assert "15 of 15 forward, 15 of 15 backward" in finding.evidence[0]
    assert finding.stake_fraction is not None
    assert 0.12 < finding.stake_fraction < 0.17  # 33 gathers of 711 us in 147 ms, the first of each pass left out
    assert [a.text for a in finding.advice if "prefetch" in a.text] == [
        "FSDP2: block.set_modules_to_forward_prefetch([next_block]) on every block",
        "FSDP2: block.set_modules_to_backward_prefetch([previous_block]) on every block",
    ]


def test_prefetched_gathers_are_quiet(tmp_path: Path) -> None:
    said = quiet(RULE, traces_of(fsdp(forward_ns=2_000_000, backward_ns=4_000_000), tmp_path))
    assert said.startswith("late gathers: 0 of 15 forward")


def test_the_words_are_those_of_the_framework_that_wraps_the_model(tmp_path: Path) -> None:
    slow = {"prefetch": False, "forward_ns": 2_000_000, "backward_ns": 4_000_000}
    unnamed = traces_of(fsdp(annotated=False, **slow), tmp_path)
    assert {a.text.split(":")[0] for a in found(RULE, unnamed).advice[:-1]} >= {"FSDP2", "FSDP1", "DeepSpeed"}
    trainer = used_by(unnamed, frameworks=("fsdp1", "transformers"))
    texts = [a.text for a in found(RULE, trainer).advice]
    assert not any(text.startswith("FSDP1:") for text in texts)
    assert 'HF Trainer: fsdp_config={"forward_prefetch": true} (FSDP1 only)' in texts


def test_without_sharding_and_on_cpus_it_is_skipped(tmp_path: Path) -> None:
    assert "no sharded parameters" in skipped(RULE, generated(tmp_path, world=2))
    assert "prefetch hides none" in skipped(RULE, traces_of(fsdp(device="gloo"), tmp_path / "gloo"))
