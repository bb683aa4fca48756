"""Which files are meant: folders, globs and names -> candidate trace files; and how good traces are made."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stepscope.core.errors import DataError, NoTraceError, unreadable
from stepscope.core.words import listed, nearest_path, url_of
from stepscope.traces.file_names import RANK_FOLDER, is_of_ranks, natural

if TYPE_CHECKING:
    from stepscope.traces.remote import RemoteFile

REPORTS = (".nsys-rep", ".qdrep")
"""Nsight Systems' own formats, which only nsys reads; the second is that of versions before 2021.4."""

SUFFIXES = (".json", ".json.gz", ".json.zst", ".sqlite")


def candidates(paths: Iterable[str | Path]) -> tuple[list[Path], set[Path]]:
    """Return the files to look at, in natural order, and those of them that were named one by one.

    A folder gives its trace-like files (not below it, except in one of ``TRACE_FOLDERS`` or in folders of ranks); a file
    that was named itself must be a trace, one found in a folder may be skipped. Raises DataError for a path that matches
    nothing.
    """
    traces: dict[Path, None] = {}
    named: set[Path] = set()
    for given in paths:
        if (url := url_of(given)) is not None:
            behind = _remote_files(url)
            named.update(cast("Path", file) for file in behind if not file.listed)
            traces.update((cast("Path", file), None) for file in behind)
            continue
        path = Path(given)
        if _is_folder(path):
            try:
                files = _files_in_folder(path)
            except OSError as error:
                raise unreadable(path, error) from error
            if not files:
                if next(path.glob("*.et"), None) is not None:
                    from stepscope.traces.other_files import CHAKRA, instead_of

                    raise NoTraceError(f"{path}: no trace files in this folder", why=CHAKRA, fix=instead_of(CHAKRA))
                raise NoTraceError(
                    f"{path}: no trace files in this folder",
                    why=f"none of its files ends in {', '.join(SUFFIXES)}",
                    fix=_inner_folders(path),
                )
        elif path.exists():
            if not path.is_file():
                raise DataError(
                    f"{path}: not a file",
                    why="it is a device, a pipe or a socket",
                    fix="write the trace to a file first",
                )
            files = [_readable_path(path)]
            named.update(files)
        else:
            matches = glob.glob(str(given), recursive=True)  # noqa: PTH207 - Path.glob refuses absolute patterns
            files = [Path(p) for p in sorted(matches, key=natural)]
            files = [_readable_path(f) for f in files if f.is_file()]
            if not files:
                raise DataError(
                    f"{given}: no such file or folder",
                    why=_why_path_missing(path),
                    fix=nearest_path(path, "check the path; a glob must match at least one file"),
                )
            named.update(files)
        traces.update(dict.fromkeys(files))
    return list(traces), named


def _remote_files(url: str) -> list[RemoteFile]:
    from stepscope.traces.remote import files_at

    files = sorted(files_at(url, RANK_FOLDER), key=lambda file: natural(file.url))
    if not files:
        raise NoTraceError(
            f"{url}: no trace files there",
            why="its listing names no .json, .json.gz or .json.zst, or the server lists nothing",
            fix="name the files one by one",
        )
    return files


def _readable_path(path: Path) -> Path:
    """Return the path itself, or for a report of Nsight Systems its export."""
    if path.suffix not in REPORTS:
        return path
    from stepscope.traces.nsys import exported

    return exported(path)


def _is_folder(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        if not glob.has_magic(str(path)):
            raise unreadable(path, error) from error
        return False
    except ValueError as error:  # a zero byte in the name
        raise DataError(f"{str(path)!r}: no such file or folder", why=str(error), fix="check the path") from error
    return path.is_dir()


ASCEND_VIEW = Path("ASCEND_PROFILER_OUTPUT", "trace_view.json")
"""In the folder that Ascend's profiler writes for a rank."""


TRACE_FOLDERS = ("trace", "traces", "profile_traces", "torch_profile", "torch_profiler", "profiler")
"""In a job's folder: where stepscope, torchtitan, Megatron-LM and others write its traces."""


def _files_in_folder(folder: Path) -> list[Path]:
    if (folder / ASCEND_VIEW).is_file():
        return [folder / ASCEND_VIEW]
    files = [f for f in folder.iterdir() if f.is_file() and f.name.endswith(SUFFIXES)]
    reports = sorted(f for suffix in REPORTS for f in folder.glob(f"*{suffix}"))
    files += [_readable_path(f) for f in reports if f.with_suffix(".sqlite") not in files]
    inner = [folder / name for name in TRACE_FOLDERS if (folder / name).is_dir()] if not files else []
    if len(inner) == 1:
        return _files_in_folder(inner[0])
    if not files:
        return in_rank_folders(folder) or _in_windows(folder)
    return sorted(files, key=_natural_key)


def in_rank_folders(folder: Path) -> list[Path]:
    """Return the trace files in the folder's folders of ranks; none where it is no folder."""
    if not folder.is_dir():
        return []
    ranks = sorted((d for d in folder.iterdir() if d.is_dir() and is_of_ranks(d)), key=_natural_key)
    return [file for rank in ranks for file in _files_in_folder(rank)]


WINDOW_FOLDER = re.compile(r"(step|iter|iteration|epoch|cycle|window|capture)[-_]?\d+", re.IGNORECASE)


def _in_windows(folder: Path) -> list[Path]:
    """Return the trace files in the folder's folders of windows: ``iteration_10``."""
    windows = sorted((d for d in folder.iterdir() if d.is_dir() and WINDOW_FOLDER.fullmatch(d.name)), key=_natural_key)
    return [file for window in windows for file in _files_in_folder(window)]


def _inner_folders(folder: Path) -> str:
    inner = [d.name for d in sorted(folder.iterdir()) if d.is_dir() and _has_traces(d)]
    if not inner:
        return how_to_record()
    return f"name one of the folders in it: {listed(inner, at_most=5)}"


def _has_traces(folder: Path) -> bool:
    try:
        return any(f.name.endswith(SUFFIXES) for f in folder.iterdir())
    except OSError:
        return False


def _natural_key(path: Path) -> list[tuple[int, str]]:
    return natural(path.name)


def _why_path_missing(path: Path) -> str:
    parent = path.parent
    if not parent.exists():
        return f"{parent} does not exist"
    near = [p.name for p in sorted(parent.iterdir()) if p.name.endswith(SUFFIXES)][:5]
    return f"{parent} holds {', '.join(near)}" if near else f"{parent} holds no trace files"


RECIPE = """\
from torch.profiler import profile, schedule
save = lambda p: p.export_chrome_trace(f"trace-rank{rank}.json.gz")
plan = schedule(wait=10, warmup=2, active=5, repeat=1)
with profile(schedule=plan, record_shapes=True, on_trace_ready=save) as prof:
    for batch in loader:
        train_step(batch); prof.step()
"""
"""Whole steps after warm-up, shapes for FLOP and sizes, one file a rank with the rank in its name."""


def how_to_record() -> str:
    """Say what to name, or how to record traces, as the fix of an error that found none."""
    indented = "".join(f"\n    {line}" for line in RECIPE.splitlines())
    return (
        "name the folder that holds the profiler's exports, one file per rank; without traces: `stepscope profile -- "
        f"COMMAND`, or in the training script{indented}"
    )
