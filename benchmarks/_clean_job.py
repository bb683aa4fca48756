"""A small DDP job over gloo in which nothing is wrong, and that makes no step for seconds at times: ``_clean_job.py SEED``.

It evaluates, on every rank or on one for which the others wait, saves checkpoints likewise, and compiles.
"""

import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, STEP_S = 60, 12, 0.01
PAUSE_S = 2.5
"""Of a pause, in which a limit of one second passes."""


class Slow(dict):
    """What takes seconds to save."""

    def __reduce__(self):
        time.sleep(PAUSE_S)
        return dict, ()


def slow_backend(module, _inputs):
    time.sleep(PAUSE_S)
    return module.forward


def passes_without_gradients(model):
    model.eval()
    with torch.no_grad():
        end = time.monotonic() + PAUSE_S
        while time.monotonic() < end:
            model(torch.randn(8, 16))
            time.sleep(0.1)
    model.train()


def evaluate(model):
    passes_without_gradients(model)


def save_checkpoint():
    time.sleep(PAUSE_S)


def inline_evaluation(model, _rank):
    passes_without_gradients(model)


def evaluation_of_rank_0(model, rank):
    if rank == 0:
        evaluate(model.module)
    dist.barrier()


def checkpoint(_model, _rank):
    torch.save(Slow(), os.devnull)


def checkpoint_of_rank_0(_model, rank):
    if rank == 0:
        torch.save(Slow(), os.devnull)
    dist.barrier()


def own_checkpoint_of_rank_0(_model, rank):
    if rank == 0:
        save_checkpoint()
    dist.barrier()


def compilation(_model, _rank):
    torch._dynamo.reset()
    torch.compile(torch.nn.Linear(16, 4), backend=slow_backend)(torch.randn(8, 16))


PAUSES = (
    inline_evaluation, evaluation_of_rank_0, checkpoint, checkpoint_of_rank_0, own_checkpoint_of_rank_0, compilation,
)  # fmt: skip


def main(seed):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pauses = random.Random(seed).sample(PAUSES, len(PAUSES))
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
        time.sleep(STEP_S)
        if step % EVERY == 0 and step < STEPS:
            pauses.pop()(model, rank)
    dist.barrier()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]))
