"""One rank's trace -> everything that can be said of it alone, as a small record that travels between processes.

What `stepscope profile` recorded of the job's own process, read from the metadata of its trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.core.errors import MissingError, StepscopeError
from stepscope.records.trace_summary import FileNote, RankFacts, RankPass
from stepscope.traces.activity import rank_budget
from stepscope.traces.classes import SCANNED_UNKNOWN, stated_beside, undecided_share
from stepscope.traces.events import Events, RankTrace, RankView, TraceMeta
from stepscope.traces.file_names import NamedRank
from stepscope.traces.load import Advanced, load_file, rank_of, ranks_of
from stepscope.traces.places import places_of
from stepscope.traces.sections import EVERY, Wanted

if TYPE_CHECKING:
    from stepscope.records.profile import JobSetup, LoaderSetup


T = TypeVar("T")


def passes_of(
    path: Path,
    *,
    wanted: Wanted,
    names: Mapping[str, NamedRank],
    processes: int = 1,
    advanced: Advanced | None = None,
) -> tuple[RankPass, ...]:
    """Load one trace file and analyse every rank in it, mostly one. names: what the names of all files say of ranks. Runs in
    any process; ``processes`` may read a large file together."""
    if beside := stated_beside(path):
        wanted = replace(wanted, classes=(*wanted.classes, *beside))
    try:
        trace = load_file(
            path, device_only=wanted.device_only, cache=wanted.cache, processes=processes, advanced=advanced
        )
        if trace.partial and (
            places_of(trace.events).several or undecided_share(trace.events, wanted.classes) > SCANNED_UNKNOWN
        ):
            trace = load_file(path, cache=wanted.cache, processes=processes, advanced=advanced)
        ranks = ranks_of(trace, alone=len(names) == 1)
        if len(ranks) > 1:
            return tuple(analyse(rank, wanted) for rank in ranks)
        (trace,) = ranks
        rank, notes = rank_of(trace, wanted.ranks, names)
        return (analyse(replace(trace, rank=rank, notes=(*trace.notes, *notes), alone=len(names) == 1), wanted),)
    except MemoryError as error:
        raise MissingError(
            f"{path}: not enough memory to read it",
            why="every event takes about 60 bytes, and the analyses as much",
            fix="read device events alone (--show budget), or profile fewer steps",
        ) from error


def outcome_of(work: Callable[[Path], T], path: Path) -> T | StepscopeError:
    """Return what is found in the file, or why there is nothing: what other processes hand back."""
    try:
        return work(path)
    except StepscopeError as error:
        return error


def analyse(trace: RankTrace, wanted: Wanted = EVERY) -> RankPass:
    """All wanted sections of one rank."""
    events = trace.events
    meta = trace.meta
    facts = RankFacts(
        rank=trace.rank,
        file=str(trace.path),
        size_bytes=trace.size_bytes,
        event_count=len(events),
        world_size=meta.world_size,
        backend=meta.backend,
        device_name=meta.device_names[0] if meta.device_names else None,
        host=meta.host,
        unix_ns=_unix_range_ns(events, meta.base_time_ns),
        setup=setup_of(meta),
    )
    view = RankView(trace, wanted)
    quality = list(trace.quality)
    if not any(fact.unread for fact in quality) and not events.is_device.any():
        from stepscope.traces.unread import unread_device  # most traces have device events

        quality += unread_device(events, meta, cut=any(note.kind == "truncated" for note in trace.notes))
    result = RankPass(
        facts=facts,
        notes=tuple(
            FileNote(rank=None if n.kind == "divided" else trace.rank, kind=n.kind, text=n.text) for n in trace.notes
        ),
        budget=None if any(fact.unread for fact in quality) else rank_budget(view),
        partial=trace.partial,
        quality=tuple(replace(fact, rank=trace.rank) for fact in quality),
    )
    if trace.partial or result.budget is None:
        return result
    from stepscope.traces.full_pass import completed  # not needed for the budget, and takes as long as numpy

    return completed(result, view)


_UNIX_FROM_NS = 10**18
"""2001: times beyond are since 1970 by themselves."""


def _unix_range_ns(events: Events, base_ns: int | None) -> tuple[int, int] | None:
    """Return the first begin and the last end as Unix ns; None where the times count from something else."""
    if not len(events):
        return None
    first, last = int(events.ts_ns.min()), int(events.end_ns.max())
    if base_ns is None and first < _UNIX_FROM_NS:
        return None
    return first + (base_ns or 0), last + (base_ns or 0)


_WRAPPERS = (("ddp", "ddp"), ("fsdp1", "fsdp"), ("fsdp2", "fsdp2"))
"""Key of ``diagnose.frameworks``, and what the hook calls it."""


def setup_of(meta: TraceMeta) -> JobSetup | None:
    """The job's set-up; None where the trace was not recorded by `stepscope profile`."""
    return setup_of_model(_as_facts(meta.stepscope.get("model")))


