"""What a script really calls and computes: ``_dry_calls.py OUT SCRIPT SHAPE ..`` is one rank of it, on gloo.

Of its fourth step with each shape, by torch's flight recorder and torch's formulas for FLOP. By then DDP has its buckets.
"""

from __future__ import annotations

import json
import math
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from stepscope.records.nccl import DTYPES, OPS
from stepscope.records.plan import DTYPE_BYTES

STEP = 4
FLOP_OF = {"attention": "attention", "conv": "convolution", "mm": "product", "dot": "product"}
"""Part of an operator's name -> what it is."""

Call = tuple[str, int, str, tuple[int, ...]]
"""Operation, bytes, dtype, ranks. A reduce-scatter is an all-reduce: gloo runs it so. Of a message: from and to."""


class _Seen(Exception):  # noqa: N818 - ends the script
    pass


class _Flop(TorchDispatchMode):
    """FLOP of what runs, of this rank's part where a tensor is distributed."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        kind, count = kind_of(str(func)), flop_registry.get(func._overloadpacket)
        flop = 0 if count is None else int(count(*args, **(kwargs or {}), out_val=out))
        if "for_cpu" in str(func):  # torch's own counter leaves the kernel of CPUs out
            backward = "backward" in str(func)
            q, k, v = (tensor.shape for tensor in args[backward : backward + 3])
            flop = math.prod(q[:-1]) * k[-2] * (6 * q[-1] + 4 * v[-1] if backward else 2 * (q[-1] + v[-1]))
        if flop:
            self.sums[kind] = self.sums.get(kind, 0) + flop
        return out


class _Messages:
    """Messages, which gloo's flight recorder leaves out. sent: with the number of the collective before them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Call]] = []
        self.plain = {name: vars(c10d.ProcessGroup)[name] for name in ("send", "recv")}

    def begin(self) -> None:
        for name, function in self.plain.items():
            setattr(c10d.ProcessGroup, name, self.kept(name, function))

    def end(self) -> None:
        for name, function in self.plain.items():
            setattr(c10d.ProcessGroup, name, function)

    def kept(self, name: str, function: Any) -> Any:
        def call(group: Any, tensors: list[Any], peer: int, *rest: Any, **named: Any) -> Any:
            ends = dist.get_rank(), dist.get_global_rank(group, peer)
            size, dtype = sum(t.numel() * t.element_size() for t in tensors), str(tensors[0].dtype)[6:]
            self.sent.append((_last(), (name, size, dtype, ends if name == "send" else ends[::-1])))
            return function(group, tensors, peer, *rest, **named)

        return call


def kind_of(op: str) -> str:
    return next((kind for part, kind in FLOP_OF.items() if part in op), op)


def seen(run: Callable[[], object]) -> tuple[list[Call], dict[str, int]]:
    """Return the calls and the FLOP of the fourth step of what ``run`` trains."""
    optimizers: list[Any] = []
    flop, messages, first, steps = _Flop(), _Messages(), -1, 0

    def stepped(optimizer: Any, *_: Any) -> None:
        nonlocal first, steps
        if optimizer is not optimizers[0]:  # one that the first steps within its own step
            return
        steps += 1
        if steps == STEP - 1:
            first = _last()
            flop.__enter__()
            messages.begin()
        elif steps == STEP:
            flop.__exit__(None, None, None)
            raise _Seen

    handles = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: optimizers.append(optimizer)),
        register_optimizer_step_post_hook(stepped),
    ]
    try:
        run()
    except _Seen:
        pass
    finally:
        messages.end()
        for handle in handles:
            handle.remove()
    calls = [(entry["record_id"], _call(entry)) for entry in _entries() if entry["record_id"] > first]
    return [call for _, call in sorted([*calls, *messages.sent], key=lambda pair: pair[0])], flop.sums


def _last() -> int:
    return max((entry["record_id"] for entry in _entries()), default=-1)


def _entries() -> list[dict[str, Any]]:
    entries = json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", [])  # type: ignore[attr-defined]
    return sorted(entries, key=lambda entry: entry["record_id"])


def _call(entry: Mapping[str, Any]) -> Call:
    name = entry["profiling_name"].partition(":")[2]
    op = OPS.get(name, name)
    ranks = tuple(sorted(dist.get_process_group_ranks(c10d._resolve_process_group(entry["process_group"][0]))))  # type: ignore[arg-type]
    dtype = DTYPES.get(entry["input_dtypes"][0], entry["input_dtypes"][0])
    given, made = (sum(math.prod(shape) for shape in entry[key]) for key in ("input_sizes", "output_sizes"))
    # The list form of all_gather records one of its outputs.
    elements = given * len(ranks) if op == "all_gather" else max(given, made)
    return op, elements * DTYPE_BYTES[dtype], dtype, ranks


def of_record(document: Mapping[str, Any]) -> tuple[list[Call], dict[str, int]]:
    """Return the same of a dry run's record, a reduce-scatter as gloo runs it."""
    groups, rank = [tuple(group["ranks"]) for group in document["groups"]], document["rank"]
    sums: dict[str, int] = {}
    for index in document["order"]:
        row = document["operators"][index]
        if row["flop"]:
            kind = kind_of(row["op"])
            sums[kind] = sums.get(kind, 0) + row["flop"]
    ends = {"send": lambda peer: (rank, peer), "recv": lambda peer: (peer, rank)}
    return [
        (
            "all_reduce" if c["op"] == "reduce_scatter" else c["op"], c["size_bytes"], c["dtype"],
            ends[c["op"]](c["peer"]) if c["op"] in ends else groups[c["group"]],
        )
        for c in document["calls"]
    ], sums  # fmt: skip


def main(words: Iterable[str]) -> None:
    out, script, *shapes = words
    calls_and_flop = {}
    for shape in shapes:
        sys.argv = [script, shape]
        calls_and_flop[shape] = seen(lambda: runpy.run_path(script, run_name="__main__"))
    Path(f"{out}-{dist.get_rank()}").write_text(json.dumps(calls_and_flop))
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1:])
