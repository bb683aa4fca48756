"""Judgements on how jobs and cells end, with all that they are made from, kept as JSON that names no class of ours.

``python -m tests.corpus.capturing FILE WORDS...``   a stepscope command, each of whose judgements becomes a line of FILE
``pytest -p tests.corpus.capturing PATHS``           the same of tests, into the file CAPTURED names
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """A value as JSON: a dataclass as the dict of its fields, a mapping as a list of [key, value] unless keys are texts."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: plain(each) for key, each in value.items()}
        return [[plain(key), plain(each)] for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return [plain(each) for each in sorted(value)]
    return value if isinstance(value, str | float | bool | None) else int(value)


def cell_answer(status: Any) -> dict[str, Any]:
    """A cell's status record, as far as it is judged."""
    of = {"rank": "failing_rank", "host": "failing_host"}
    return {
        key: getattr(status, of.get(key, key)) for key in ("status", "rank", "host", "phase", "reason", "exception")
    }


def capture(file: Path) -> None:
    """From here on, judgements are kept in ``file``. Before the modules that use them are imported."""
    from stepscope.launch import hang_watch
    from stepscope.launch.ends import cell, job
    from stepscope.results.profiled_job import end_sentence

    last: dict[str, Any] = {}

    def kept(kind: str, given: Any, answer: Any, **more: str) -> None:
        line = {"kind": kind, "given": plain(given), "answer": plain(answer), **more}
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def wrapped(function: Callable[..., Any], then: Callable[[Any, Any], None]) -> Callable[..., Any]:
        def call(*facts: Any, **given: Any) -> Any:
            answer = function(*facts, **given)
            then(given or facts[0], answer)
            return answer

        return call

    def cell_status(end: Any, cell_id: str, *, original: Callable[..., Any] = cell.cell_status) -> Any:
        status = original(end, cell_id)
        kept("cell", last["given"], cell_answer(status))
        return status

    hang_watch.explain = wrapped(hang_watch.explain, lambda given, answer: kept("hang", given, answer))
    job.job_end = wrapped(job.job_end, lambda given, answer: kept("job", given, answer, sentence=end_sentence(answer)))
    cell.cell_evidence = wrapped(cell.cell_evidence, lambda given, _: last.update(given=given))
    cell.cell_status = cell_status


def main() -> None:
    """Run the command."""
    from stepscope.cli.main import main as command

    capture(Path(sys.argv[1]))
    sys.argv = ["stepscope", *sys.argv[2:]]
    command(sys.argv[1:])


if __name__ == "__main__":
    main()
elif "CAPTURED" in os.environ:
    capture(Path(os.environ["CAPTURED"]))
