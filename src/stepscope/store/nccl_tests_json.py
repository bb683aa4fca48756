"""What nccl-tests writes with ``-J FILE``: the same run as its table, with all digits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.store.json_fields import finite, read_json, whole
from stepscope.store.nccl_tests_log import MAX_ROWS, Log, LoggedDevice, LoggedFigures, LoggedRow, LoggedRun

_PROGRAM = re.compile(r"(\w+)_perf$")


def is_json(text: str) -> bool:
    """Whether the beginning of a file is that of such a document."""
    return text.lstrip()[:1] == "{" and '"nccl_version"' in text and '"minimum_bytes"' in text


def read_json_run(path: Path) -> Log:
    """The run of the file; no table where it has no result. Raises DataError for what nccl-tests does not write."""
    document = read_json(path)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not isinstance(document.get("config"), dict):
        return Log(tables=(), nccl_lines=0, lines=0)
    if len(results) > MAX_ROWS:
        raise DataError(f"{path}: more than {MAX_ROWS} results", why="no nccl-tests job writes that many")
    config = document["config"]
    run = LoggedRun(
        threads=whole(config.get("nthreads")),
        gpus=whole(config.get("ngpus")),
        warmup=whole(config.get("warmup_iters")),
        iterations=whole(config.get("iterations")),
        together=whole(config.get("aggregated_iterations")) or 1,
        started=_program(document, results),
        devices=_devices(document.get("devices") or config.get("devices"), config),
        cpu_time="cpu_time" in str(results[:1]),
        ended=True,  # a document that was cut off is none
    )
    bounds, average = document.get("out_of_bounds"), document.get("average_bus_bandwidth")
    run.out_of_bounds = whole(bounds.get("count")) if isinstance(bounds, dict) else None
    mean = finite(average.get("bandwidth")) if isinstance(average, dict) else None
    run.average = None if mean is None else f"{mean:.12g}"
    if version := whole(document.get("nccl_version")):
        run.libraries.append(f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100}")
    for number, result in enumerate(results, start=1):
        row = _row(result, number)
        if row is None:
            run.torn.append(number)
        else:
            run.rows.append(row)
    return Log(tables=(run,) if run.rows else (), nccl_lines=0, lines=0)


def _program(document: dict[str, Any], results: list[Any]) -> str | None:
    args = document.get("args")
    named = [found[1] for word in args if (found := _PROGRAM.search(str(word)))] if isinstance(args, list) else []
    if named:
        return named[0]
    first = results[0].get("experiment_name") if results and isinstance(results[0], dict) else None
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", first).lower() if isinstance(first, str) else None


def _devices(given: Any, config: dict[str, Any]) -> dict[int, LoggedDevice]:
    """By rank. Without MPI, and of each of its processes, only the first of several ranks is written: the others are on
    the same host."""
    found: dict[int, LoggedDevice] = {}
    ranks = max(1, (whole(config.get("nthreads")) or 1) * (whole(config.get("ngpus")) or 1))
    listed = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    for each in listed:
        if (rank := whole(each.get("rank"))) is not None and 0 <= rank < MAX_ROWS:
            device = LoggedDevice(
                str(each.get("hostname")), str(each.get("device_info")).strip(), whole(each.get("group")) or 0
            )
            found[rank] = device
    for rank in sorted(found):
        for other in range(rank + 1, rank + min(ranks, 1024) if rank % ranks == 0 else rank):
            found.setdefault(other, found[rank])
    return found


def _row(result: Any, number: int) -> LoggedRow | None:
    if not isinstance(result, dict):
        return None
    size, count, dtype = whole(result.get("size")), whole(result.get("count")), result.get("type")
    out, into = _figures(result.get("out_of_place")), _figures(result.get("in_place"))
    root = str(result.get("root", -1)).strip()
    if size is None or count is None or not isinstance(dtype, str) or (out is None and into is None):
        return None
    redop = str(result.get("redop") or "none").strip()
    none = LoggedFigures(None, None, None, None)
    return LoggedRow(
        line=number,
        size_bytes=size,
        count=count,
        dtype=dtype.strip(),
        redop=None if redop == "none" else redop,
        root=int(root) if re.fullmatch(r"-?\d{1,7}", root) else -1,
        out_of_place=out or none,
        in_place=into or none,
    )


def _figures(given: Any) -> LoggedFigures | None:
    """None where it was not measured (null)."""
    if not isinstance(given, dict):
        return None
    time = finite(given.get("time", given.get("cpu_time")))
    algbw, busbw = finite(given.get("alg_bw")), finite(given.get("bus_bw"))
    wrong = finite(given.get("nwrong"))
    return LoggedFigures(_text(time), _text(algbw), _text(busbw), None if wrong is None else f"{wrong:.0f}")


def _text(value: float | None) -> str | None:
    return None if value is None or not 0 <= value < 1e15 else f"{value:.12f}"
