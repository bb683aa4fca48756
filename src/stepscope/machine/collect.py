"""Runs all probes and puts their facts into one EnvironmentRecord."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stepscope.core.errors import Unavailable
from stepscope.machine.probes import REGISTRY, Facts, ProbeContext
from stepscope.records.environment import EnvironmentRecord

_FIELDS = frozenset(field.name for field in dataclasses.fields(EnvironmentRecord)) - {"unavailable", "extra"}


def collect(
    *,
    torch_timeout_s: float = 60,
    with_torch: bool = True,
    remember: bool = False,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> EnvironmentRecord:
    """Collect everything there is to know about this machine and this shell.

    torch_timeout_s: seconds after which the torch probe is stopped (then ``torch`` is None, with the reason).
    with_torch: False leaves the torch probe out, which takes seconds where all others take tens of milliseconds.
    remember: what a CPU build of torch said last time need not be asked again.
    environ, cwd: the variables and the directory to look at; by default this process's own.

    ``unavailable`` maps the probe, or the field that one could not fill, to the reason.
    """
    context = ProbeContext(
        environ=dict(os.environ if environ is None else environ),
        cwd=Path.cwd() if cwd is None else cwd,
        torch_timeout_s=torch_timeout_s,
        remember=remember,
    )
    names = [name for name in REGISTRY.names() if with_torch or name != "torch"]
    probes = {name: REGISTRY.load(name) for name in names}
    with ThreadPoolExecutor(max_workers=len(probes)) as pool:
        running = {name: pool.submit(probe.run, context) for name, probe in probes.items()}
        results = {name: future.result() for name, future in running.items()}
    if not with_torch:
        results["torch"] = Unavailable("not asked for")
    return assemble(results)


def assemble(results: Mapping[str, Facts | Unavailable]) -> EnvironmentRecord:
    """The record from the probes' results; a fact that is no field of the record goes to ``extra`` under its probe."""
    values: dict[str, Any] = {"cpu_model": None, "physical_cores": None}
    unavailable: dict[str, str] = {}
    extra: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        if isinstance(result, Unavailable):
            unavailable[name] = result.reason
            continue
        for key, value in result.items():
            if isinstance(value, Unavailable):
                unavailable[key] = value.reason
            elif key in _FIELDS:
                values[key] = value
            else:
                extra.setdefault(name, {})[key] = value
    return EnvironmentRecord(**values, unavailable=dict(sorted(unavailable.items())), extra=extra)
