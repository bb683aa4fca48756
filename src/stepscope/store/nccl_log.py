"""NCCL's debug log (NCCL_DEBUG=INFO): communicators, rings, trees, transports, choices, warnings.

Any number of files: one per process (NCCL_DEBUG_FILE) or a job's output in which all ranks speak at once, behind
whatever their launcher puts before each line. Read once, line by line: memory grows with the job (ranks, links,
communicators), not with the log. NCCL 2.4 to 2.30 and RCCL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.nccl import (
    NcclChoice,
    NcclCommunicator,
    NcclDebug,
    NcclHost,
    NcclLink,
    NcclLogFile,
    NcclMessage,
    NcclRank,
    NcclRing,
    NcclTree,
)
from stepscope.store.importer import files_below
from stepscope.store.log_lines import RUN_THROUGH
from stepscope.store.nccl_job import NcclJob
from stepscope.store.nccl_members import (
    MAX_LINE_BYTES,
    Choice,
    Lines,
    NcclMember,
    Process,
    Way,
    merge_way,
    parse_line,
    parse_version,
)

_HOW = "run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH,TUNING"


def read_nccl_debug(paths: str | Path | Iterable[str | Path]) -> NcclDebug:
    """Read what NCCL wrote in these files, and in all files of these folders; .gz files too.

    Raises DataError for a file that cannot be read, for one named that holds no line of NCCL's, and where nothing of
    communicators, connections, NICs or errors is told.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(p) for p in paths]
    job = NcclJob()
    files: list[NcclLogFile] = []
    notes: list[str] = []
    versions: dict[int, dict[str, None]] = defaultdict(dict)
    for path, named in _files_and_named(given).items():
        read = _read_log(job, len(files), path, versions[len(files)])
        if read.nccl_lines:
            files.append(read)
        elif named:
            raise DataError(f"{path}: not an NCCL log", why=_what_instead(read), fix=_HOW)
        else:
            notes.append(f"{path.name}: {_what_instead(read)}; left out")
    if not files:
        raise DataError(
            f"no NCCL line in {', '.join(str(p) for p in given) or 'nothing'}",
            why="; ".join(notes[:3]) or "there is no file",
            fix=_HOW,
        )
    job.settle()
    for process in job.processes.values():
        if not process.versions:
            process.versions = dict(versions[process.file])
    stated = [v for printed in versions.values() for v in printed]
    stated += [v for p in job.processes.values() for v in p.versions]
    every = tuple(dict.fromkeys(stated))
    communicators = tuple(_job_communicators(job, every, notes))
    result = NcclDebug(
        versions=every,
        communicators=communicators,
        messages=tuple(_nccl_messages(job)),
        hosts=tuple(_nccl_hosts(job)),
        net_plugins=tuple(job.plugins),
        no_plugin=tuple(job.no_plugin),
        settings=tuple(sorted(job.settings)),
        files=tuple(files),
        notes=(*notes, *_log_notes(job, files, communicators)),
        networks=_all_networks(job),
    )
    if not (result.communicators or result.messages or result.hosts or result.networks):
        raise DataError(
            f"{files[0].path}: its NCCL lines do not mention communicators, transports or errors",
            why=f"{counted(sum(f.nccl_lines for f in files), 'line')} from NCCL, none of them about that"
            + (f"; its version is {', '.join(every)}" if every else ""),
            fix=_HOW,
        )
    return result


def _all_networks(job: NcclJob) -> tuple[str, ...]:
    """Return the networks that processes use, of which no communicator need be known."""
    processes = job.processes.values()
    of_threads = [name for process in processes for names in process.networks.values() for name in names]
    of_members = [name for process in processes for member in process.members for name in member.networks]
    return tuple(dict.fromkeys([*of_members, *of_threads]))


def _files_and_named(given: Sequence[Path]) -> dict[Path, bool]:
    """Return every file, and whether it was named itself rather than found in a folder."""
    named: dict[Path, bool] = {}
    for path in given:
        if path.is_dir():
            for file in files_below(path):
                named.setdefault(file, False)
        else:
            named[path] = True
    return named


