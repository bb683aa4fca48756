"""The table of options in the words of frameworks, and how a framework is recognised."""

from __future__ import annotations

from dataclasses import replace

from tests.hand_events import mark, trace

from stepscope.diagnose.frameworks import NAMES, OPTIONS, SOURCES, in_words_of
from stepscope.traces.frameworks_seen import frameworks_of


def test_every_framework_has_a_name_and_a_source() -> None:
    used = {key for options in OPTIONS.values() for key in options}
    assert used <= set(NAMES)
    assert set(NAMES) == set(SOURCES)


def test_the_frameworks_of_the_job_come_first_and_others_stand_in_for_none() -> None:
    assert [a.text for a in in_words_of("bucket size", {"transformers", "ddp"})] == [
        "HF Trainer: ddp_bucket_cap_mb",
    ]
    assert in_words_of("bucket size", {"fsdp2"}) == ()
    assert [a.text.split(":")[0] for a in in_words_of("keep gathered", (), otherwise=("fsdp2", "ddp"))] == ["FSDP2"]


def test_frameworks_are_recognised_by_imports_wrappers_and_annotations() -> None:
    made = trace(mark("FSDP::pre_forward (layers.0)", 0, 10), mark("step", 0, 20))
    assert frameworks_of(made.events, made.meta) == ("fsdp2",)
    model = {"frameworks": {"deepspeed": "0.15", "pytorch_lightning": None, "ray": "2"}, "ddp": {"count": 1}}
    meta = replace(made.meta, stepscope={"model": model})
    assert frameworks_of(made.events, meta) == ("ddp", "deepspeed", "fsdp2", "lightning")
