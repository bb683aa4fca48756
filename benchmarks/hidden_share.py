"""Communication hidden under the backward pass: what `stepscope profile` reports against the truth on an emulated network.

    python -m benchmarks.hidden_share [--network 400mbit] [--steps 3] [--fifo]

Two gloo ranks on two hosts. Layers sleep, so that computation takes no core; gradients are of known size and the link of
known rate. The job keeps accounts that stepscope does not see:

clock    every all-reduce from its call to its end, in a communication hook of DDP or around the calls of the naive loop,
         against the backward pass less the time its thread spends in these calls
planned  each bucket on the wire once all its gradients are there on both ranks and the one before it has passed, for its
         bytes at the rate of the link; gradients as the job saw them come
wire     of DDP as it is: the bytes that have crossed the network card when the backward pass ends. A rank that waits for
         the other sends none: on a busy machine this is not a share of time
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._commands import stepscope
from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns import world
from stepscope.launch.netns.start import probe_emulation
from stepscope.records.network import EmulatedNetwork, parse_network
from stepscope.stats import spans

BAR = 2.0
LAYERS, WIDTH, FORWARD_MS, BACKWARD_MS = 8, 1024, 10.0, 60.0

JOB = """
import contextlib, json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from sleeping import Layer

how, cap, marked, fifo, out, layers, width, forward_ms, backward_ms = json.loads(sys.argv[1])
if fifo:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
now = time.perf_counter_ns
model = nn.Sequential(nn.Linear(4, 4), *(Layer(width, forward_ms, backward_ms) for _ in range(layers)))
step = {}

def arrives(parameter):
    step["arrivals"].append(now())

def wire():
    with open("/proc/net/dev") as file:
        fields = next(line for line in file if "eth0:" in line).split(":")[1].split()
    return int(fields[0]) + int(fields[8])

def backward_ends(gradient):
    step["backward_end"], step["bytes_hidden"] = now(), wire()

model[0].weight.register_hook(backward_ends)
for layer in model[1:]:
    layer.weight.register_post_accumulate_grad_hook(arrives)
trained = model if how == "naive" else DistributedDataParallel(model, bucket_cap_mb=cap, gradient_as_bucket_view=True)

def timed(state, bucket):
    buffer, call = bucket.buffer().div_(2), [now(), 0, 0]
    step["calls"].append(call)
    work = dist.all_reduce(buffer, async_op=True)
    call[1] = now()
    def ends(future):
        call[2] = now()
        return future.value()[0]
    return work.get_future().then(ends)

if how == "timed":
    trained.register_comm_hook(None, timed)

def region(name):
    return record_function(name) if marked else contextlib.nullcontext()

optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
kept = []
for number in range(12):
    step = {"calls": [], "arrivals": []}
    optimizer.zero_grad()
    with region("forward"):
        loss = trained(torch.ones(2, 4)).sum()
    step["bytes_before"], step["backward_begin"] = wire(), now()
    with region("backward"):
        loss.backward()
    if how == "naive":
        for parameter in model.parameters():
            begun = now()
            dist.all_reduce(parameter.grad)
            step["calls"].append([begun, now(), now()])
            parameter.grad /= 2
    step["bytes_after"] = wire()
    optimizer.step()
    kept.append(step)
with open(os.path.join(out, "rank-%d.json" % dist.get_rank()), "w") as file:
    json.dump(kept, file)
dist.destroy_process_group()
"""

CASES = (
    ("DDP, 4 MiB buckets", "timed", 4, False),
    ("DDP, 8 MiB buckets", "timed", 8, False),
    ("DDP, 25 MiB buckets", "timed", 25, False),
    ("DDP, 4 MiB buckets, no hook", "ddp", 4, False),
    ("naive, ranges marked", "naive", 0, True),
    ("naive, nothing marked", "naive", 0, False),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="400mbit")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--fifo", action="store_true", help="ranks run before all other work of the machine (root)")
    parser.add_argument("--keep", type=Path, help="leave traces and accounts here")
    asked = parser.parse_args([] if arguments is None else arguments)
    heading(f"hidden communication: profiled against planted, 2 gloo ranks at {asked.network} (bar: {BAR:.0f} points)")
    refused = probe_emulation()
    if isinstance(refused, Unavailable):
        print(f"skipped: {refused.reason}")
        return
    apart: dict[str, float] = {}
    for name, how, cap, marked in CASES:
        with tempfile.TemporaryDirectory() as folder:
            root = asked.keep / name.replace(" ", "_") if asked.keep else Path(folder)
            document, accounts = _profiled(root, asked.network, asked.steps, (how, cap, marked, asked.fifo))
        for account, points in _report(name, how, document, accounts, parse_network(asked.network), cap).items():
            apart[account] = max(apart.get(account, 0.0), points)
    for account, points in apart.items():
        print(f"largest distance from {account}: {points:.1f} points{'' if points <= BAR else '  NOT REACHED'}")


def _profiled(
    root: Path, network: str, steps: int, job: tuple[str, int, bool, bool]
) -> tuple[Mapping[str, Any], Mapping[int, list[dict[str, Any]]]]:
    """`trace --json` of the window, and every rank's accounts by step."""
    root.mkdir(parents=True, exist_ok=True)
    script = root / "job.py"
    script.write_text(JOB)
    settings = json.dumps([*job, str(root), LAYERS, WIDTH, FORWARD_MS, BACKWARD_MS])
    ranks = world.command_of_ranks(
        network, parent=os.getpid(), world_size=2, log_dir=root / "logs", error_file=root / "error.json",
        argv=[sys.executable, str(script), settings],
    )  # fmt: skip
    del ranks[ranks.index("--parent") : ranks.index("--parent") + 2]  # its parent is the profile command
    out = root / "profile"
    models = str(Path(__file__).parent / "models")
    stepscope("profile", "--wait", "4", "--steps", str(steps), "-o", str(out), "--", *ranks, env={"PYTHONPATH": models})
    document = json.loads(stepscope("trace", str(out), "--json"))
    return document, {rank: json.loads((root / f"rank-{rank}.json").read_text()) for rank in (0, 1)}


