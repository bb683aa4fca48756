"""What `stepscope profile` recorded of the job's own process, read from the metadata of its trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.records.job_setup import JobSetup, LoaderSetup
from stepscope.traces.events import TraceMeta

_WRAPPERS = (("ddp", "ddp"), ("fsdp1", "fsdp"), ("fsdp2", "fsdp2"))
"""Key of ``diagnose.frameworks``, and what the hook calls it."""


def setup_of(meta: TraceMeta) -> JobSetup | None:
    """The job's set-up; None where the trace was not recorded by `stepscope profile`."""
    model = meta.stepscope.get("model")
    if not isinstance(model, dict) or not model:
        return None
    wrapped = tuple(key for key, fact in _WRAPPERS if model.get(fact))
    return JobSetup(
        device=_device(model.get("device")),
        compiled=_compiled(model.get("compiled")),
        cores=_number(model.get("cores")),
        threads=_number(model.get("threads")),
        wrapped=wrapped,
        mesh=_mesh(model.get("mesh")),
        loader=_loader(_first(model.get("loaders"))),
        bucket_cap_bytes=_number(_first(model.get("ddp")).get("bucket_cap_bytes")),
        parameters=_parameters(model.get("optimizer")),
    )


def _first(found: object) -> Mapping[str, Any]:
    """The facts of the first of several objects of a kind."""
    first = found.get("first") if isinstance(found, dict) else None
    return first if isinstance(first, dict) else {}


def _loader(first: Mapping[str, Any]) -> LoaderSetup | None:
    if not first:
        return None
    sampler = first.get("sampler")
    return LoaderSetup(
        workers=_number(first.get("num_workers")),
        pinned=_flag(first.get("pin_memory")),
        persistent=_flag(first.get("persistent_workers")),
        prefetch=_number(first.get("prefetch_factor")),
        sampler=sampler if isinstance(sampler, str) else None,
    )


def _device(value: object) -> str | None:
    """``cuda:0`` is of kind cuda."""
    kind = value.get("type") if isinstance(value, dict) else value
    return kind.partition(":")[0] if isinstance(kind, str) and kind else None


def _compiled(value: object) -> bool | None:
    """A flag, a number of compiled regions, or facts with either under ``count``."""
    counted = value.get("count") if isinstance(value, dict) else value
    return bool(counted) if isinstance(counted, (bool, int)) else None


def _mesh(value: object) -> tuple[str, ...]:
    """Names of dimensions: a list of them, or facts that hold one under ``dims``."""
    dims = value.get("dims", value.get("names", ())) if isinstance(value, dict) else value
    return tuple(str(name) for name in dims if name) if isinstance(dims, (list, tuple)) else ()


def _parameters(optimizer: object) -> int | None:
    by_type = optimizer.get("parameters") if isinstance(optimizer, dict) else None
    counts = [_number(each.get("elements")) for each in by_type.values()] if isinstance(by_type, dict) else []
    return sum(n for n in counts if n is not None) or None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
