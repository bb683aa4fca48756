"""One process; a loop in Python over time steps and units: thousands of operators on a few numbers each."""

import torch
from _clock import tick
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ParameterList(torch.randn(4) for _ in range(12))

    def forward(self, x, state):
        for gate in self.gates:
            state = torch.tanh(state * gate + x)
            state = state - state.mean()
        return state


def main():
    torch.manual_seed(0)
    cell = Cell()
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    batches = [torch.randn(20, 4) for _ in range(8)]
    for step in range(250):
        inputs = batches[step % 8]
        optimizer.zero_grad()
        state = torch.zeros(4)
        for x in inputs:
            state = cell(x, state)
        loss = (state - inputs[0]).square().mean()
        loss.backward()
        optimizer.step()
        tick()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
