"""Texts of other programs that are no results of a job: what each is, what it says, and what to give instead. One table.

A refusal names what the text is. What no entry knows is refused with its first line that looks like an error.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.store.importer import head_of
from stepscope.store.log_lines import SUFFIXES, without_colours

_LOOKED_AT = 1 << 16
_SHOWN = 160


@record
class KnownText:
    """mark: what its beginning holds. title: what it is. says: pattern whose groups fill ``saying``, where it is there.

    instead: what to give, or to do.
    """

    mark: bytes
    title: str
    instead: str
    says: bytes | None = None
    saying: str = ""


_AS_TABLE = "figures of runs: write one row per run as CSV, with columns such as gpus,strategy,step_time_ms"
_STATE = "give the output of nvidia-smi -q, taken while the job runs"
_PROFILE = "take a profile of the job: stepscope profile -- COMMAND"

KNOWN = (
    KnownText(
        mark=rb"train_runtime(?:': | +=)|'learning_rate': \S+, 'epoch': ",
        title="loss and summary of the Hugging Face Trainer, without times of steps",
        instead="give trainer_state.json (LLaMA-Factory: trainer_log.jsonl) of its folder, or the log with progress bars",
        says=rb"train_steps_per_second\W+(?P<rate>[\d.]+)", saying="{rate} steps/s over its whole runtime",
    ),
    KnownText(
        mark=rb"Profile stats for: ", title="report of Lightning's advanced profiler (cProfile)",
        instead="give the table of its simple one: Trainer(profiler='simple')",
        says=rb"Profile stats for: \S*(?:get_train_batch|train_dataloader_next)\S*[^P]*?\sin (?P<seconds>[\d.]+) seconds",
        saying="getting batches takes {seconds} s of all; how many there were, it does not say",
    ),
    KnownText(
        mark=rb"PyTorch CUDA memory summary|\| Cur Usage +\| Peak Usage +\||CUDA OOMs: \d",
        title="PyTorch's memory summary (torch.cuda.memory_summary)",
        instead="give a snapshot of the memory: torch.cuda.memory._dump_snapshot('memory.pickle')",
        says=rb"CUDA OOMs: (?P<ooms>\d+)\W+cudaMalloc retries: (?P<retries>\d+)[\s\S]*?Allocated memory[ |]+\d+ \w+ +\|"
        rb"\s*(?P<peak>\d+ \w+)",
        saying="peak {peak} allocated; {ooms} requests failed, {retries} times the cache was freed to try again",
    ),
    KnownText(
        mark=rb"\d\.\d\d% +[\d.]+(?:us|ms|s) +\d+\.\d\d% +[\d.]+(?:us|ms|s) ",
        title="rows of torch.profiler's table without its header", instead="give the whole table, from its line of names on",
    ),
    KnownText(
        mark=rb"# gpu +pwr|(?m:^# gpu\s.*\bsm\b)", title="samples of nvidia-smi dmon", instead=_STATE,
    ),
    KnownText(
        mark=rb"Link \d+: (?:[\d.]+ GB/s|<inactive>)", title="state of NVLinks (nvidia-smi nvlink -s)",
        instead="measure them: nvbandwidth -t device_to_device_memcpy_read_ce, and give its output",
        says=rb"Link (?P<link>\d+): <inactive>", saying="link {link} is inactive",
    ),
    KnownText(
        mark=rb"LnkSta:", title="output of lspci", instead=_STATE,
        says=rb"LnkSta:\s*(?P<state>[^\n]*\(downgraded\)[^\n]{0,40})", saying="{state}",
    ),
    KnownText(
        mark=rb"CUDA Bandwidth Test|Memory Transfers\s+Transfer Size", title="output of bandwidthTest of the CUDA samples",
        instead="measure with nvbandwidth, and give its output",
        says=rb"Host to Device Bandwidth[\s\S]*?\n\s*\d+\s+(?P<rate>[\d.]+)", saying="{rate} GB/s from the host",
    ),
    KnownText(
        mark=rb"ROCm System Management Interface|AMD-SMI|GPU +XCP +METRIC", title="output of rocm-smi or amd-smi",
        instead="see clocks and links of the machine: stepscope doctor",
    ),
    KnownText(
        mark=rb"port \d+ ==> \S+ \((?:Up|Down)\)", title="list of ports (ibdev2netdev)", instead="give the output of ibstat",
        says=rb"(?P<port>\S+ port \d+) ==> \S+ \(Down\)", saying="{port} is down",
    ),
    KnownText(
        mark=rb"t_(?:avg|typical)\[usec\]", title="latencies of perftest (ib_write_lat and its kin)",
        instead="give the output of ib_write_bw: a slow link shows in its bandwidth",
    ),
    KnownText(
        mark=rb"DDP Initialized with|DDP logging data",
        title="settings of DistributedDataParallel (TORCH_DISTRIBUTED_DEBUG)",
        instead=f"these are settings without times; {_PROFILE}",
        says=rb"world_size: (?P<ranks>\d+)", saying="{ranks} ranks",
    ),
)  # fmt: skip

_ERROR = re.compile(rb"(?i)^.*(?:\berror\b|exception|fatal|failed|killed|traceback|\bWARN\b).*$", re.M)
_LOSS = re.compile(rb"(?i)loss\"?'?\s?[:= ]\s*'?-?\d")
_TABLE = re.compile(rb"^[^\n,\t|]+(?:[,\t|][^\n,\t|]*){2,}$", re.M)


def refusal(path: Path, *, why: str) -> DataError:
    """Return the error for a file that nothing reads. why: nothing does."""
    head = without_colours(head_of(path, _LOOKED_AT))
    for entry in KNOWN:
        if re.search(entry.mark, head):
            match = None if entry.says is None else re.search(entry.says, head)
            groups = {} if match is None else match.groupdict()
            facts = {name: text.decode(errors="replace") for name, text in groups.items()}
            says = f" ({entry.saying.format_map(facts)})" if facts else ""
            return DataError(f"{path}: {entry.title}{says}", why="stepscope does not read it", fix=entry.instead)
    first = _ERROR.search(head)
    if first is not None:
        line = first[0].decode(errors="replace").strip()[:_SHOWN]
        return DataError(
            f"{path}: a text in which nothing is understood",
            why=f"its first line that looks like an error is: {line}",
            fix="give the whole log of the rank that failed first; docs/reference/importers.md lists what is read",
        )
    if len(_LOSS.findall(head)) > 1:
        return DataError(
            f"{path}: a log of a training in which no time is understood",
            why="its lines hold losses, and no time of a step, no rate, no error: nothing of its speed is in it",
            fix=_PROFILE,
        )
    tabular = path.suffix.lower() not in SUFFIXES and len(_TABLE.findall(head)) > 1
    return DataError(
        f"{path}: not a format that stepscope reads",
        why="no line of it has a form that stepscope knows" if path.suffix.lower() in SUFFIXES else why,
        fix=f"{_AS_TABLE}; docs/reference/importers.md lists the formats"
        if tabular
        else f"docs/reference/importers.md lists the formats; of a job of your own, {_PROFILE}",
    )
