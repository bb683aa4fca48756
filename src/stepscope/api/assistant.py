"""The questions that an assistant may ask of jobs below given folders; each answer is the JSON of a command, cut to a size.

Nothing is written or started, and no network is used.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError, validate_call

from stepscope.api.job import Job
from stepscope.api.job import open as open_job
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import in_words, nearest_path, unknown, url_of
from stepscope.records.codec import encode_document, headed, plain
from stepscope.records.nouns import Scaling
from stepscope.report.conditions import OPERATORS
from stepscope.report.frame import Frame, plain_values
from stepscope.traces.discover import REPORTS

MOST_CHARACTERS = 12_000
"""Of an answer: 3,000 to 4,000 tokens."""

MOST_ROWS = 1_000
MOST_FILES = 50_000
MOST_JOBS = 4
"""Jobs that are kept as they were read."""

_NOTES = 600
"""Characters that say what an answer leaves out."""

_LEAST = ("skipped", "quiet", "same", "unknown")
"""Lists that are cut before all others: what was not found."""

_SHORT = 3
"""Lists of so many items are not cut."""

Place = Annotated[str, Field(description="A job's file or folder, as `open` without a path lists them.")]
Part = Annotated[str, Field(description="Only this part: `findings`, `findings.0.evidence`. Default: all, cut to fit.")]
Offset = Annotated[int, Field(description="First item of the part, or row of the table.", ge=0)]

_FILTER = re.compile(r"\s*([^\s<>=!~]+)\s*(>=|<=|==|!=|>|<|~)\s*(.*?)\s*", re.DOTALL)


class Assistant:
    """Answers tools by their names. folders: everything that is read lies below them, links followed."""

    TOOLS = ("open", "verdict", "table", "compare", "predict", "explain_rule", "next_command")

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise DataError(f"{folder}: not a folder", why="jobs are read below folders", fix=nearest_path(folder))
        self.folders = tuple(folder.resolve() for folder in folders)
        self._jobs: dict[Path, tuple[object, Job]] = {}

    def schemas(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield each tool: its name, what it answers, the JSON Schema of its arguments."""
        for name in self.TOOLS:
            tool = getattr(self, name)
            yield name, " ".join(str(tool.__doc__).split()), TypeAdapter(tool).json_schema()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the answer of a tool as JSON of at most ``MOST_CHARACTERS``. Raises StepscopeError."""
        if name not in self.TOOLS:
            raise UsageError(unknown("tool", name, self.TOOLS))
        tool = validate_call(getattr(self, name))
        try:
            text = _text(tool(**arguments))
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
            takes = in_words(inspect.signature(tool).parameters)
            raise UsageError(f"{name}: wrong arguments", why="; ".join(wrong), fix=f"it takes {takes}") from error
        if len(text) > MOST_CHARACTERS:
            raise DataError(f"{name}: more than {MOST_CHARACTERS:,} characters", fix="ask for fewer columns or a part")
        return text

    def open(self, path: Place = "") -> dict[str, Any]:
        """Say what a path holds: what was read, the verdict in one sentence, the tables that can be asked for. Without a
        path: the folders of this server and what lies in them."""
        if not path:
            folders = [
                {"path": str(at), "entries": sorted(f"{e.name}/" if e.is_dir() else e.name for e in at.iterdir())}
                for at in self.folders
            ]
            return _cut({**headed("folders/1"), "folders": folders})
        job = self._job(path)
        document, names = job.to_json(), job.names
        return _cut(
            {
                **headed("open/1"),
                **{key: document[key] for key in ("sources", "files_found", "notes")},
                "headline": job.verdict.headline,
                "tables": sorted(set(names) - {f"trace_{name}" for name in names}),
            }
        )

    def verdict(self, path: Place, part: Part = "", offset: Offset = 0) -> dict[str, Any]:
        """Say what is wrong with a job, as `stepscope diagnose --json`: `screen` (headline, stake, the time as a tree,
        reasons, advice) first, then all findings with their evidence, what was looked at and found quiet, what could not
        be looked at and why."""
        return _cut(self._job(path).to_json(), part, offset)

    def table(
        self,
        path: Place,
        name: Annotated[str, Field(description="A table that `open` lists: steps, ranks, kernels, collectives, ...")],
        columns: Annotated[list[str] | None, Field(description="Only these columns; default: all.")] = None,
        where: Annotated[
            list[str] | None,
            Field(description="Only rows for which all hold: `rank == 5`, `dur_ns > 1e6`, `name ~ nccl` (contains)."),
        ] = None,
        sort: Annotated[str, Field(description="Sort by this column; `-column`: the largest first.")] = "",
        limit: Annotated[int, Field(description=f"Most rows, up to {MOST_ROWS}.", ge=1)] = 50,
        offset: Offset = 0,
    ) -> dict[str, Any]:
        """Return rows of one of a job's tables, values in base units (ns, bytes, shares from 0 to 1; `units` names them);
        null is unknown. `of` counts the rows that fit `where`; `next_offset`, where there are more, shows the next."""
        if limit > MOST_ROWS:
            raise UsageError(
                f"table: {limit:,} rows are asked for",
                why=f"an answer has at most {MOST_ROWS:,} rows and {MOST_CHARACTERS:,} characters",
                fix=f"choose with where, sort and columns, or read on with offset; all rows in Python: "
                f"stepscope.open({path!r}).table({name!r})",
            )
        frame = self._job(path).table(name)
        rows: Sequence[int] = range(len(frame))
        for condition in where or ():
            rows = _chosen(rows, frame, condition)
        if sort:
            values, down = plain_values(frame[sort.removeprefix("-")]), sort[0] == "-"
            by = [((v is None) != down, isinstance(v, str), 0 if v is None else v) for v in values]
            rows = sorted(rows, key=by.__getitem__, reverse=down)
        kept = {key: frame[key] for key in columns or frame.columns}
        document = _cut(
            {
                **headed("table/1"),
                "name": name,
                "units": {key: unit for key, unit in frame.units.items() if key in kept},
                "of": len(rows),
                "offset": offset,
                "rows": [{k: row[k] for k in kept} for row in (frame[at] for at in rows[offset : offset + limit])],
            }
        )
        after = offset + len(document["rows"])
        return {**document, "cut": None, "next_offset": after if after < len(rows) else None}

    def compare(self, before: Place, after: Place, part: Part = "", offset: Offset = 0) -> dict[str, Any]:
        """Say whether `after` differs from `before`, by how much and how sure that is, as `stepscope compare --json`; first
        `headline`, then differences in settings and machine. A verdict of `no significant difference` is no change."""
        answer = self._job(before).compare(self._job(after))
        return _cut({"headline": answer.headline, **answer.to_json()}, part, offset)

    def predict(
        self,
        path: Place,
        gpus: Annotated[list[int] | None, Field(description="Numbers of GPUs; default: doublings of its own.")] = None,
        what_if: Annotated[
            str | None, Field(description="A change as of `stepscope predict --what-if`: `gpu=h100-sxm`, `batch=2x`.")
        ] = None,
        scaling: Annotated[Scaling, Field(description="strong: the same batch on all GPUs together.")] = "weak",
        part: Part = "",
        offset: Offset = 0,
    ) -> dict[str, Any]:
        """Predict a measured job on other numbers of GPUs or with one thing changed, as `stepscope predict --json`; first
        `headline`. Quote `low_ns` and `high_ns` (80% interval), `assumptions` and `notes` with every figure."""
        from stepscope.predict.what_if import parse_what_if

        change = asdict(parse_what_if([what_if] if what_if else []))
        answer = self._job(path).predict(gpus, **change, scaling=scaling)
        return _cut({"headline": answer.headline, **answer.to_json()}, part, offset)

    def explain_rule(
        self, name: Annotated[str, Field(description="A rule, as findings name it. Default: the list of all.")] = ""
    ) -> dict[str, Any]:
        """Explain a rule of findings: what it looks at, its thresholds and where these come from, what to do."""
        from stepscope.diagnose.engine import all_rules
        from stepscope.report.documents import rules_document

        rules = {rule.name: rule for rule in all_rules()}
        if not name:
            return {**headed("rules/1"), "rules": [{"name": key, "symptom": r.symptom} for key, r in rules.items()]}
        if name not in rules:
            raise UsageError(unknown("rule", name, rules), fix="without a name: the list of all")
        return _cut(rules_document([rules[name]]))

    def next_command(self, path: Place) -> dict[str, Any]:
        """Say what to do next: `steps` are the advice of the verdict and of the findings, in order, with the command where
        one does it; `record` names what would let more rules look. This server runs none of them: show them to the user."""
        job = self._job(path)
        advised = [(finding.rule, advice) for finding in job.diagnosis.findings for advice in finding.advice]
        rules = {advice.text: rule for rule, advice in reversed(advised)}
        every = {advice.text: advice for advice in (*job.verdict.advice, *(advice for _, advice in advised))}
        record = Counter(s.command for s in job.diagnosis.skipped if s.command is not None)
        return _cut(
            {
                **headed("next_command/1"),
                "steps": [{"rule": rules.get(text), **plain(advice)} for text, advice in every.items()],
                "record": [{"command": command, "rules": rules} for command, rules in record.most_common(3)],
            }
        )

    def _job(self, text: str) -> Job:
        """Return the job at a path, read again where its files have changed."""
        path = self._path(text)
        state = self._state(path)
        before, job = self._jobs.pop(path, (None, None))
        self._jobs[path] = state, job if job is not None and before == state else open_job(path)
        if len(self._jobs) > MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return self._jobs[path][1]

    def _path(self, text: str) -> Path:
        """Return a path below the folders, relative to one of them. Raises UsageError, DataError where nothing is."""
        if url_of(text) is not None:
            raise UsageError(f"{text} is a URL", why="this server uses no network", fix="copy it below its folders")
        try:
            places = [(folder / text).resolve() for folder in self.folders]
            path = next((place for place in places if place.exists()), places[0])
        except (OSError, ValueError, RuntimeError) as error:  # a name too long, a NUL in it, links in a circle
            raise UsageError(f"{text[:80]!r} is not a path", why=str(error)[:80]) from error
        self._require_below(path, text)
        if not path.exists():
            raise DataError(
                f"{text}: there is nothing", fix=nearest_path(path, "`open` without a path lists what is there")
            )
        return path

    def _require_below(self, path: Path, text: object) -> None:
        if not any(path.is_relative_to(folder) for folder in self.folders):
            raise UsageError(
                f"{text} is outside the folders of this server",
                why=f"it was started for {in_words(self.folders)}, and links that lead elsewhere are not followed",
                fix="start it with that folder, too: stepscope mcp FOLDER ...",
            )

    def _state(self, path: Path) -> object:
        """Return what tells whether files have changed. Raises UsageError for links that lead outside, too many files, and
        what another program would have to convert."""
        state: set[tuple[str, int, int]] = set()
        for entry in _below(path):
            if entry.is_symlink():
                self._require_below(entry.resolve(), entry)
            status = entry.stat() if entry.exists() else entry.lstat()
            state.add((str(entry), status.st_mtime_ns, status.st_size))
            if len(state) > MOST_FILES:
                raise UsageError(f"{path}: more than {MOST_FILES:,} files", why="a job has fewer", fix="name one below")
            if entry.suffix in REPORTS and not entry.with_suffix(".sqlite").exists():
                raise UsageError(
                    f"{entry}: only nsys reads this file",
                    why="its export is not beside it, and this server writes nothing",
                    fix=f"nsys export --type sqlite {entry}",
                )
        return state


def _below(path: Path) -> Iterator[Path]:
    """Yield a path and all below it, links followed, each folder once."""
    yield path
    seen = set()
    for folder, names, files in os.walk(path, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:
            names.clear()
            continue
        seen.add(place)
        yield from (Path(folder, name) for name in (*names, *files))


def _chosen(rows: Iterable[int], frame: Frame, condition: str) -> list[int]:
    """Return the rows for which a condition holds. Raises UsageError."""
    match = _FILTER.fullmatch(condition)
    if match is None:
        raise UsageError(f"where {condition!r}: expected COLUMN OP VALUE", why=f"OP is one of {' '.join(OPERATORS)} ~")
    name, op, wanted = match[1], match[2], match[3].lower()
    values = plain_values(frame[name])
    if op == "~":
        return [row for row in rows if wanted in str(values[row]).lower()]
    try:
        number = float(wanted)
    except ValueError:
        if op not in ("==", "!="):
            raise UsageError(f"where {condition!r}: {op} compares with a number", why=f"{wanted!r} is none") from None
        return [row for row in rows if OPERATORS[op](str(values[row]).lower(), wanted)]
    return [row for row in rows if isinstance(v := values[row], int | float) and OPERATORS[op](v, number)]


def _text(document: Any) -> str:
    return encode_document(document, indent=-1).decode()


def _lists(value: Any, place: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists in a document that can be cut, each with its place in it: ``findings.0.evidence``."""
    if isinstance(value, list) and len(value) > _SHORT:
        yield place, value
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _lists(inner, f"{place}.{key}".lstrip("."))


