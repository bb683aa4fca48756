"""A job over all its ranks: what is missing is said, and what ends the reading early.

The job's own facts, as the hook writes them into the trace.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.hand_events import mark, trace
from tests.trace_builder import build, write_job

from stepscope.core.errors import MissingError
from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.report.trace_sections import table
from stepscope.traces.job import analyse_job
from stepscope.traces.rank_pass import setup_of


def test_a_table_without_its_frame_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = analyse_job(write_job(build(world=2), tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingError, match="pandas is not installed"):
        table(summary, "budget").to_pandas()


def test_missing_ranks_and_different_steps_are_said(tmp_path: Path) -> None:
    folder = write_job(build(world=4, steps=4, capture={2: (1, 3)}), tmp_path)
    (folder / "rank-3.json").unlink()
    said = [n.text for n in analyse_job(folder).notes if n.kind == "missing"]
    assert any(text.startswith("traces of 3 of 4 ranks") for text in said)
    assert any("ranks recorded different steps: most 10 to 13, rank 2 11 to 12" in text for text in said)


def test_too_little_memory_is_said_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("stepscope.traces.rank_pass.load_file", full)
    with pytest.raises(MissingError, match="not enough memory") as caught:
        analyse_job(write_job(build(world=1), tmp_path))
    assert "--show budget" in str(caught.value)


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
    assert found.loader == LoaderSetup(workers=None, pinned=True, persistent=False, prefetch=2, divided=True)


@pytest.mark.parametrize(("model", "compiled"), [({"machine": MACHINE}, False), ({"frameworks": {"ray": "2"}}, None)])
def test_compiled_is_unknown_to_records_without_it(model: dict[str, Any], compiled: bool | None) -> None:
    found = setup(model)
    assert found.compiled is compiled


def test_facts_of_another_shape_are_unknown_and_no_error() -> None:
    found = setup({"machine": 3, "optimizer": [], "loaders": {"all": "x"}, "dtensor": {}, "pipeline": {"stages": 1}})
    assert found == JobSetup()
