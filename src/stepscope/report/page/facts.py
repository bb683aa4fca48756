"""What it ran on, what was asked for, and where everything comes from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from stepscope.machine.overview import Section, overview
from stepscope.records.cell import RunRecord
from stepscope.report import files_found
from stepscope.results.evidence import Evidence

MAX_NOTES = 200
KIND_WORDS = {"bench": "stepscope bench", "comm": "stepscope comm", "trace": "traces", "imported": "imported"}


def environment_sections(evidence: Evidence) -> tuple[Section, ...]:
    """As `doctor` prints them; empty where the machine was not recorded, or differs between sources."""
    return () if evidence.environment is None else overview(evidence.environment)


def configurations(evidence: Evidence) -> tuple[tuple[str, str, str], ...]:
    """For each run folder: its name, the commands that made it, and its resolved matrix as YAML."""
    return tuple((record.name, "\n".join(_commands(record)), _yaml(record.matrix)) for record in evidence.records)


def _commands(record: RunRecord) -> list[str]:
    return [shlex.join(argv) for argv in record.commands or ((record.argv,) if record.argv else ())]


def _yaml(matrix: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(_plain(matrix), sort_keys=False, allow_unicode=True, width=100)


def _plain(value: Any) -> Any:
    """Mappings and sequences of any kind as those that YAML knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def sources(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """Path and what it was read as; then the files of folders of mixed files, and whether they were read."""
    paths = [
        (str(source.path), source.format or KIND_WORDS.get(source.kind, source.kind)) for source in evidence.sources
    ]
    return (*paths, *((text, state) for state, text in files_found.lines(evidence)))


def notes(evidence: Evidence) -> tuple[str, ...]:
    """What was repaired, left out or assumed on the way, of every source; each once."""
    said = list(evidence.said)
    for trace in evidence.traces:
        many = len(evidence.traces) > 1
        for note in trace.summary.notes:
            said.append(f"{trace.name}: {note.text}" if many else note.text)
        for found in trace.summary.ranks:
            where = f"{trace.name}, " if many else ""
            said += [f"{where}rank {found.facts.rank}: {note.text}" for note in found.notes]
    unique = list(dict.fromkeys(said))
    more = len(unique) - MAX_NOTES
    return (*unique[:MAX_NOTES], *((f"and {more} more",) if more > 0 else ()))