def _cut(document: Mapping[str, Any], part: str = "", offset: int = 0) -> dict[str, Any]:
    """Return a document, or a part of it, whose longest lists are halved until it fits; ``cut``: which part and offset show
    the rest. Raises UsageError for a part that is not there."""
    whole = json.loads(_text(document))
    if offset and not part:
        raise UsageError("offset counts the items of a part", fix="name the part, too: part='findings'")
    if part:
        value = whole
        for key in part.split("."):
            keys = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
            inside = {str(k): value[k] for k in keys}
            if key not in inside:
                raise UsageError(unknown("part", part, inside))
            value = inside[key]
        value = value[offset:] if isinstance(value, list) else value
        whole = {"schema": whole["schema"], "part": part, "offset": offset, "value": value}
    counts: dict[str, tuple[list[Any], int]] = {}
    while len(_text(whole)) > MOST_CHARACTERS - _NOTES:
        lists = [(len(items) * (100 if place in _LEAST else 1), place, items) for place, items in _lists(whole)]
        if not lists:
            break
        _, place, items = max(lists)
        counts.setdefault(place, (items, len(items)))
        del items[len(items) // 2 :]
    rest = []
    for place, (items, count) in counts.items():
        first = offset if place == "value" else 0
        name = f"{part}{place.removeprefix('value')}" if part else place
        rest.append({"part": name, "offset": first + len(items), "of": first + count})
    return {**whole, "cut": rest or None}
