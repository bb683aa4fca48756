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


def captured(judge: Callable[..., Any], kind: str, file: Path) -> Callable[..., Any]:
    """``judge``, which also appends what it was given and what it answered."""

    def judged(*facts: Any, **given: Any) -> Any:
        answer = judge(*facts, **given)
        line = {"kind": kind, "given": plain(facts[0] if facts else given), "answer": plain(answer)}
        if kind == "job":
            from stepscope.results.profiled_job import end_sentence

            line["sentence"] = end_sentence(answer)
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        return answer

    return judged


def capture(file: Path) -> None:
    """From here on, judgements are kept in ``file``. Before the modules that use them are imported."""
    from stepscope.launch import hang_watch, job_end, verdict

    hang_watch.explain = captured(hang_watch.explain, "hang", file)
    job_end.judge_end = captured(job_end.judge_end, "job", file)
    verdict.judge = captured(verdict.judge, "cell", file)


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
