"""A small DDP job over gloo that ends as it is told: ``_ending_job.py HOW STEP RANK [TIMEOUT_S]``, started by torchrun."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.02
AFTERWARDS_S = 60.0
"""A job that outlives its launcher ends by itself."""
BEGAN = time.monotonic()


class Rows(Dataset):
    def __init__(self, how, bad):
        self.how, self.bad = how, bad

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if index == self.bad and self.how == "worker":
            raise KeyError("no such row")
        if index == self.bad and self.how == "hang-data":
            read_the_row()
        return torch.ones(16)


def read_the_row():
    time.sleep(1000)


def fills_memory():
    """In a control group of its own, whose limit makes the kernel kill this process."""
    group = os.environ["ENDS_CGROUP"]
    for name, value in (("memory.limit_in_bytes", 1 << 30), ("tasks", os.getpid())):
        with open(f"{group}/{name}", "w") as file:  # noqa: PTH123
            file.write(str(value))
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20) * 16))


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[1])


def goes_wrong(how):
    if how == "raise":
        raise ValueError("bad batch")
    if how == "memory":
        raise MemoryError
    if how == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if how == "host-memory":
        fills_memory()
    if how == "exit":
        sys.exit(1)
    if how == "os-exit":
        os._exit(3)
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    if how.startswith("launcher-"):
        os.kill(os.getppid(), getattr(signal, how.partition("-")[2]))
    if how.startswith("stepscope-"):
        os.kill(parent_of(os.getppid()), getattr(signal, how.partition("-")[2]))
    if how == "hang-sleep":
        time.sleep(1000)
    if how == "hang-loop":
        while True:
            pass
    if how == "hang-io":
        os.read(os.pipe()[0], 1)


def main(how, at_step, at_rank, timeout_s):
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    rank = dist.get_rank()
    mine = at_rank in (rank, -1)
    data = Rows(how if mine else "", 8 * at_step - 1)
    loader = DataLoader(data, batch_size=8, num_workers=1 if how == "worker" else 0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(loader, 1):
        optimizer.zero_grad()
        if mine and step == at_step:
            if how == "ends-early":
                time.sleep(timeout_s + 30)
                return
            if at_rank == -1:
                dist.barrier()  # else one fails, and ends the other before it does
            goes_wrong(how)
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(STEP_S)
        if time.monotonic() - BEGAN > AFTERWARDS_S + timeout_s:
            break


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "import":
        import nothing_of_this_name  # noqa: F401
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 600.0)
