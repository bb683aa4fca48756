"""What a log holds, by a grammar of whole lines that knows nothing of the importers; and what an importer claims.

``held(kind, text)``: for each kind of figure its values. ``claims(kind, imported)``: (kind of figure, value) of everything
imported. A value that is claimed and not held is false. A line that is not whole holds nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from itertools import combinations_with_replacement
from typing import Any

from stepscope.records.imported import Imported
from stepscope.records.training import TrainingRun

Held = dict[str, set[Hashable]]
FIGURES = ["time", "algbw", "busbw", "#wrong"]
COLUMNS = ["size", "count", "type", "redop", "root", *FIGURES, *FIGURES]
ROUNDED = 0.02
"""GB/s: what the rounding of printed times and rates makes of a rate."""
LEAST = 50.0
"""GB/s, from which on the quotient of two rates says how many ranks there were."""
DEVICE = re.compile(r"#\s+Rank\s+(\d+) Group  0 Pid \d+ on node-\d device\s+\d+ \[\S+\] NVIDIA H100 80[GM]B HBM3")
NUMBER = r"\d+(?:\.\d+)?"
MOST = 24
"""Lines of steps in one file, so that all pairs of them can be looked at."""


def _nccl_tests(text: str) -> Held:
    found: Held = defaultdict(set)
    found["ranks"].add(_listed_ranks(text))
    names, units = COLUMNS, ["us", "GB/s", "GB/s", "us", "GB/s", "GB/s"]
    for line in text.split("\n")[:-1]:
        words = line.removeprefix("#").split()
        if line.startswith("#") and {"size", "algbw", "busbw"} <= set(words):
            names = words
        elif line.startswith("#") and "(elements)" in line:
            units = [unit for unit in re.findall(r"\(([^()]*)\)", line) if unit not in ("B", "elements")]
        elif len(words) == len(names) and not line.startswith("#") and units == ["us", "GB/s", "GB/s"] * 2:
            cells = [(name, word) for name, word in zip(names, words, strict=True)]
            by_name = {name: [word for each, word in cells if each == name] for name in names}
            if not all(by_name.get(name) for name in ("size", "time", "algbw", "busbw")):
                continue
            for form, (time, algbw, busbw) in enumerate(
                zip(by_name["time"], by_name["algbw"], by_name["busbw"], strict=False)
            ):
                if all(re.fullmatch(NUMBER, word) for word in (by_name["size"][0], time, algbw, busbw)):
                    found["row"].add((int(by_name["size"][0]), form == 1, float(time)))
                    found["rate"] |= {(float(time), float(algbw)), (float(time), float(busbw))}
                    if float(algbw) > LEAST and float(busbw) < 2 * float(algbw):  # of an all_reduce
                        found["ranks"].add(round(2 / (2 - float(busbw) / float(algbw))))
    return found


def _listed_ranks(text: str) -> Hashable:
    """Of a list of devices whose lines follow each other, and nothing else between them; None: it is torn."""
    lines = [line.strip() for line in re.split(r"size +count +type", text)[0].split("\n")]
    numbers = [int(found[1]) for line in lines if (found := DEVICE.fullmatch(line))]
    odd = any("Rank " in line and DEVICE.fullmatch(line) is None for line in lines)
    odd = odd or any(line and line[0] != "#" and line.endswith("HBM3") for line in lines)
    odd = odd or any(len(line) > 1 and "H100 80GB HBM3".endswith(line) for line in lines)
    return len(numbers) if numbers == list(range(len(numbers))) and not odd else None


def _claims_nccl_tests(imported: Imported) -> Iterator[tuple[str, Hashable]]:
    for row in imported.comm_rows:
        time = round((row.time_ns_mean or 0) / 1e3, 6)
        yield "row", (row.size_bytes, row.in_place, time)
        for rate in (row.algbw_bytes_per_s, row.busbw_bytes_per_s):
            if rate is not None and rate / 1e9 >= 1:
                yield "rate", (time, rate / 1e9)
        yield "ranks", row.world_size


_MEGATRON = re.compile(
    rf" iteration +(\d+)/ +\d+ \| consumed samples: +\d+ \| elapsed time per iteration \((ms|s)\): ({NUMBER}) \| "
    r"learning rate: \S+ \| global batch size: +(\d+) \|"
)
_LOSS = re.compile(rf" lm loss: ({NUMBER}E[+-]\d\d) \|")
_WORLD = re.compile(
    r"using world size: (\d+), data-parallel-size: \d+, tensor-model-parallel size: \d+, pipeline-.*: \d+"
)


def _megatron(text: str) -> Held:
    found: Held = defaultdict(set)
    for line in re.split(r"[\r\n]", text)[:-1]:
        if line.count("elapsed time") == 1 and (step := _MEGATRON.search(line)):
            found["step"].add(float(step[3]) * (1e6 if step[2] == "ms" else 1e9))
            found["loss"] |= {float(loss) for loss in _LOSS.findall(line)}
            found["batch"].add(int(step[4]))
        elif world := _WORLD.fullmatch(line):
            found["ranks"].add(int(world[1]))
    return found


_TITAN = re.compile(
    rf"\bstep: +(\d+) +loss: +([\d,.]+) +grad_norm: +[\d,.]+ +memory: +({NUMBER})GiB\({NUMBER}%\) +tps: +([\d,.]+) +"
    rf"(?:tflops: +(?:[\d,.]+ +mfu: +{NUMBER}%$|[^\n]*\Z)|\Z|[tflops]+\Z)"
)
"""Of a last line without its end, what stands before the next figure is whole."""


def _titan(text: str) -> Held:
    found: Held = defaultdict(set)
    for line in text.split("\n"):
        if line.count("step:") == 1 and (step := _TITAN.search(line)):
            found["rate"].add(float(step[4].replace(",", "")))
            found["loss"].add(float(step[2].replace(",", "")))
            found["memory"].add(round(float(step[3]) * 2**30))
    return found


_TIMER = re.compile(
    rf"\[\S+ \S+\] \[INFO\] \[timer\S+\] epoch=0/micro_step=\d+/global_step=\d+, RunningAvgSamplesPerSec={NUMBER}, "
    rf"CurrSamplesPerSec=({NUMBER}),"
)
_MEMORY = re.compile(rf"\bMaxMemAllocated=({NUMBER})GB")


def _deepspeed(text: str) -> Held:
    found: Held = defaultdict(set)
    for line in text.split("\n")[:-1]:
        if step := _TIMER.match(line):
            found["rate"].add(float(step[1]))
        found["memory"] |= {round(float(size) * 2**30) for size in _MEMORY.findall(line)}
    return found


def _means(values: set[Hashable]) -> set[Hashable]:
    """A median is a value, or the mean of two."""
    numbers = sorted(v for v in values if isinstance(v, float))[:MOST]
    return {round((a + b) / 2, 3) for a, b in combinations_with_replacement(numbers, 2)}


def _claims_runs(imported: Imported) -> Iterator[tuple[str, Hashable]]:
    for run in imported.runs:
        yield from _claims_run(imported.format, run)


def _claims_run(format: str, run: TrainingRun) -> Iterator[tuple[str, Hashable]]:  # noqa: A002
    if format == "megatron_log" and run.step_ns is not None:
        yield "step median", round(run.step_ns.value, 3)
    rate = run.rank_samples_per_s or run.samples_per_s
    if format != "megatron_log" and rate is not None:
        ranks = run.world_size if format == "torchtitan_log" and run.rank_samples_per_s is None else 1
        yield "rate median", round(rate.value / (ranks or 1), 3)
    if run.train_loss is not None:
        yield "loss", run.train_loss
    if run.peak_memory_bytes is not None:
        yield "memory", run.peak_memory_bytes
    if format == "megatron_log" and run.global_batch is not None:
        yield "batch", run.global_batch
    if format == "megatron_log" and run.world_size is not None:
        yield "ranks", run.world_size


_SAID = re.compile(r"\w+:\d+:\d+ \[\d+\] NCCL INFO (.*)")
_LINK = re.compile(r"Channel (\d+)/0 : (\d+)\[\d+\] -> (\d+)\[\d+\](?: \[(?:send|receive)\])? via (.+)")
_INIT = re.compile(
    r"ncclCommInitRank comm \S+ rank (\d+) nranks (\d+) cudaDev (\d+) nvmlDev \d+ busId (\S+) commId \S+ - Init \w+"
)
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


def _nccl(text: str) -> Held:
    found: Held = defaultdict(set)
    for line in text.split("\n")[:-1]:
        said = _SAID.fullmatch(line)
        if said is None:
            continue
        what = said[1].rstrip()
        if link := _LINK.fullmatch(what):
            found["link"].add((int(link[2]), int(link[3]), _transport(link[4])))
            found["channel"].add(int(link[1]))
        elif init := _INIT.fullmatch(what):
            found["rank"].add((int(init[1]), int(init[3]), init[4]))
            found["ranks"].add(int(init[2]))
        elif ring := re.fullmatch(r"Channel \d+/\d+ :((?:\s+\d+)+)", what):
            found["ring"].add(tuple(map(int, ring[1].split())))
        elif choice := _CHOICE.fullmatch(what):
            found["choice"].add((*(g.lower() for g in choice.groups()),))
        elif channels := re.fullmatch(r"(\d+) coll channels, .* (\d+) p2p channels, (\d+) p2p channels per peer", what):
            found["channels"].add((int(channels[1]), int(channels[2])))
    return found


def _transport(via: str) -> str:
    net = re.fullmatch(r"(NET/[^/]+)/\d+(?:/.*)?", via)
    return net[1] if net else via


def _claims_nccl(imported: Imported) -> Iterator[tuple[str, Hashable]]:
    assert imported.nccl is not None
    for communicator in imported.nccl.communicators:
        for rank in communicator.ranks:
            yield "rank", (rank.rank, rank.cuda_device, rank.bus_id)
        if communicator.nranks is not None:
            yield "ranks", communicator.nranks
        for link in communicator.links:
            yield "link", (link.source, link.destination, link.transport)
        for ring in communicator.rings:
            yield "ring", ring.ranks
        for each in communicator.choices:
            low, high = each.channels or (0, 0)
            parts = (each.op, each.low_bytes, each.algorithm, each.protocol, low, high)
            yield "choice", tuple(str(part).lower() for part in parts)
        if communicator.coll_channels is not None:
            yield "channels", (communicator.coll_channels, communicator.p2p_channels)


READERS: dict[str, tuple[Callable[[str], Held], Callable[[Imported], Iterator[tuple[str, Hashable]]]]] = {
    "nccl_tests": (_nccl_tests, _claims_nccl_tests),
    "nccl_debug": (_nccl, _claims_nccl),
    "megatron_log": (_megatron, _claims_runs),
    "torchtitan_log": (_titan, _claims_runs),
    "deepspeed_log": (_deepspeed, _claims_runs),
}


def false_claims(kind: str, imported: Imported, *texts: str) -> list[tuple[str, Hashable]]:
    """What is imported and in none of the texts: the log as it is, and as it was before its lines were torn apart."""
    read, claimed = READERS[kind]
    held: Held = defaultdict(set)
    for text in texts:
        for name, values in read(text).items():
            held[name] |= values
    for name in ("step", "rate"):
        held[f"{name} median"] = _means(held[name])
    return [
        (name, value)
        for name, value in claimed(imported)
        if value not in held[name] and not (name == "rate" and any(_alike(value, each) for each in held[name]))
    ]


def _alike(claim: Any, rate: Any) -> bool:
    """Where size and time have more digits than the printed rate, it is derived from them."""
    return bool(claim[0] == rate[0] and abs(claim[1] - rate[1]) <= ROUNDED)