def setup_of_model(model: Mapping[str, Any]) -> JobSetup | None:
    """The set-up of a job by what the hook found of it (hook's facts.py); None where it found nothing."""
    if not model:
        return None
    from stepscope.records.profile import JobSetup  # few traces are of jobs that `stepscope profile` ran

    machine, optimizer, pipeline, settings, loaders = (
        _as_facts(model.get(name)) for name in ("machine", "optimizer", "pipeline", "settings", "loaders")
    )
    schedule = next((_as_facts(entry) for entry in _as_sequence(pipeline.get("schedules"))), {})
    wrapped, units = _object_facts(model.get("ddp")), _object_facts(model.get("fsdp2"))
    hooks = [_as_sequence(wrapper["comm_hooks"]) for wrapper in wrapped if "comm_hooks" in wrapper]
    resharded = [flag for unit in units if (flag := _as_flag(unit.get("resharded"))) is not None]
    return JobSetup(
        objects=tuple(str(name) for name in _as_sequence(model.get("objects"))),
        device=next((str(device) for device in _as_sequence(optimizer.get("devices"))), None),
        compiled=any(map(_as_number, _as_facts(model.get("compiled")).values())) if machine else None,
        cores=_as_number(machine.get("cores")),
        threads=_as_number(machine.get("threads")),
        wrapped=tuple(key for key, fact in _WRAPPERS if model.get(fact)),
        mesh=_mesh_dimensions(_as_sequence(model.get("dtensor"))),
        loader=_loader_setup(
            [_as_facts(loader) for loader in _as_sequence(loaders.get("iterating"))] or _object_facts(loaders)
        ),
        bucket_cap_bytes=_shared_value(wrapped, "bucket_cap_bytes", _as_number),
        parameters=_parameter_count(_as_facts(optimizer.get("parameters"))),
        micro_batches=_as_number(schedule.get("microbatches")),
        chunks=len(_as_sequence(pipeline.get("stages"))) or None,
        schedule=str(schedule["class"]) if "class" in schedule else None,
        backend=_as_text(_as_facts(model.get("distributed")).get("backend")),
        fused=bool(_as_facts(optimizer["options"]).get("fused")) if "options" in optimizer else None,
        comm_hooks=tuple(str(name) for names in hooks for name in names) if hooks else None,
        resharded=any(resharded) if resharded else None,
        matmul_precision=_as_text(settings.get("matmul_precision")),
        frozen=_as_number(settings.get("gc_frozen")),
        collects=_as_flag(settings.get("gc")),
        start_method=_as_text(settings.get("start_method")),
        compiler=_as_flag(settings.get("compiler")),
        environment=_environment_variables(model),
    )


def _environment_variables(model: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return environment variables; None: not recorded. A job in which none is set has its settings alone."""
    if "settings" not in model:
        return None
    return {str(name): str(value) for name, value in _as_facts(model.get("environment")).items()}


def _loader_setup(loaders: Sequence[Mapping[str, Any]]) -> LoaderSetup | None:
    """Return the settings that all loaders share; None where none is recorded."""
    if not loaders:
        return None
    from stepscope.records.profile import LoaderSetup

    return LoaderSetup(
        workers=_shared_value(loaders, "num_workers", _as_number),
        pinned=_shared_value(loaders, "pin_memory", _as_flag),
        persistent=_shared_value(loaders, "persistent_workers", _as_flag),
        prefetch=_shared_value(loaders, "prefetch_factor", _as_number),
        divided=_shared_value(loaders, "distributed_sampler", _as_flag),
        streamed=_shared_value(loaders, "iterable", _as_flag),
    )


def _object_facts(recorded: object) -> list[Mapping[str, Any]]:
    """Return the facts of the objects of one kind: of all that were recorded, else of the first."""
    facts = _as_facts(recorded)
    return [_as_facts(entry) for entry in _as_sequence(facts.get("all"))] or [
        _as_facts(facts[key]) for key in ("first",) if key in facts
    ]


def _shared_value(objects: Sequence[Mapping[str, Any]], name: str, read: Callable[[object], T | None]) -> T | None:
    """Return the value that all of these objects have; None where they differ."""
    values = [read(facts.get(name)) for facts in objects]
    return values[0] if values and all(value == values[0] for value in values) else None


def _mesh_dimensions(tensors: Sequence[object]) -> tuple[str, ...]:
    names = (str(name) for tensor in tensors for name in _as_sequence(_as_facts(tensor).get("mesh_dims")))
    return tuple(dict.fromkeys(names))


def _parameter_count(by_type: Mapping[str, Any]) -> int | None:
    counts = [_as_number(_as_facts(entry).get("elements")) for entry in by_type.values()]
    return sum(n for n in counts if n is not None) or None


def _as_facts(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _as_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _as_flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
