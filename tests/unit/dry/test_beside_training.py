"""What a script does beside training is not carried out, and what it does wrong is one sentence with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.dry_runs import dry_run

pytest.importorskip("torch")

TRAINS = """
    import torch
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(batches):
        for x in batches:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
FOREVER = "\n    train(torch.randn(4, 8) for _ in iter(int, 1))\n"


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if not path.relative_to(folder).parts[0].startswith("out-")
    }


def skipped(record: dict[str, Any]) -> list[str]:
    return [note["place"] for note in record["notes"] if note["code"] == "skipped"]


def test_nothing_of_the_users_is_written_and_what_was_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "script.py").write_text("")
    (folder / "log").write_text("")
    before = {**files(folder)}
    record = dry_run(
        TRAINS
        + """
    import os, pathlib, shutil
    os.makedirs("out/deep")
    with open("out/deep/a.txt", "w") as file: file.write("one")
    with open("notes.txt", "a") as file: file.write(" and more")
    pathlib.Path("b.txt").write_text("two")
    os.replace("b.txt", "c.txt")
    shutil.copytree("out", "again")
    assert open("again/deep/a.txt").read() == "one" and open("notes.txt").read() == "mine and more"
    assert sorted(os.listdir(".")) == sorted({"again", "c.txt", "log", "notes.txt", "out", "script.py", *os.listdir(".")})
    assert {e.name for e in os.scandir("out")} == {"deep"} and not os.path.exists("b.txt")
    shutil.rmtree("out")
    os.remove("notes.txt")
    assert not os.path.exists("out") and not pathlib.Path("notes.txt").exists()
    torch.save(model.state_dict(), "model.pt")
    """
        + FOREVER,
        folder,
        world=1,
    )
    after = files(folder)
    assert {name: content for name, content in after.items() if name not in {"script.py", "log"}} == {
        "notes.txt": before["notes.txt"]
    }
    assert {f"script.py:{line}" for line in (13, 14, 15, 16, 17, 18, 25)} <= set(skipped(record))


