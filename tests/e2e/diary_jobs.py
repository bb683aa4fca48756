"""Small training jobs with the hook, each in a fork of this process: torch is imported once. Arguments: output folder, hook.

Each job writes its losses to ``NAME-losses.json``. A rank of a distributed job is a fork of its own.
"""

import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch._dynamo  # what the first optimizer imports, a second in each fork otherwise
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

OUT, HOOK = Path(sys.argv[1]), sys.argv[2]
LATE_S = 0.05


def model_of(width=32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def batches(count, size=8):
    torch.manual_seed(1)
    return DataLoader(
        TensorDataset(torch.randn(count * size, 16), torch.randint(0, 4, (count * size,))), batch_size=size
    )


def step(model, optimizer, batch, losses):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


def trained(model=None, optimizer=None, loader=None, count=10, losses=None):
    model = model_of() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    losses = [] if losses is None else losses
    for batch in batches(count) if loader is None else loader:
        step(model, optimizer, batch, losses)
    return losses


def plain():
    """Evaluation every 4 steps, a checkpoint after each, garbage once."""
    model, losses = model_of(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at, batch in enumerate(batches(12), 1):
        step(model, optimizer, batch, losses)
        if at % 4 == 0:
            model.eval()
            with torch.no_grad():
                for other in batches(3):
                    model(other[0])
            model.train()
            torch.save(model.state_dict(), OUT / "checkpoint.pt")
        if at == 6:
            cycles = [[] for _ in range(100_000)]
            for each in cycles:
                each.append(each)
            del cycles, each
            import gc

            gc.collect()
    return losses


def teaches():
    """A teacher in every step, a rollout of 6 passes before every 5th, and epochs of 10 steps with two workers."""
    model, teacher, losses = model_of(), model_of(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, size = batches(10).dataset, batches(10).batch_size
    for _ in range(3):
        for at, batch in enumerate(DataLoader(data, batch_size=size, num_workers=2)):
            if at % 5 == 0:
                with torch.no_grad():
                    for _ in range(6):
                        model(batch[0])
            with torch.inference_mode():
                teacher(batch[0])
            step(model, optimizer, batch, losses)
    return losses


def pickled():
    """A model saved whole, and a copy, hold nothing of the hook."""
    import copy
    import pickle

    model = model_of()
    losses = trained(model)
    assert b"stepscope" not in pickle.dumps(model)
    assert not copy.deepcopy(model)._forward_pre_hooks
    torch.jit.script(model)
    return losses


def gan():
    first, second, losses = model_of(), model_of(), []
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, second)]
    for batch in batches(10):
        step(first, optimizers[0], batch, losses)
        step(second, optimizers[1], batch, losses)
    return losses


def in_thread():
    losses = []
    thread = threading.Thread(target=trained, kwargs={"losses": losses})
    thread.start()
    thread.join()
    return losses


def recomputed():
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model_of()

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    return trained(Recomputed())


def lbfgs():
    model, losses = model_of(), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for batch in batches(4):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def generator():
    def produce():
        yield from batches(10)

    return trained(loader=produce())


def forks():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = trained(model, optimizer, count=3)
    pid = os.fork()
    if pid == 0:
        trained(model, optimizer, count=20)
        os._exit(0)
    os.waitpid(pid, 0)
    return losses + trained(model, optimizer, count=3)


def leaves():
    """os._exit: no end, and what was written until then."""
    trained(count=5)
    limit = time.monotonic() + 20
    written = (OUT / "leaves" / ".stepscope").glob
    while not any(len(path.read_bytes().partition(b"\n")[2]) == 5 * 48 for path in written("diary-*.bin")):
        assert time.monotonic() < limit
        time.sleep(0.05)
    os._exit(3)


def raises():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = model_of(), 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 4:
                raise ValueError("a batch of the wrong kind")
            return self.inner(x)

    trained(Fails())


def never_steps():
    raise FileNotFoundError("data/train.bin")


def twice():
    """Two processes that say they are the same rank."""
    both = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            trained(count=5)
            Path(OUT / "twice" / str(os.getpid())).touch()
            limit = time.monotonic() + 20
            while len(list((OUT / "twice").glob("[0-9]*"))) < 2:
                assert time.monotonic() < limit
                time.sleep(0.01)
            atexit._run_exitfuncs()
            os._exit(0)
        both.append(pid)
    for pid in both:
        os.waitpid(pid, 0)
    return []


def hoards():
    """1 MiB a step is kept in 300 steps of 5 ms and more, with a sample of memory for every ten."""
    sys.modules["stepscope_hook.samples"].EVERY_S = sys.modules["stepscope_hook.pages"].FLUSH_S = 0.05
    model, kept, losses = model_of(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(300):
        step(model, optimizer, batch, losses)
        kept.append(torch.ones(1 << 18))
        time.sleep(0.005)
    return losses


class Late(torch.autograd.Function):
    """A backward pass that takes LATE_S longer."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        time.sleep(LATE_S)
        return gradient


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model_of()

    def forward(self, x):
        out = self.inner(x)
        return Late.apply(out) if dist.get_rank() == 1 else out


def ddp():
    model = nn.parallel.DistributedDataParallel(Slow())
    losses = trained(model, count=10)
    with model.no_sync():
        trained(model, torch.optim.SGD(model.parameters(), lr=0.1), count=1)
    return losses


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    model = Slow()
    fully_shard(model.inner[2])
    fully_shard(model)
    return trained(model, count=10)


def mesh():
    """Tensor parallel in pairs of ranks, sharded across them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dims = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = model_of()
    parallelize_module(model, dims["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=dims["dp"])
    return trained(model, count=30)


def hangs():
    """Rank 1 does not enter the last collective until rank 0 is inside and both ranks have told where they are."""
    trained(nn.parallel.DistributedDataParallel(model_of()), count=3)
    control = OUT / "hangs" / ".stepscope"
    inside = OUT / "hangs" / "inside"

    def look(_frame, event, called):
        if event == "c_call" and called.__name__ == "allreduce":
            inside.touch()

    limit = time.monotonic() + 60
    if dist.get_rank() == 0:
        sys.setprofile(look)
    else:
        while not inside.exists():
            assert time.monotonic() < limit
            time.sleep(0.05)
        (control / "asking").write_text("{}")
        (control / "asking").replace(control / "stack-request.json")
        while len(list(control.glob("stack-0000*.txt"))) < 2 or len(list(control.glob("flight-0000*.json"))) < 2:
            assert time.monotonic() < limit, list(control.iterdir())
            time.sleep(0.05)
    dist.all_reduce(torch.zeros(3))
    return []


def run(name, rank=None, world=1, *, hooked=True):
    """One fork. Returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    torch.set_num_threads(1)
    folder = OUT / name
    if rank is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    if hooked:
        sys.path.append(HOOK)
        import stepscope_hook

        options = {"output": str(folder), "tool_version": "0", "step_optimizer": 1, "first": None}
        stepscope_hook.install(json.dumps(options))
        sys.path.remove(HOOK)
    if rank is not None:
        store = dist.FileStore(str(OUT / f"{name}-store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    losses = JOBS[name]()
    (OUT / f"{name}-losses.json").write_text(json.dumps(losses))
    if rank is not None:
        dist.destroy_process_group()
    atexit._run_exitfuncs()
    os._exit(0)  # taking torch apart takes a second


JOBS = {
    each.__name__: each
    for each in (
        plain, teaches, pickled, gan, in_thread, recomputed, lbfgs, generator, forks, leaves, raises, never_steps, twice,
        hoards, ddp, fsdp2, mesh, hangs,
    )
}  # fmt: skip
RANKS = {"ddp": 2, "fsdp2": 2, "mesh": 4, "hangs": 2}
JOBS["bare"] = plain
JOBS["unwritable"] = plain


def main():
    sys.modules.pop("torch.distributed.launcher.api", None)  # which the tests' server has loaded: it tells a launcher
    codes = {}
    for name in JOBS:
        ranks = range(RANKS[name]) if name in RANKS else [None]
        (OUT / name).mkdir()
        (OUT / name / "profile.json").write_text("{}")
        if name == "unwritable":
            (OUT / name / ".stepscope").write_text("a file")
        pids = [run(name, rank, len(ranks), hooked=name != "bare") for rank in ranks]
        codes[name] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    (OUT / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
