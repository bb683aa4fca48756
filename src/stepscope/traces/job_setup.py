"""What `stepscope profile` recorded of the job's own process, read from the metadata of its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.traces.events import TraceMeta

T = TypeVar("T")

_WRAPPERS = (("ddp", "ddp"), ("fsdp1", "fsdp"), ("fsdp2", "fsdp2"))
"""Key of ``diagnose.frameworks``, and what the hook calls it."""


def setup_of(meta: TraceMeta) -> JobSetup | None:
    """The job's set-up; None where the trace was not recorded by `stepscope profile`."""
    model = _facts(meta.stepscope.get("model"))
    if not model:
        return None
    machine, optimizer, pipeline = (_facts(model.get(name)) for name in ("machine", "optimizer", "pipeline"))
    schedule = next((_facts(each) for each in _list(pipeline.get("schedules"))), {})
    return JobSetup(
        objects=tuple(str(name) for name in _list(model.get("objects"))),
        device=next((str(each) for each in _list(optimizer.get("devices"))), None),
        compiled=any(map(_number, _facts(model.get("compiled")).values())) if machine else None,
        cores=_number(machine.get("cores")),
        threads=_number(machine.get("threads")),
        wrapped=tuple(key for key, fact in _WRAPPERS if model.get(fact)),
        mesh=_mesh(_list(model.get("dtensor"))),
        loader=_loader(_each(model.get("loaders"))),
        bucket_cap_bytes=_same(_each(model.get("ddp")), "bucket_cap_bytes", _number),
        parameters=_parameters(_facts(optimizer.get("parameters"))),
        micro_batches=_number(schedule.get("microbatches")),
        chunks=len(_list(pipeline.get("stages"))) or None,
        schedule=str(schedule["class"]) if "class" in schedule else None,
    )


def _loader(loaders: Sequence[Mapping[str, Any]]) -> LoaderSetup | None:
    if not loaders:
        return None
    return LoaderSetup(
        workers=_same(loaders, "num_workers", _number),
        pinned=_same(loaders, "pin_memory", _flag),
        persistent=_same(loaders, "persistent_workers", _flag),
        prefetch=_same(loaders, "prefetch_factor", _number),
        divided=_same(loaders, "distributed_sampler", _flag),
    )


def _each(found: object) -> list[Mapping[str, Any]]:
    """The facts of the objects of one kind: of all that were recorded, else of the first."""
    facts = _facts(found)
    return [_facts(each) for each in _list(facts.get("all"))] or [
        _facts(facts[key]) for key in ("first",) if key in facts
    ]


def _same(objects: Sequence[Mapping[str, Any]], name: str, read: Callable[[object], T | None]) -> T | None:
    """What all of these objects have; None where they differ."""
    values = [read(each.get(name)) for each in objects]
    return values[0] if values and all(value == values[0] for value in values) else None


def _mesh(tensors: Sequence[object]) -> tuple[str, ...]:
    names = (str(name) for each in tensors for name in _list(_facts(each).get("mesh_dims")))
    return tuple(dict.fromkeys(names))


def _parameters(by_type: Mapping[str, Any]) -> int | None:
    counts = [_number(_facts(each).get("elements")) for each in by_type.values()]
    return sum(n for n in counts if n is not None) or None


def _facts(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
