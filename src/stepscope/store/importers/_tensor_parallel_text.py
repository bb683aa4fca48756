"""What the notebook on tensor parallelism prints: a block a run, and a table of all-reduce times by size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.records.training import TrainingRun
from stepscope.store.importers._collectives import comm_row
from stepscope.store.importers._texts import Line
from stepscope.store.importers._training import MIB, MS, label, measured

_BLOCK = re.compile(r"^ +(BASELINE \(No Tensor Parallelism\)|TENSOR PARALLELISM) - (\d{1,6}) GPUs?\s*$")
_FIELD = re.compile(r"^ +([A-Z][A-Za-z]*(?: [A-Z][A-Za-z]*){0,3}) {2,}(\S+)\s*$")
_RULE = re.compile(r"^\s*[=-]{10,}\s*$")
_NEEDED = (
    "Params Per Gpu",
    "Mem Model Mb",
    "Mem Peak Mb",
    "Fwd Ms",
    "Bwd Ms",
    "Step Ms",
    "Tokens Per Sec",
    "Loss",
)
_SIZES = re.compile(r"^ +ALL-REDUCE LATENCY \(TP=(\d{1,6})\)\s*$")
_SIZE_ROW = re.compile(r"^ +(\S.*?) {2,}([\d,]+) +([\d.]+) +([\d.]+)\s*$")
_TITLE_ROW = re.compile(r"^ +Size +Elements +MB +Time \(us\)\s*$")
_MEGA = {"MB": 1e6, "MiB": 2.0**20}
_ELEMENTS = (1, 2, 4, 8)
_HALF_DIGIT = 0.005
_FP32_BYTES = 4
_IS_MIB = "its MB of memory are MiB: as 1e6 bytes the model would be smaller than its fp32 parameters"
_UNKNOWN_MB = "whether its MB of memory are 1e6 or 2^20 bytes cannot be told: no peak memory"


def known(text: str) -> bool:
    """Whether a text holds such blocks or the table."""
    lines = text.splitlines()
    return any(_BLOCK.match(line) or _SIZES.match(line) for line in lines)


def runs_of(path: Path, text: str) -> tuple[TrainingRun, ...]:
    """One run for each block; the one without tensor parallelism is the baseline. Raises DataError."""
    lines = text.splitlines()
    blocks = [
        (number, found, _fields(path, lines, number))
        for number, line in enumerate(lines, start=1)
        if (found := _BLOCK.match(line))
    ]
    plain = [fields for _, found, fields in blocks if found[1].startswith("BASELINE")]
    if len(plain) > 1:
        raise DataError(f"{path}: {counted(len(plain), 'block')} without tensor parallelism", why="one was expected")
    base = plain[0] if plain else None
    return tuple(_run(path, number, _ranks(path, number, found[2]), fields, base) for number, found, fields in blocks)


def comm_rows_of(path: Path, text: str) -> tuple[CommRow, ...]:
    """The table of all-reduce times. Raises DataError."""
    lines = text.splitlines()
    found = []
    for start, line in enumerate(lines):
        if title := _SIZES.match(line):
            found += _sizes(path, lines, start, _ranks(path, start + 1, title[1]))
    return tuple(found)


def _ranks(path: Path, number: int, text: str) -> int:
    return Line(str(path), number, (text,)).count(0, "number of GPUs")


def _fields(path: Path, lines: Sequence[str], number: int) -> dict[str, Line]:
    """Values by name of the block whose title stands in line ``number``."""
    found: dict[str, Line] = {}
    for at, line in enumerate(lines[number:], start=number + 1):
        if _RULE.match(line):
            if found:
                break
            continue
        if field := _FIELD.match(line):
            found[field[1]] = Line(str(path), at, (field[2],))
    absent = [name for name in _NEEDED if name not in found]
    if absent:
        raise DataError(
            f"{path}:{number}: the block has no {', '.join(absent)}",
            why="the text was cut",
            fix="copy the notebook's output again",
        )
    return found


def _run(path: Path, number: int, gpus: int, fields: dict[str, Line], base: dict[str, Line] | None) -> TrainingRun:
    is_base = base is fields
    step_ms, rate = _positive(fields, "Step Ms"), _positive(fields, "Tokens Per Sec")
    strategy = "single" if is_base else "tensor_parallel"
    memory = _peak_bytes(fields)
    return TrainingRun(
        run_id=f"{path.stem}-{strategy}-{gpus}",
        label=label(strategy, gpus),
        group="model with and without tensor parallelism",
        source=f"{path}:{number}",
        status="ok",
        world_size=gpus,
        strategy=strategy,
        scaling="strong" if base is not None and not is_base and _same_tokens(fields, base) else None,
        baseline_id=None if base is None else f"{path.stem}-single-1",
        device="cuda",
        num_parameters=int(_positive(fields, "Params Per Gpu")) if is_base else None,
        step_ns=measured(step_ms, scale=MS),
        samples_per_s=measured(rate),
        unit="tokens",
        train_loss=fields["Loss"].amount(0, "Loss"),
        peak_memory_bytes=memory,
        settings={
            "params_per_gpu": int(_positive(fields, "Params Per Gpu")),
        },
        notes=(
            _IS_MIB if memory is not None else _UNKNOWN_MB,
            f"forward {_positive(fields, 'Fwd Ms'):g} ms, backward {_positive(fields, 'Bwd Ms'):g} ms",
        ),
    )


def _same_tokens(one: dict[str, Line], other: dict[str, Line]) -> bool:
    """Whether both do as many tokens a step, within the digits of their step times."""
    tokens = [_positive(each, "Tokens Per Sec") * _positive(each, "Step Ms") for each in (one, other)]
    slack = sum(_HALF_DIGIT / _positive(each, "Step Ms") for each in (one, other))
    return abs(tokens[0] / tokens[1] - 1) <= slack


def _peak_bytes(fields: dict[str, Line]) -> int | None:
    """Peak memory where the model's own memory shows that MB stands for MiB; None where it does not."""
    least, model = _positive(fields, "Params Per Gpu") * _FP32_BYTES, _positive(fields, "Mem Model Mb")
    return round(_positive(fields, "Mem Peak Mb") * MIB) if model * 1e6 < least <= model * MIB else None