def _read_log(job: NcclJob, number: int, path: Path, versions: dict[str, None]) -> NcclLogFile:
    """Read the lines of one log into the job, and return how many are NCCL's and how many torn."""
    lines = Lines(path)
    nccl, torn = 0, -job.torn
    for line in lines:
        if b"CCL " not in line:
            continue
        if nccl and line.count(b" NCCL INFO ") == 1 and not job.listens_to(line):
            nccl += 1
            continue
        parsed, lost = parse_line(line if len(line) <= MAX_LINE_BYTES else line[-MAX_LINE_BYTES:])
        nccl += lost
        torn += lost
        if parsed is not None:
            nccl += 1
            job.add(number, parsed)
        elif version := parse_version(line):
            nccl += 1
            versions[version] = None
    return NcclLogFile(
        path=str(path),
        size_bytes=path.stat().st_size,
        lines=lines.count,
        nccl_lines=nccl,
        torn_lines=torn + job.torn,
        truncated=lines.truncated,
    )


def _what_instead(read: NcclLogFile) -> str:
    if read.size_bytes == 0:
        return "it is empty"
    return f"none of its {counted(read.lines, 'line')} is one that NCCL writes"


def _job_communicators(job: NcclJob, versions: tuple[str, ...], notes: list[str]) -> Iterator[NcclCommunicator]:
    """Yield the communicators of a job, whose members its processes print."""
    groups: dict[tuple[object, ...], list[NcclMember]] = defaultdict(list)
    for process in job.processes.values():
        for member in process.members:
            groups[member.key or ()].append(member)
        if process.unstated is not None and not process.unstated.empty:
            groups["unstated",].append(process.unstated)
    apart = 0
    for key, members in groups.items():
        if key[0] == "size" and len({m.rank for m in members}) < len(members):
            apart += len(members)
            for member in members:
                yield _joined_communicator([member], versions, notes)
        else:
            yield _joined_communicator(members, versions, notes)
    if apart:
        notes.append(
            f"{counted(apart, 'rank')} shown separately: NCCL before 2.18 does not name its communicators, and several of "
            "one size were open at once"
        )


def _joined_communicator(
    members: Sequence[NcclMember], versions: tuple[str, ...], notes: list[str]
) -> NcclCommunicator:
    """Return a communicator as its members state it; what contradicts is noted."""
    first = members[0]
    by_rank: dict[int, NcclMember] = {}
    for member in members:
        if member.rank is None:
            continue
        recorded = by_rank.setdefault(member.rank, member)
        if recorded is not member and not recorded.initialised and member.initialised:
            by_rank[member.rank] = member
    ranked = [m for m in members if m.rank is not None]
    if len(ranked) > len(by_rank):
        notes.append(
            f"communicator {_communicator_id(first) or 'without a name'}: "
            f"{counted(len(ranked) - len(by_rank), 'rank')} reported twice; "
            "the first one counts (is a log among the files twice?)"
        )
        members = list(by_rank.values())
    channels = next((m.channels for m in members if m.channels), (None,) * 5)
    nvls = [m.nvls for m in members if m.nvls is not None]
    return NcclCommunicator(
        id=_communicator_id(first),
        nranks=first.nranks,
        versions=tuple(dict.fromkeys(v for m in members for v in m.process.versions)) or _only_version(versions),
        nodes=next((m.nodes for m in members if m.nodes is not None), None),
        networks=tuple(dict.fromkeys(n for m in members for n in _member_networks(m))),
        ranks=tuple(_nccl_rank(by_rank[r]) for r in sorted(by_rank)),
        rings=tuple(_nccl_rings(members, first.nranks)),
        trees=tuple(_nccl_trees(by_rank, first.nranks)),
        links=tuple(_nccl_links(members)),
        choices=tuple(_nccl_choices(members)),
        coll_channels=channels[0],
        collnet_channels=channels[1],
        nvls_channels=channels[2],
        p2p_channels=channels[3],
        p2p_channels_per_peer=channels[4],
        nvls=all(nvls) if nvls else None,
    )


def _communicator_id(member: NcclMember) -> str | None:
    return str(member.key[1]) if member.key and member.key[0] == "id" else None


