"""What every block of a history was for: planted histories whose kinds are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.memory_pickles import alloc, dump, live, release, segment

from stepscope.records.imported import MemorySnapshot
from stepscope.store.importers.memory_snapshot import read_snapshot

SCRIPT = "/home/me/train.py:9 <module>"
CALL = "/x/torch/nn/modules/module.py:1790 _call_impl"
INIT = ("/home/me/model.py:2 __init__", SCRIPT)
FORWARD = ("/home/me/model.py:15 forward", CALL, "/home/me/model.py:40 forward", CALL, SCRIPT)
BACKWARD = ()
RECOMPUTED = (*FORWARD[:-1], "/x/torch/utils/checkpoint.py:1100 unpack_hook")
STATE = ("/home/me/opt.py:3 step", "/x/torch/optim/optimizer.py:100 wrapper", SCRIPT)
BUCKETS = (
    "/x/torch/nn/parallel/distributed.py:800 _ddp_init_helper",
    "/x/torch/nn/parallel/distributed.py:1 __init__",
    SCRIPT,
)

BEFORE = [alloc(1, 100, INIT), alloc(2, 50, INIT)]


def step(first: int) -> list[dict[str, Any]]:
    """A training step from address ``first`` on, up to the end of its optimizer's step; gradients stay."""
    batch, kept, brief, kept_too, loss, grad, part, grad_too, state, scratch, more = range(first, first + 11)
    return [
        alloc(batch, 10, (SCRIPT,)),
        alloc(kept, 40, FORWARD),
        alloc(brief, 5, FORWARD),
        *release(brief, 5),
        alloc(kept_too, 30, FORWARD),
        alloc(loss, 1, (SCRIPT,)),
        alloc(grad, 100, BACKWARD),
        alloc(part, 20, BACKWARD),
        *release(kept_too, 30),
        *release(part, 20),
        alloc(grad_too, 50, BACKWARD),
        *release(kept, 40),
        *release(loss, 1),
        alloc(state, 200, STATE),
        alloc(scratch, 7, STATE),
        *release(scratch, 7),
        alloc(more, 100, STATE),
        *release(batch, 10),
    ]


def read(path: Path, held: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]], **more: Any) -> MemorySnapshot:
    (found,) = read_snapshot(dump(path / "s.pickle", [segment(*held)] if held else [], trace, **more))
    assert sum(size for _, size in found.kinds) == found.requested_bytes
    assert sum(size for _, size in found.peak_kinds) == found.peak_requested_bytes
    return found


AFTER_ONE = [live(size, at=at) for size, at in ((100, 1), (50, 2), (100, 15), (50, 17), (200, 18), (100, 20))]
KINDS_AFTER_ONE = {"parameters": 150, "gradients": 150, "optimizer": 300}


def test_a_step_of_training_is_told_apart(tmp_path: Path) -> None:
    found = read(tmp_path, AFTER_ONE, [*BEFORE, *step(10)])
    assert dict(found.kinds) == KINDS_AFTER_ONE
    assert dict(found.peak_kinds) == {**KINDS_AFTER_ONE, "activations": 10}  # the batch lives until the end
    over = found.over_time
    assert over is not None
    highest = {kind: max(sizes) for kind, sizes in over.bytes_by_kind}
    assert highest == {**KINDS_AFTER_ONE, "activations": 81, "temporary": 20}
    assert found.history_complete


def test_a_forward_pass_out_of_memory_holds_activations(tmp_path: Path) -> None:
    """The second step: gradients were set to None, the optimizer's state stays."""
    trace = [*BEFORE, *step(10), *release(15, 100), *release(17, 50), alloc(30, 900, FORWARD)]
    held = [each for each in AFTER_ONE if each["address"] not in (15, 17)]
    found = read(tmp_path, [*held, live(900, at=30)], trace)
    assert dict(found.peak_kinds) == {"parameters": 150, "optimizer": 300, "activations": 900}
    assert found.peak_modules[0].where == "me/train.py:9 > me/model.py:40"


def test_what_a_backward_pass_recomputes_is_no_gradient(tmp_path: Path) -> None:
    again = [alloc(30, 33, RECOMPUTED), alloc(31, 100, BACKWARD), *release(30, 33), alloc(32, 50, BACKWARD)]
    found = read(tmp_path, [live(100, at=1), live(50, at=2), live(100, at=31), live(50, at=32)], [*BEFORE, *again])
    assert dict(found.peak_kinds) == {"parameters": 150, "gradients": 150}
    assert ("temporary", 33) in [(kind, max(sizes)) for kind, sizes in found.over_time.bytes_by_kind]  # type: ignore[union-attr]


def test_ddp_s_buckets_are_gradients(tmp_path: Path) -> None:
    found = read(tmp_path, [live(100, at=1), live(50, at=2), live(150, at=3)], [*BEFORE, alloc(3, 150, BUCKETS)])
    assert dict(found.kinds) == {"parameters": 150, "gradients": 150}


def test_tensors_that_the_job_names_are_facts(tmp_path: Path) -> None:
    """A block that looks like a parameter and is none of the model's: a data set built in a constructor."""
    named = [
        (0, 1, "parameter", "layers.0.weight"),
        (0, 15, "gradient", "layers.0.weight"),
        (0, 18, "optimizer", "layers.0.weight"),
        (0, 20, "optimizer", "head.weight"),
        (0, 17, "buffer", "head.scale"),
    ]
    job = {"rank": 3, "world_size": 8, "host": "h", "step": 1, "tensors": named, "device": 0, "capacity_bytes": 1000}
    found = read(tmp_path, AFTER_ONE, [*BEFORE, *step(10)], stepscope=job)
    assert dict(found.kinds) == {"parameters": 150, "gradients": 100, "optimizer": 300, "unknown": 50}
    assert (found.named, found.rank, found.step, found.capacity_bytes) == (True, 3, 1, 1000)
    assert ("layers.0", "optimizer", 200) in [(m.where, m.kind, m.size_bytes) for m in found.peak_modules]