def _positive(fields: dict[str, Line], name: str) -> float:
    return fields[name].positive(0, name)


def _sizes(path: Path, lines: Sequence[str], start: int, world_size: int) -> list[CommRow]:
    rows: list[Line] = []
    titled = False
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        if _TITLE_ROW.match(line):
            titled = True
        elif titled and (row := _SIZE_ROW.match(line)):
            rows.append(Line(str(path), number, row.groups()))
        elif rows:
            break
    if not rows:
        raise DataError(f"{path}:{start + 1}: no rows under the title", why="the text was cut")
    width, unit = _element(rows)
    note = (
        f"a MB in it is {_MEGA[unit]:.0f} bytes and an element has {width} bytes: the only reading that fits all rows"
    )
    return [
        comm_row(
            cell_id=f"{path.stem}/all_reduce",
            op="all_reduce",
            world_size=world_size,
            dtype=f"{width}-byte type",
            device="cuda",
            backend="unknown",
            size_bytes=row.count(1, "Elements") * width,
            time_ns_mean=row.positive(3, "Time (us)") * 1e3,
            numel=row.count(1, "Elements"),
            notes=(note, "the text does not say whether times are means, nor over how many calls"),
        )
        for row in rows
    ]


def _element(rows: Sequence[Line]) -> tuple[int, str]:
    """(bytes of an element, what MB means) that fit every row; raises DataError unless exactly one pair does."""
    fitting = [
        (width, unit)
        for width in _ELEMENTS
        for unit, scale in _MEGA.items()
        if all(
            abs(row.count(1, "Elements") * width / scale - row.amount(2, "MB")) <= _HALF_DIGIT * 1.01 for row in rows
        )
    ]
    if len(fitting) != 1:
        raise DataError(
            f"{rows[0].where}: sizes cannot be told",
            why="no element size fits both columns" if not fitting else f"several fit: {fitting}",
            fix="measure larger sizes",
        )
    return fitting[0]
