"""DDP, 2 ranks whose layers take a fixed time of the processor; --plant says what is wrong with it.

backward: rank 1 computes a quarter more, in its backward pass. stall: the loader stands for 300 ms before every 20th step.
leak: 1 MiB a step is kept. --clean: nothing is planted. --steps: how many (default 300).
"""

import argparse
import time

import torch
import torch.distributed as dist
from _clock import faulty, leave, tick
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FORWARD_S, BACKWARD_S, LAYERS = 0.002, 0.003, 4
QUARTER_S = (FORWARD_S + BACKWARD_S) / 4
STALL_S, EVERY, LEAK = 0.3, 20, 1 << 20
BATCH = 16


def work(seconds):
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass


class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, backward_s):
        ctx.backward_s = backward_s
        work(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        work(ctx.backward_s)
        return gradient, None


class Net(nn.Module):
    def __init__(self, slow):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(LAYERS))
        self.slow = slow

    def forward(self, x):
        backward_s = BACKWARD_S + (QUARTER_S if self.slow and faulty() else 0.0)
        for layer in self.layers:
            x = torch.relu(Work.apply(layer(x), backward_s))
        return x


class Samples(Dataset):
    def __init__(self, steps, stalls):
        self.steps, self.stalls = steps, stalls

    def __len__(self):
        return BATCH * self.steps

    def __getitem__(self, index):
        step, place = divmod(index, BATCH)
        if self.stalls and place == 0 and step % EVERY == EVERY - 1:
            time.sleep(STALL_S)
        return torch.full((64,), float(index % 7))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", choices=("backward", "stall", "leak"))
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_known_args()[0]
    plant = options.plant if faulty(0) else None
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(slow=plant == "backward" and dist.get_rank() == 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for inputs in DataLoader(Samples(options.steps, plant == "stall"), batch_size=BATCH):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        if plant == "leak":
            kept.append(bytearray(b"1" * LEAK))
        tick()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    del model, optimizer, loss
    leave()


if __name__ == "__main__":
    main()