def _report(
    name: str,
    how: str,
    document: Mapping[str, Any],
    accounts: Mapping[int, list[dict[str, Any]]],
    network: EmulatedNetwork,
    cap_mib: int,
) -> dict[str, float]:
    """Print each rank's figures; by account the largest distance in points."""
    apart: dict[str, float] = {}
    for rank, kept in accounts.items():
        rows = [row for row in document["steps"] if row["rank"] == rank]
        mine, other = ([every[row["step"]] for row in rows] for every in (kept, accounts[1 - rank]))
        said = 100 * sum(row["overlap_ns"] for row in rows) / sum(row["comm_ns"] for row in rows)
        shares = {"wire" if how == "ddp" else "clock": _by_wire(mine) if how == "ddp" else _by_clock(mine)}
        shares["planned"] = 0.0 if how == "naive" else _by_plan(network, cap_mib, mine, other)
        for account, share in shares.items():
            apart[account] = max(apart.get(account, 0.0), abs(said - 100 * share))
        phases = {row["phase"]: row["comm_ns"] / 1e6 for row in document["phases"] if row["rank"] == rank}
        print(
            f"{name}, rank {rank}: hidden {said:.1f}%; "
            + ", ".join(f"{account} {share:.1%}" for account, share in shares.items())
            + "; communication launched in "
            + ", ".join(f"{phase} {phases[phase]:.0f} ms" for phase in ("forward", "backward", "communication")),
            flush=True,
        )
    return apart


def _by_wire(steps: Sequence[Mapping[str, Any]]) -> float:
    """Share of a step's bytes that had crossed the network card when the backward pass ended."""
    before = sum(step["bytes_hidden"] - step["bytes_before"] for step in steps)
    return before / sum(step["bytes_after"] - step["bytes_before"] for step in steps)


def _by_clock(steps: Sequence[Mapping[str, Any]]) -> float:
    """Share of the time of a step's all-reduces in which its backward pass computes."""
    whole = hidden = 0
    for step in steps:
        called, returned, ended = np.array(step["calls"], dtype=np.int64).T
        busy = spans.union(called, ended)
        whole += busy.measure
        beside = spans.clip(busy, low=step["backward_begin"], high=step["backward_end"])
        hidden += spans.subtract(beside, spans.union(called, returned)).measure
    return hidden / whole


def _by_plan(
    network: EmulatedNetwork, cap_mib: int, steps: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> float:
    """The same share with 2 ranks that send each byte of a bucket once, one bucket at a time."""
    whole = hidden = 0
    for mine, theirs in zip(steps, other, strict=True):
        free, begins, ends = 0, [], []
        for last, size in _buckets(cap_mib):
            begins.append(mine["arrivals"][last])
            free = max(free, begins[-1], theirs["arrivals"][last]) + round(1e9 * size / network.payload_bytes_per_s)
            ends.append(free)
        busy = spans.union(np.array(begins), np.array(ends))
        whole += busy.measure
        hidden += spans.clip(busy, low=mine["backward_begin"], high=mine["backward_end"]).measure
    return hidden / whole


def _buckets(cap_mib: int) -> Iterator[tuple[int, int]]:
    """Of each bucket: place of its last gradient in the order in which they come, bytes. A cap that is given holds for
    the first bucket too."""
    held = 0
    for place in range(LAYERS):
        held += 4 * WIDTH**2
        if held >= cap_mib << 20 or place == LAYERS - 1:
            yield place, held
            held = 0


if __name__ == "__main__":
    main(sys.argv[1:])
