"""A dry run on ranks of the host: from a profile of one of them, and its folder opened again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.dry_ranks import dry_rank, pointwise, product

from stepscope.core.errors import DataError
from stepscope.records.dry_run import DryCall, DryProfile, DryRank, DryRun
from stepscope.results.dry_host import host_pricing, of_host, profiled_rank, read_profile
from stepscope.results.dry_job import read_dry_job
from stepscope.store.layout import DryLayout
from stepscope.store.reader import read_record
from stepscope.store.writer import write_record

EXAMPLE = Path(__file__).parents[2] / "data" / "schema" / "dry_profile-1.json"
"""Its network: all_reduce on 2 ranks."""
PRODUCT, ADD = product(32, 1024, 256, dtype="float32"), pointwise("add", 4096, inputs=2, phase="backward")


def rank_of(world: int) -> DryRank:
    call = DryCall(
        op="all_reduce", size_bytes=1 << 20, dtype="float32", group=0, at=2, waited=2, phase="backward", after=0
    )
    made = dry_rank((PRODUCT, ADD), calls=(call,), groups=(tuple(range(world)),), world=world)
    return replace(made, backend="gloo", device="cpu")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two steps of 10 ms on the host: a product of 6 ms, with what is inside of it, and an addition of 1 ms."""
    events = []
    for step in range(2):
        start = 10_000 * step
        spans = (
            ("aten::linear", 0, 6500, []), ("aten::mm", 100, 6000, [[32, 256], [256, 1024]]),
            ("aten::resolve_conj", 200, 1000, [[32, 256]]), ("aten::add", 7000, 1000, [[4096], [4096], []]),
        )  # fmt: skip
        events += [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": start,
                    "dur": 10_000}]  # fmt: skip
        events += [
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start + at, "dur": took,
             "args": {"Input Dims": dims, "Input type": ["float"] * len(dims)}}
            for name, at, took, dims in spans
        ]  # fmt: skip
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.fixture
def profile(trace: Path, tmp_path: Path) -> DryProfile:
    network = read_record(EXAMPLE, DryProfile).network
    write_record(tmp_path / "calib.json", network)
    return read_profile(trace, profiled_rank(trace), (rank_of(1),), tmp_path / "calib.json")


def test_operators_of_the_dry_run_are_read_with_what_is_inside_of_them(trace: Path, profile: DryProfile) -> None:
    assert of_host(profiled_rank(trace))
    assert {(row.name, row.calls, row.time_ns) for row in profile.operators} == {
        ("aten::mm", 2, 12_000_000), ("aten::add", 2, 2_000_000)
    }  # fmt: skip
    assert profile.parts == {"other": 10e6}


def test_the_folder_says_the_step_again_on_the_profiled_rank_and_on_more(profile: DryProfile, tmp_path: Path) -> None:
    layout = DryLayout(tmp_path / "dry")
    for root, worlds in ((layout.root, (1, 2)), (layout.other(1), (2,))):
        folder = DryLayout(root)
        folder.control.mkdir(parents=True)
        run = DryRun(command=("train.py",), folder="", argv=(), gpus=worlds, ranks_per_node=2, changes={"bucket": "1"})
        write_record(folder.record, run)
        for world in worlds:
            write_record(folder.rank(world, 0), rank_of(world))
    write_record(layout.profile, profile)
    job = read_dry_job(layout.root)
    assert job.steps[1].step_ns == pytest.approx(10e6)
    assert job.steps[1].parts["forward"] == pytest.approx(7.5e6)  # 6 ms, and half of the 3 ms that no operator takes
    assert job.steps[2].step_ns - 10e6 == pytest.approx(job.steps[2].exposed_ns)
    assert job.steps[2].exposed_ns == pytest.approx(job.steps[2].comm_ns) != 0
    assert job.others[0].steps[2].step_ns == pytest.approx(job.steps[2].step_ns)
    assert {step.unit for step in job.steps.values()} == {"rank"}
    assert job.lanes is not None


def test_a_profile_of_another_script_is_refused(profile: DryProfile) -> None:
    other = replace(rank_of(1), operators=(product(4096, 4096, 4096, dtype="float32"), ADD))
    with pytest.raises(DataError, match=r"measures .% of what"):
        host_pricing(profile, (other,))
    with pytest.raises(DataError, match="no step of 1"):
        host_pricing(profile, (rank_of(2),))
