"""Reading dumps of torch's flight recorder: NCCL's pickles, the JSON of gloo and NCCL, and what our ranks leave.

A pickle is read with an unpickler that knows no class and no function: a dump is made of plain values, and anything
else in such a file is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, UsageError
from stepscope.records import codec
from stepscope.records.imported import Imported, LeftOut
from stepscope.records.nccl import DTYPES, OPS, FlightDump, FlightEntry, FlightGroup, Kept
from stepscope.store.importer import PROTOCOL_MARK, Candidate, Importer, plain_values
from stepscope.store.reader import read_bytes

MAJOR_VERSION = "2"
"""Version of the dump's format; version 1 had no number of a call within its group."""

_SCHEMA = b'"stepscope.flight_dump/'
_NUMBER = re.compile(r"\d+")
_PEERS = re.compile(r"(?P<op>send|recv) (?P<own>\d+)(?P<arrow>->|<-)(?P<peer>\d+)")


@record
class FlightFolder:
    """The dumps of a folder in order of rank, and the files that are none."""

    dumps: tuple[FlightDump, ...]
    refused: tuple[LeftOut, ...]


@dataclass(kw_only=True)
class _Status:
    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


@dataclass(kw_only=True)
class _Config:
    name: str = ""
    desc: str = ""
    ranks: str = "[]"


@dataclass(kw_only=True)
class _Entry:
    record_id: int
    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    state: str
    pg_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    retired: bool = False
    time_created_ns: int | None = None
    input_sizes: list[list[int]] = field(default_factory=list)
    input_dtypes: list[str] = field(default_factory=list)
    output_sizes: list[list[int]] = field(default_factory=list)
    output_dtypes: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class _Dump:
    version: str
    entries: list[_Entry] = field(default_factory=list)
    pg_status: dict[str, _Status] = field(default_factory=dict)
    pg_config: dict[str, _Config] = field(default_factory=dict)


def read_folder(folder: Path, *, only: Sequence[Path] | None = None) -> FlightFolder:
    """Read every file directly in ``folder``, one a rank; or the files ``only``, wherever below it they lie.

    Raises UsageError when it is no folder, DataError when it holds no dump.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", fix="pass the folder that holds one dump per rank")
    dumps: dict[int, FlightDump] = {}
    refused = []
    for path in only or sorted(p for p in folder.iterdir() if p.is_file()):
        try:
            dump = read_dump(path)
        except DataError as error:
            refused.append(LeftOut(path=str(path), reason=error.line))
            continue
        if dump.rank in dumps:
            first = dumps[dump.rank].source
            refused.append(LeftOut(path=str(path), reason=f"{first} is already the dump of rank {dump.rank}"))
            continue
        dumps[dump.rank] = dump
    if not dumps:
        reasons = "; ".join(r.reason for r in refused[:3])
        raise DataError(
            f"{folder} holds no flight recorder dump",
            why=reasons or "it is empty",
            fix="pass the folder of TORCH_NCCL_DEBUG_INFO_TEMP_FILE, or cells/ID/flight of a run",
        )
    return FlightFolder(dumps=tuple(dumps[r] for r in sorted(dumps)), refused=tuple(refused))


def read_dump(path: Path, *, rank: int | None = None) -> FlightDump:
    """Read one rank's dump. ``rank``: None takes the last number in the file's name, as torch writes it there.

    Raises DataError for what is no dump, is damaged, holds code, or contradicts the rank in its name.
    """
    data = read_bytes(path)
    source = str(path)
    if data[:1] == b"{" and _SCHEMA in data[:200]:
        return replace(codec.decode(data, FlightDump, source=source), source=source)
    if data[:1] == PROTOCOL_MARK:
        plain = plain_values(data, source=source, holds="a flight recorder dump")
    elif data[:1] == b"{":
        plain = _from_json(data, source)
    else:
        raise DataError(
            f"{source}: not a flight recorder dump",
            why="it is empty" if not data else "it is neither a pickle nor a JSON object",
        )
    dump_rank = _rank_in(path) if rank is None else rank
    return from_plain(plain, rank=dump_rank, source=source)


def from_json(text: str | bytes, *, rank: int, source: str = "") -> FlightDump:
    """Read what ``_dump_fr_trace_json`` returned in this process. Raises DataError."""
    data = text.encode() if isinstance(text, str) else text
    return from_plain(_from_json(data, source), rank=rank, source=source)


def from_plain(plain: Any, *, rank: int, source: str) -> FlightDump:
    """Make the record of a dump that is already plain values. Raises DataError."""
    version = plain.get("version") if isinstance(plain, dict) else None
    if not isinstance(version, str):
        contents = f"its keys are {sorted(map(str, plain))[:6]}" if isinstance(plain, dict) else type(plain).__name__
        raise DataError(f"{source}: not a flight recorder dump", why=f"there is no format version in it; {contents}")
    if version.partition(".")[0] != MAJOR_VERSION:
        raise DataError(
            f"{source}: flight recorder dump of format {version}",
            why=f"only {MAJOR_VERSION}.x is read, which torch has written since 2.4",
        )
    try:
        dump = msgspec.convert(plain, _Dump, strict=False)  # counters are numbers in pickles, texts in JSON
    except msgspec.ValidationError as error:
        raise DataError(f"{source}: damaged flight recorder dump", why=str(error)) from error
    return _flight_dump(dump, rank, source)


def _from_json(data: bytes, source: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: not readable as JSON", why=str(error), fix="copy the file again") from error


def _rank_in(path: Path) -> int:
    """Return the rank in a file's name. Raises DataError for a name without a number."""
    numbers = _NUMBER.findall(path.stem if path.suffix in (".json", ".pickle", ".pkl") else path.name)
    if not numbers:
        raise DataError(
            f"{path}: the rank of this dump is unknown",
            why="torch writes the rank into the file name, and this name has no number",
            fix="rename it after its rank: rank-00003.json",
        )
    return int(numbers[-1])