def _only_version(versions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the job's version, where there is one, for ranks that state none."""
    return versions if len(versions) == 1 else ()


def _member_networks(member: NcclMember) -> Iterable[str]:
    return member.networks or [n for names in member.process.networks.values() for n in names]


def _nccl_rank(member: NcclMember) -> NcclRank:
    """Return a member as a rank; -1: it does not say which."""
    return NcclRank(
        rank=member.rank if member.rank is not None else -1,
        host=member.process.host,
        pid=member.process.pid,
        cuda_device=member.cuda_device,
        nvml_device=member.nvml_device,
        bus_id=member.bus_id,
        initialised=member.initialised,
        ended=member.ended,
    )


def _nccl_rings(members: Sequence[NcclMember], nranks: int | None) -> Iterator[NcclRing]:
    """Yield the ring of each channel, as its first member prints it; impossible orders are left out."""
    orders: dict[int, tuple[int, ...]] = {}
    for member in members:
        for channel, order in member.rings.items():
            orders.setdefault(channel, order)
    for channel in sorted(orders):
        order = orders[channel]
        if len(set(order)) == len(order) and (nranks is None or max(order) < nranks):
            yield NcclRing(channel=channel, ranks=order, complete=len(order) == nranks)


def _nccl_trees(by_rank: dict[int, NcclMember], nranks: int | None) -> Iterator[NcclTree]:
    channels = sorted({c for m in by_rank.values() for c in m.parents})
    for channel in channels:
        parents = tuple(by_rank[r].parents.get(channel) if r in by_rank else None for r in range(nranks or 0))
        yield NcclTree(channel=channel, parents=parents)


def _nccl_links(members: Sequence[NcclMember]) -> Iterator[NcclLink]:
    """Yield the links between ranks: transport, channels and NICs."""
    ways: dict[tuple[int, int, str], Way] = {}
    for member in members:
        for key, way in member.ways.items():
            merge_way(ways, key, way)
    for (source, destination, transport), way in sorted(ways.items()):
        yield NcclLink(
            source=source,
            destination=destination,
            transport=transport,
            channels=way.channels.bit_count(),
            send_nics=tuple(sorted(way.send_nics)),
            receive_nics=tuple(sorted(way.receive_nics)),
            gdrdma=way.gdrdma,
            proxy_rank=way.proxy_rank,
        )


def _nccl_choices(members: Sequence[NcclMember]) -> Iterator[NcclChoice]:
    """Yield how often each algorithm and protocol was chosen for a size."""
    calls: dict[Choice, int] = defaultdict(int)
    for member in members:
        for choice, count in member.choices.items():
            calls[choice] += count
    for choice in sorted(calls, key=lambda c: (c.op or "", c.low_bytes, c.high_bytes, -calls[c])):
        yield NcclChoice(**choice._asdict(), calls=calls[choice])


def _nccl_messages(job: NcclJob) -> Iterator[NcclMessage]:
    """Yield warnings and errors, each with how often it came."""
    for (process, kind, device, place), message in job.messages.items():
        yield NcclMessage(
            kind=kind,
            rank=_rank_on(process, device),
            host=process.host,
            pid=process.pid,
            cuda_device=device,
            place=place,
            text=message.text,
            count=message.count,
        )


def _rank_on(process: Process, device: int) -> int | None:
    of_device = [m for m in process.members if m.cuda_device == device and m.rank is not None]
    return max(of_device, key=lambda m: m.nranks or 0).rank if of_device else None


def _nccl_hosts(job: NcclJob) -> Iterator[NcclHost]:
    """Yield the NICs of each host, and which of them can reach GPUs directly."""
    for host in dict.fromkeys([*job.nics, *job.gdr]):
        gdr = job.gdr.get(host, {})
        yield NcclHost(
            host=host,
            nics=tuple(job.nics.get(host, ())),
            gdr_nics=tuple(n for n, able in gdr.items() if able),
            no_gdr_nics=tuple(n for n, able in gdr.items() if not able),
        )


def _log_notes(job: NcclJob, files: Sequence[NcclLogFile], communicators: Sequence[NcclCommunicator]) -> Iterator[str]:
    """Yield notes on several versions, and on what was torn or left out."""
    if len(versions := {v for c in communicators for v in c.versions}) > 1:
        mixed = any(len(c.versions) > 1 for c in communicators)
        where = "in one job" if mixed else "in these logs, each in communicators of its own: several jobs"
        yield f"different versions of NCCL {where}: {', '.join(sorted(versions))}"
    for file in files:
        if file.torn_lines:
            yield f"{file.path}: {counted(file.torn_lines, 'torn line')} left out: {RUN_THROUGH} the middle"
        if file.truncated:
            yield f"{Path(file.path).name}: cut off in the middle of a line; what followed is missing"
    if job.unread_links:
        lines = counted(job.unread_links, "line")
        yield f"{lines} with an unknown transport left out, for example {job.unread_link!r}"
    if job.members_dropped:
        yield f"{job.members_dropped} later initialisations left out: too many communicators"
    if any(c.nranks is None for c in communicators):
        yield "lines outside any initialisation that fit several communicators, or none, are listed separately"
