"""The job's own facts, as the hook writes them into the trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.hand_events import mark, trace

from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.traces.rank_pass import setup_of

LOADER = {
    "num_workers": 2, "pin_memory": True, "persistent_workers": False, "prefetch_factor": 2, "distributed_sampler": True,
}  # fmt: skip
MACHINE = {"threads": 1, "interop_threads": 2, "cores": 4, "cuda": False}


def setup(model: Any) -> JobSetup | None:
    return setup_of(replace(trace(mark("step", 0, 10)).meta, stepscope={"model": model}))


def test_what_the_hook_records_is_read() -> None:
    found = setup(
        {
            "objects": ["transformers.PreTrainedModel"],
            "optimizer": {"devices": ["cpu"], "parameters": {"float32": {"elements": 10}, "half": {"elements": 4}}},
            "ddp": {"count": 1, "first": {"bucket_cap_bytes": 1 << 20}, "all": [{"bucket_cap_bytes": 1 << 20}]},
            "loaders": {"count": 1, "first": LOADER, "all": [LOADER]},
            "compiled": {"modules": 0, "in_place": 2},
            "dtensor": [{"mesh_dims": ["dp", "tp"]}, {"mesh_dims": ["tp"]}],
            "pipeline": {"stages": [[0, 4], [2, 4]], "schedules": [{"class": "ScheduleInterleaved1F1B", "microbatches": 8}]},
            "machine": MACHINE,
        }
    )  # fmt: skip
    assert found == JobSetup(
        objects=("transformers.PreTrainedModel",), device="cpu", compiled=True, cores=4, threads=1, wrapped=("ddp",),
        mesh=("dp", "tp"), loader=LoaderSetup(workers=2, pinned=True, persistent=False, prefetch=2, divided=True),
        bucket_cap_bytes=1 << 20, parameters=14, micro_batches=8, chunks=2, schedule="ScheduleInterleaved1F1B",
    )  # fmt: skip


def test_loaders_that_differ_have_no_common_setting() -> None:
    found = setup({"loaders": {"count": 2, "first": LOADER, "all": [LOADER, LOADER | {"num_workers": 0}]}})
    assert found is not None
    assert found.loader == LoaderSetup(workers=None, pinned=True, persistent=False, prefetch=2, divided=True)


@pytest.mark.parametrize(("model", "compiled"), [({"machine": MACHINE}, False), ({"frameworks": {"ray": "2"}}, None)])
def test_compiled_is_unknown_to_records_without_it(model: dict[str, Any], compiled: bool | None) -> None:
    found = setup(model)
    assert found is not None
    assert found.compiled is compiled


@pytest.mark.parametrize("model", [None, {}, "x", []])
def test_a_trace_of_another_profiler_has_none(model: Any) -> None:
    assert setup(model) is None


def test_facts_of_another_shape_are_unknown_and_no_error() -> None:
    found = setup({"machine": 3, "optimizer": [], "loaders": {"all": "x"}, "dtensor": {}, "pipeline": {"stages": 1}})
    assert found == JobSetup()