LOADERS = {
    "a loader that ends begins again": (
        """
    data = torch.utils.data.TensorDataset(torch.randn(6, 8))
    train(x for (x,) in torch.utils.data.DataLoader(data, batch_size=6, shuffle=True, num_workers=3))
    """,
        6,
    ),
    "endless": (
        """
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.randn(8)
    train(torch.utils.data.DataLoader(Endless(), batch_size=5, pin_memory=True))
    """,
        5,
    ),
    "samplers see data": (
        """
    data = torch.utils.data.random_split([torch.randn(8) for _ in range(40)], [30, 10])[0]
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=1)
    train(torch.utils.data.DataLoader(data, batch_size=3, sampler=sampler))
    """,
        3,
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_gives_as_many_batches_as_two_steps_need(tmp_path: Path, name: str) -> None:
    script, samples = LOADERS[name]
    record = dry_run(TRAINS + script, tmp_path, world=1)
    assert (record["samples"], record["steps"]) == (samples, 2)


def test_lengths_that_vary_are_said_and_drawn_alike_each_time(tmp_path: Path) -> None:
    script = """
    data = [torch.randn(length, 8) for length in range(1, 101)]
    train(torch.utils.data.DataLoader(data, batch_size=None, shuffle=True))
    """
    one, other = (dry_run(TRAINS + script, tmp_path, world=world) for world in (1, 8))
    assert one["samples"] == other["samples"]
    assert "lengths" in {note["code"] for note in one["notes"]}


def test_batches_come_from_a_file_where_the_data_is_not_here(tmp_path: Path) -> None:
    import torch

    torch.save(torch.zeros(7, 8), tmp_path / "batch.pt")
    script = (
        TRAINS
        + """
    class Missing(torch.utils.data.Dataset):
        def __len__(self):
            return 100
        def __getitem__(self, number):
            return open("no-such-file")
    train(torch.utils.data.DataLoader(Missing(), batch_size=2))
    """
    )
    failure = dry_run(script, tmp_path, world=1)
    assert (failure["reason"], failure["place"]) == ("needs-data", "script.py:16")
    assert "--batch-from" in failure["fix"]
    assert dry_run(script, tmp_path, world=1, batch_from=str(tmp_path / "batch.pt"))["samples"] == 7


WRONG = {
    "reads a missing file": ('    open("weights.bin", "rb")', "needs-data", 11),
    "fetches": ('    import urllib.request\n    urllib.request.urlopen("http://data.example/x")', "needs-data", 12),
    "its own extension": (
        '    from torch.utils.cpp_extension import load_inline\n    load_inline("mine", "int f();")', "unsupported", 12,
    ),
    "more ranks than the world has": (
        "    import torch.multiprocessing as mp\n    mp.spawn(print, nprocs=3)", "world", 12,
    ),
    "more ranks than the mesh allows": (
        "    from torch.distributed.device_mesh import init_device_mesh\n    torch.distributed.init_process_group()\n"
        '    init_device_mesh("cpu", (3, 4))', "world", 13,
    ),
    "never steps": ("    model(torch.randn(4, 8)).sum().backward()", "no-step", 0),
    "ends itself": ('    import sys\n    sys.exit("no GPU")', "exit", 12),
    "takes no such option": (
        '    import argparse\n    argparse.ArgumentParser().parse_args(["--acum", "3"])', "no-step", 12,
    ),
    "waits forever": ("    import time\n    while True:\n        time.sleep(0.01)", "timeout", 13),
    "a world that does not divide": (
        '    import os\n    assert 100 % int(os.environ["WORLD_SIZE"]) == 0', "raised", 12,
    ),
    "a package that is not there": ("    import no_such_package", "raised", 11),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_a_script_does_wrong_is_said_with_its_line(tmp_path: Path, name: str) -> None:
    script, reason, line = WRONG[name]
    failure = dry_run(TRAINS + script, tmp_path, world=8, **({"limit_s": 1.0} if reason == "timeout" else {}))
    assert (failure["reason"], failure["place"]) == (reason, f"script.py:{line}" if line else None)
    assert len(failure["text"]) > 10


def test_an_engine_that_is_not_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("def initialize(model):\n    return model\n")
    failure = dry_run(TRAINS + "    import deepspeed\n    deepspeed.initialize(model)", tmp_path, world=8)
    assert (failure["reason"], failure["place"]) == ("unsupported", "script.py:12")


def test_a_mesh_of_no_rank_asks_for_more(tmp_path: Path) -> None:
    script = """
    from torch.distributed.device_mesh import init_device_mesh
    torch.distributed.init_process_group()
    init_device_mesh("cpu", (torch.distributed.get_world_size() // 8, 8))
    """
    failure = dry_run(TRAINS + script, tmp_path, world=4)
    assert failure["reason"] == "world"
    assert "--gpus 0" not in failure["fix"]


def test_a_script_that_takes_one_step_is_recorded_with_it(tmp_path: Path) -> None:
    record = dry_run(
        TRAINS + "    torch.randn(64, 64) @ torch.randn(64, 64)\n    train([torch.randn(4, 8)])", tmp_path, world=8
    )
    assert (record["steps"], record["samples"]) == (1, 4)
    assert sum(record["operators"][row]["flop"] for row in record["order"]) == 2 * (2 * 4 * 8 * 2)
    assert {"one-step", "alone"} <= {note["code"] for note in record["notes"]}


def test_a_script_without_an_optimizer_of_torch_steps_between_its_passes(tmp_path: Path) -> None:
    script = """
    import torch
    model = torch.nn.Linear(8, 2)
    for _ in range(4):
        model(torch.randn(4, 8)).sum().backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
            p.grad = None
    """
    record = dry_run(script, tmp_path, world=1)
    assert (record["steps"], record["micro_steps"], record["samples"]) == (2, 1, 4)
    assert sum("add_" in record["operators"][row]["op"] for row in record["order"]) == 2


def test_evaluation_is_no_part_of_the_step_and_a_teacher_is(tmp_path: Path) -> None:
    record = dry_run(
        TRAINS
        + """
    teacher = torch.nn.Linear(8, 2).eval()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1) if not model.training else None)
    for _ in range(2):
        with torch.no_grad():
            model.eval()
            for _ in range(50):
                model(torch.randn(16, 8))
            teacher(torch.randn(4, 8))
        model.train()
        train([torch.randn(4, 8)])
        assert len(calls) == 1
    """,
        tmp_path,
        world=1,
    )
    flop = [record["operators"][row]["flop"] for row in record["order"]]
    assert sum(flop) == 3 * (2 * 4 * 8 * 2)  # of the teacher, forward, backward


def test_metrics_of_a_hub_are_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "evaluate.py").write_text("def load(name):\n    raise OSError('no such metric')\n")
    script = """
    import importlib.util
    assert importlib.util.find_spec("evaluate") is not None
    import evaluate
    evaluate.load("accuracy").add_batch(predictions=1)
    """
    record = dry_run(TRAINS + script + FOREVER, tmp_path, world=1)
    assert "script.py:15" in skipped(record)


def test_an_assertion_without_words_is_said_by_its_line(tmp_path: Path) -> None:
    failure = dry_run(TRAINS + "\n    assert 100 % 8 == 0", tmp_path, world=8)
    assert "100 % 8 == 0" in failure["text"]


SPAWNS = {
    "spawn": "    import torch.multiprocessing as mp\n    mp.spawn(rank, args=(8,), nprocs=8)",
    "processes": (
        "    import torch.multiprocessing as mp\n"
        "    all = [mp.Process(target=rank, args=(i, 8)) for i in range(8)]\n"
        "    [p.start() for p in all]\n    [p.join() for p in all]"
    ),
}


@pytest.mark.parametrize("name", SPAWNS)
def test_ranks_that_the_script_starts_itself_are_carried_out_as_the_first(tmp_path: Path, name: str) -> None:
    ranks = """
    def rank(rank, world):
        torch.distributed.init_process_group("nccl", rank=rank, world_size=world)
        train(torch.randn(4, 8) for _ in range(3))
"""
    record = dry_run(TRAINS + ranks + "    if __name__ == '__main__':\n" + "\n".join(
        "    " + line for line in SPAWNS[name].splitlines()
    ), tmp_path, world=8)  # fmt: skip
    assert record["steps"] == 2
    assert "spawned" in {note["code"] for note in record["notes"]}


def test_compiled_modules_run_as_they_are_and_are_named(tmp_path: Path) -> None:
    record = dry_run(
        TRAINS
        + """
    inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    inner[0] = torch.compile(inner[0], mode="max-autotune")
    model = torch.nn.Sequential(inner, torch.nn.Linear(8, 2))
    model[1].compile()
    """
        + FOREVER,
        tmp_path,
        world=1,
    )
    assert record["compiled"] == ["*.*", "*"]
