"""Tables of profilers: torch.profiler's ``key_averages()``, and Lightning's simple one.

Of torch's the shares of the device's own time by operator are taken over, which hidden communication is in, too; a step
is its ``ProfilerStep*``. Of Lightning's what is done once a batch is the step, in its parts. Names of actions differ by
version; what stands before the last dot says whose they are. From 1.2 on a step of the optimizer holds forward and
backward, which are taken off.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.store.columns import number
from stepscope.store.importer import Candidate
from stepscope.store.log_lines import SUFFIXES, LogLines, without_prefix
from stepscope.store.training_runs import each_file, label

_TORCH = re.compile(rb"\bSelf CPU(?: total)? %[\s|]+Self CPU\b")
_COLUMN = re.compile(r"(?:#|Number) of Calls|(?:Self )?[A-Z]\w+(?: (?:total|time|avg|Mem))*(?: %)?")
_ROW_OF_TORCH = re.compile(r"^[\s|]*(?P<name>.*?)[\s|]+(?P<cells>-?[\d.]+%.*)$")
_BETWEEN = re.compile(r"[\s|]+(?![KMGT]?b\b)", re.IGNORECASE)
_UNITS = {"%": 0.01, "us": 1e3, "ms": 1e6, "s": 1e9}
_KERNEL = re.compile(r"(?:void )?[nr]ccl\w*Kernel|void deep_ep::")
_COLLECTIVE = re.compile(r"(?:[nr]ccl|gloo|hccl|xccl|mpi):|c10d::")
_ON_DEVICE = re.compile(r"Memcpy |Memset |void |[nr]ccl\w*Kernel")
_COPY = re.compile("Memcpy ")
_STEP = "ProfilerStep*"
_LOADER = re.compile(r"enumerate\(DataLoader\)|\[pl\].*(?:train_dataloader|get_train_batch)")
_SPAN = re.compile(r"ProfilerStep|Optimizer\.|enumerate\(|## |\[pl\]|.*\.py\(\d+\): |<built-in|nn\.Module: ")
_NAMED = 6
"""Operators whose share is kept."""
_LEAST = 0.005
_ALL = 0.01
"""A sum of shares this near to 1 is all of them."""

_HEAD = re.compile(rb"\bAction\s*\|\s*Mean duration \(s\)\s*\|")
_NUMBER = rb"\d+(?:\.\d+)?(?:e[+-]\d+)?"
_ROW = re.compile(
    rb"^[|\s]*(?P<whose>\[[^|]*\.)?(?P<action>[a-z_]+?)(?:_\d+)?\s*\|\s*(?P<mean>" + _NUMBER + rb")\s*\|"
    rb"(?:\s*(?P<calls>\d+)\s*\|)?\s*(?P<total>" + _NUMBER + rb")\s*(?:\||$)"
)
_DATA = ("get_train_batch", "train_dataloader_next")
_FORWARD, _BACKWARD = ("model_forward", "training_step"), ("backward", "model_backward")
_CLOSURE = ("optimizer_step_and_closure", "optimizer_step_with_closure")
_BATCH = "run_training_batch"


def _seconds_and_calls(path: Path) -> dict[str, tuple[float, int]]:
    """Return total seconds and calls by action. Raises DataError for a file that cannot be read."""
    rows: dict[str, tuple[float, int]] = {}
    for _, line in LogLines(path):
        if match := _ROW.search(without_prefix(line)[1]):
            action, total, mean = match["action"].decode(), float(match["total"]), float(match["mean"])
            calls = int(match["calls"] or (round(total / mean) if mean else 0))
            if match["whose"] and action == "optimizer_step":
                action = _CLOSURE[0]
            before = rows.get(action, (0.0, 0))
            rows[action] = before[0] + total, max(before[1], calls)
    return rows


class _Row(NamedTuple):
    """A row of torch's table. share: of the device's own time, of the CPU's where no device has any. cpu_ns: of all calls;
    0 for what runs on the device: kernels, and spans that annotations have there."""

    name: str
    share: float
    cpu_ns: float
    calls: int


def _cell_amount(cell: str) -> float:
    """Return a share, ns or a count; 0 where nothing can be read."""
    value, unit = number(cell) or (0.0, "")
    return value * _UNITS.get(unit, 1.0)


def _profiler_tables(path: Path) -> Iterator[tuple[str, list[_Row]]]:
    """Yield (whose time shares are of: ``CUDA``, ``CPU``, rows) of each table. Raises DataError for an unreadable file."""
    tables: list[tuple[list[str], list[dict[str, str]]]] = []
    of: dict[int | None, int] = {}
    for _, raw in LogLines(path):
        who, line = without_prefix(raw)
        if head := _TORCH.search(line):
            of[who] = len(tables)
            tables.append((_COLUMN.findall(line[head.start() :].decode(errors="replace")), []))
        elif who in of and (match := _ROW_OF_TORCH.match(line.decode(errors="replace"))):
            columns, rows = tables[of[who]]
            cells = _BETWEEN.split(match["cells"].strip())
            rows.append({"Name": match["name"], **dict(zip(columns, cells, strict=False))})
    for columns, rows in tables:
        shares = [name for name in columns if name.endswith("%") and not name.startswith("CPU")]
        rows = [row for row in rows if shares[-1] in row]
        own = next((name for name in reversed(shares) if any(_cell_amount(row[name]) for row in rows)), shares[0])
        yield (
            own.split()[1] if own.startswith("Self") else own.split()[0],
            [
                _Row(
                    row["Name"],
                    _cell_amount(row[own]),
                    _cell_amount(row.get("CPU total", "")),
                    int(_cell_amount(row.get("# of Calls", "") or row.get("Number of Calls", ""))),
                )
                for row in rows
            ],
        )


def _torch_run(path: Path) -> TrainingRun:
    """Return what torch.profiler's table says: of several the one that most shares are in. Raises DataError where no row
    is whole."""
    device, rows = max(_profiler_tables(path), key=lambda table: sum(row.share for row in table[1]), default=("", []))
    host = [row for row in rows if row.cpu_ns]
    names = {row.name for row in host}
    there = [row for row in rows if not row.cpu_ns]
    kernels = [row for row in there if not (row.name in names or _SPAN.match(row.name) or _COLLECTIVE.match(row.name))]
    spans = sum(row.share for row in there) - sum(row.share for row in kernels)

    def of(rows: Iterable[_Row], form: re.Pattern[str]) -> float:
        return sum(row.share for row in rows if form.match(row.name))

    # Up to torch 2.3 the spans that annotations have on the device count in the sum that shares are of.
    whole = 1 - spans if kernels and abs(sum(row.share for row in there) - 1) < _ALL else 1.0
    sums = {
        "communication": max(of(kernels, _KERNEL), of(host, _COLLECTIVE), of(there, _COLLECTIVE)),
        "copies": of(kernels, _COPY),
    }
    steps = next((row for row in host if row.name == _STEP and row.calls), None)
    timed = [row for row in host if row.share > _LEAST and not _SPAN.match(row.name)]
    operators: defaultdict[str, float] = defaultdict(float)
    for row in timed or kernels:
        operators[row.name] += row.share
    largest = sorted(operators.items(), key=lambda item: -item[1])[:_NAMED]
    cut = device == "CPU" and any(_ON_DEVICE.match(row.name) for row in rows)
    if cut or (not largest and steps is None):
        raise DataError(
            f"{path}: no operator's time in torch.profiler's table",
            why="its rows or columns were cut off, or all of them are Python functions",
            fix="print(prof.key_averages().table(sort_by='self_cpu_time_total'))",
        )
    step_ns = steps.cpu_ns / steps.calls if steps else 0.0
    data_ns = sum(row.cpu_ns for row in host if _LOADER.match(row.name)) / steps.calls if steps else 0.0
    return TrainingRun(
        run_id=path.stem,
        label=label(None, None),
        group=f"{path.stem} (torch.profiler's table)",
        source=f"{path}:1",
        status="ok",
        world_size=None,
        device=device.lower(),
        step_ns=Measured(value=step_ns) if steps else None,
        parts_ns={"data": data_ns, "other": step_ns - data_ns} if 0 < data_ns < step_ns else {},
        device_shares={name: share / whole for name, share in (*sums.items(), *largest) if share > 0},
    )


def _lightning_run(path: Path) -> TrainingRun:
    """Return what Lightning's table says: mean ns of a batch and its parts."""
    rows = _seconds_and_calls(path)

    def took(*names: str) -> float:
        return next((rows[name][0] for name in names if name in rows), 0.0)

    batches = next((rows[name][1] for name in (_BATCH, *_DATA, *_FORWARD, *_BACKWARD) if name in rows), 0)
    data, backward = took(*_DATA), took(*_BACKWARD)
    forward = took(*_FORWARD) or max(took("training_step_and_backward") - backward, 0.0)
    optimizer = took("optimizer_step") or max(took(*_CLOSURE) - forward - backward, 0.0)
    named = {"data": data, "forward": forward, "backward": backward, "optimizer": optimizer}
    whole = max(data + took(_BATCH), sum(named.values()))
    if not batches or not whole:
        raise DataError(f"{path}: no action of a training batch", why="the profiler's table names none, or was cut off")
    parts = {key: 1e9 * seconds / batches for key, seconds in named.items() if seconds}
    return TrainingRun(
        run_id=path.stem,
        label=label(None, None),
        group=f"{path.stem} (Lightning's profiler)",
        source=f"{path}:1",
        status="ok",
        world_size=None,
        step_ns=Measured(value=1e9 * whole / batches, n=batches),
        parts_ns=parts | {"other": 1e9 * whole / batches - sum(parts.values())},
        notes=("step: getting a batch and running it, means of the profiler's table",),
    )


def _read_profiler_table(path: Path) -> tuple[Imported]:
    of = _torch_run if _TORCH.search(Candidate(path).head) else _lightning_run
    return (Imported(format="profiler_table", path=str(path), runs=(of(path),)),)


IMPORTER = each_file(
    "profiler_table",
    recognises=lambda file: (
        file.path.suffix.lower() in SUFFIXES and any(head.search(file.head) for head in (_TORCH, _HEAD))
    ),
    read=_read_profiler_table,
    reads=SUFFIXES,
    title="table of torch.profiler (key_averages) or of Lightning's simple profiler",
    rank=57,
    marks=("Self CPU", "Mean duration (s)"),
)