def _flight_dump(dump: _Dump, rank: int, source: str) -> FlightDump:
    """Return the dump of one rank. Raises DataError where its groups contradict its name."""
    entries = tuple(
        _flight_entry(e, source) for e in sorted(dump.entries, key=lambda e: (e.record_id, e.collective_seq_id))
    )
    groups = _flight_groups(dump, entries, source)
    for group in groups:
        if group.ranks is not None and rank not in group.ranks:
            raise DataError(
                f"{source}: is not the dump of rank {rank}, as its name says",
                why=f"rank {rank} is not a member of its group {group.name} (ranks {list(group.ranks)})",
            )
    return FlightDump(
        rank=rank,
        entries=entries,
        groups=groups,
        kept=_kept_calls(dump, entries),
        version=dump.version,
        source=source,
    )


def _flight_entry(e: _Entry, source: str) -> FlightEntry:
    """Return one recorded call. Raises DataError for a state that torch does not write."""
    if e.state not in ("scheduled", "started", "completed"):
        raise DataError(f"{source}: damaged flight recorder dump", why=f"a call's state is {e.state!r}")
    name = e.profiling_name.partition(":")[2] or e.profiling_name
    peers = _PEERS.fullmatch(name)
    op = peers["op"] if peers else OPS.get(name, name)
    sender = None if peers is None else int(peers["own"] if peers["arrow"] == "->" else peers["peer"])
    receiver = None if peers is None else int(peers["peer"] if peers["arrow"] == "->" else peers["own"])
    return FlightEntry(
        record_id=e.record_id,
        group=e.process_group[0],
        sequence=e.p2p_seq_id if e.is_p2p else e.collective_seq_id,
        op=op,
        name=e.profiling_name,
        input_sizes=tuple(tuple(s) for s in e.input_sizes),
        input_dtypes=tuple(DTYPES.get(d, d) for d in e.input_dtypes),
        output_sizes=tuple(tuple(s) for s in e.output_sizes),
        output_dtypes=tuple(DTYPES.get(d, d) for d in e.output_dtypes),
        state="completed" if e.retired else e.state,  # type: ignore[arg-type]  # checked above
        is_p2p=e.is_p2p,
        source=sender,
        destination=receiver,
        created_ns=e.time_created_ns or None,
    )


