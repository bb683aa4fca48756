"""The table of options in the words of frameworks, and how a framework is recognised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.hand_events import mark, trace
from tests.trace_evidence import by_hand, with_setup

from stepscope.diagnose.frameworks import NAMES, OPTIONS, SOURCES, in_words_of, used_in
from stepscope.records.profile import JobSetup
from stepscope.traces.workload import frameworks_of


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


@pytest.mark.parametrize(
    ("objects", "used"),
    [(("transformers.PreTrainedModel",), set()), (("transformers.Trainer",), {"transformers"}), ((), {"transformers"})],
)
def test_a_model_of_a_library_is_not_its_trainer(objects: tuple[str, ...], used: set[str]) -> None:
    (job,) = with_setup(by_hand(mark("step", 0, 20)), JobSetup(objects=objects)).traces
    (each,) = job.summary.ranks
    shown = replace(each, facts=replace(each.facts, frameworks=("transformers",)))
    assert used_in(replace(job.summary, ranks=(shown,))) == used


def test_frameworks_are_recognised_by_objects_wrappers_and_annotations() -> None:
    made = trace(mark("FSDP::pre_forward (layers.0)", 0, 10), mark("step", 0, 20))
    assert frameworks_of(made.events, made.meta) == ("fsdp2",)
    model = {
        "objects": ["deepspeed.DeepSpeedEngine", "pytorch_lightning.Trainer"],
        "ddp": {"count": 1},
    }
    meta = replace(made.meta, stepscope={"model": model})
    assert frameworks_of(made.events, meta) == ("ddp", "deepspeed", "fsdp2", "lightning")


@pytest.mark.parametrize(
    ("used", "found"),
    [
        (("lightning", "transformers", "accelerate"), ("lightning",)),
        (("transformers", "accelerate"), ("transformers",)),
        (("accelerate",), ("accelerate",)),
    ],
)
def test_one_framework_wins_where_it_wraps_others(used: tuple[str, ...], found: tuple[str, ...]) -> None:
    made = trace(mark("step", 0, 20))
    model = {"objects": [f"{name}.Trainer" for name in used]}
    assert frameworks_of(made.events, replace(made.meta, stepscope={"model": model})) == found


def test_what_is_merely_imported_is_not_in_use() -> None:
    made = trace(mark("step", 0, 20))
    for model in (
        {"frameworks": {"transformers": "4.5", "lightning": "2.5"}},
        {"imported": ["transformers", "lightning"], "objects": []},
        {"objects": ["transformers.PreTrainedModel"]},
    ):
        assert frameworks_of(made.events, replace(made.meta, stepscope={"model": model})) == ()