def _flight_groups(dump: _Dump, entries: tuple[FlightEntry, ...], source: str) -> tuple[FlightGroup, ...]:
    """Return the groups of a dump; counters of a group with messages are left out, which count them, too."""
    status = _status_by_name(dump)
    described = dict(e.process_group for e in dump.entries)
    configs = {name: c for name, c in dump.pg_config.items() if name}  # gloo writes one without a name
    with_p2p = {e.group for e in entries if e.is_p2p}
    groups = []
    for name in sorted({*described, *configs}, key=_natural_key):
        config = configs.get(name)
        counters = status.get(name)
        # With point-to-point calls in it the counter is now this count, now that.
        usable = counters is not None and name not in with_p2p
        groups.append(
            FlightGroup(
                name=name,
                description=_description_or_none(described.get(name) or (config.desc if config else "")),
                ranks=_listed_ranks(config.ranks, source) if config else None,
                last_enqueued=_count_or_zero(counters.last_enqueued_collective) if usable and counters else None,
                last_completed=_count_or_zero(counters.last_completed_collective) if usable and counters else None,
            )
        )
    return tuple(groups)


def _count_or_zero(value: int) -> int:
    """Return a count, for which -1 stands where there is none yet."""
    return max(0, value)


def _description_or_none(text: str) -> str | None:
    return None if text in ("", "undefined") else text


def _listed_ranks(text: str, source: str) -> tuple[int, ...] | None:
    """Return the ranks of a text; None: it lists none. Raises DataError for anything else."""
    try:
        ranks = json.loads(text)
    except ValueError as error:
        raise DataError(f"{source}: damaged flight recorder dump", why=f"ranks are {text!r}") from error
    if not isinstance(ranks, list) or not all(isinstance(r, int) for r in ranks):
        raise DataError(f"{source}: damaged flight recorder dump", why=f"ranks are {text!r}")
    return tuple(sorted(ranks)) or None


def _status_by_name(dump: _Dump) -> dict[str, _Status]:
    """Return the counters by group: they have numbers of the process's own, which calls or the order of making explain.

    gloo's counters also count point-to-point calls, which it does not record: left out.
    """
    if any(e.profiling_name.startswith("gloo:") for e in dump.entries):
        return {}
    name_by_number = {str(e.pg_id): e.process_group[0] for e in dump.entries}
    names = [name for name in dump.pg_config if name]
    if len(names) == len(dump.pg_status) and all(n.isdigit() for n in (*names, *dump.pg_status)):
        by_order = dict(zip(sorted(dump.pg_status, key=int), sorted(names, key=int), strict=True))
        if all(by_order.get(number) == name for number, name in name_by_number.items()):
            name_by_number = by_order
    return {name: dump.pg_status[number] for number, name in name_by_number.items() if number in dump.pg_status}


def _kept_calls(dump: _Dump, entries: tuple[FlightEntry, ...]) -> Kept:
    """Say which calls the ring has kept: all, the latest, or those that have not ended."""
    ids = sorted({e.record_id for e in entries})
    if not ids:
        happened = any(s.last_enqueued_collective > 0 for s in dump.pg_status.values())
        return "pending" if happened else "all"
    contiguous = ids[-1] - ids[0] + 1 == len(ids)
    if contiguous and ids[0] == 0:
        return "all"
    return "latest" if contiguous and any(e.state == "completed" for e in entries) else "pending"


def _natural_key(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (2**63, name)


def _recognises_dump(candidate: Candidate) -> bool:
    """Return whether it is a pickle with the recorder's keys, or JSON that has them."""
    head = candidate.head
    if head.startswith(PROTOCOL_MARK):
        return b"pg_config" in head or b"collective_seq_id" in head or b"nccl_version" in head
    if head.lstrip()[:1] != b"{" or b'"traceEvents"' in head or b'"distributedInfo"' in head:
        return False  # a profiler's trace names process groups, too
    return b'"pg_config"' in head or b'"collective_seq_id"' in head


def _import_dumps(source: Candidate) -> Imported:
    path = source.path
    if source.is_folder:
        folder = read_folder(path, only=source.only)
        return Imported(format="flight_recorder", path=str(path), flight=folder.dumps, left_out=folder.refused)
    return Imported(format="flight_recorder", path=str(path), flight=(read_dump(path),))


IMPORTER = Importer(
    title="flight recorder dumps of torch",
    recognises=_recognises_dump,
    read_files=_import_dumps,
    rank=20,
    marks=("pg_config", "collective_seq_id", "nccl_version"),
)
