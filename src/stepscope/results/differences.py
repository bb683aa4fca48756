"""How two or more runs were made: what is not the same, before anybody compares their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.records.comparison import Difference
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence

_RUN_FIELDS = (
    "model", "dataset", "strategy", "precision", "accumulation", "world_size", "micro_batch", "global_batch", "scaling",
    "device", "backend", "hardware", "num_parameters",
)  # fmt: skip


def differences(sides: Sequence[Evidence], pairs: Sequence[tuple[TrainingRun, TrainingRun]]) -> tuple[Difference, ...]:
    """Machine and software first, then settings of paired runs (with two sides); each with its value on every side."""
    found = [*_machines(sides)]
    if len(sides) == 2:
        found += _settings(pairs)
    return tuple(found)


def _machines(sides: Sequence[Evidence]) -> list[Difference]:
    facts = [_facts(side.environment) for side in sides]
    software = [_software(side.environment) for side in sides]
    hardware = tuple(", ".join(side.hardware) or None for side in sides)
    named = [Difference(where="machine", key="hardware", values=hardware)] if len(set(hardware)) > 1 else []
    return [
        *named,
        *(Difference(where="machine", key=k, values=v) for k, v in _unequal(facts)),
        *(Difference(where="software", key=k, values=v) for k, v in _unequal(software)),
    ]


def _facts(environment: EnvironmentRecord | None) -> Mapping[str, Any]:
    if environment is None:
        return {}
    gpus: dict[str, int] = {}
    for gpu in environment.gpus:
        gpus[gpu.name] = gpus.get(gpu.name, 0) + 1
    return {
        "host": environment.host,
        "cpu": environment.cpu_model,
        "usable cores": environment.usable_cores,
        "memory bytes": environment.memory_bytes,
        "gpus": ", ".join(f"{n} x {name}" for name, n in gpus.items()) or "none",
        "power limit W": ", ".join(sorted({f"{g.power_limit_w:.0f}" for g in environment.gpus if g.power_limit_w}))
        or None,
        "link matrix": environment.topology,
        "scheduling": environment.scheduling_policy,
    }  # fmt: skip


def _software(environment: EnvironmentRecord | None) -> Mapping[str, Any]:
    if environment is None:
        return {}
    torch = environment.torch
    drivers = sorted({gpu.driver_version for gpu in environment.gpus if gpu.driver_version})
    return {
        "os": environment.os,
        "kernel": environment.kernel,
        "python": environment.python,
        "torch": None if torch is None else torch.version,
        "cuda": None if torch is None else torch.cuda_version,
        "nccl": None if torch is None else torch.nccl_version,
        "driver": ", ".join(drivers) or None,
        **{f"package {name}": version for name, version in environment.packages.items()},
        **{f"variable {name}": value for name, value in environment.variables.items()},
    }


def _settings(pairs: Sequence[tuple[TrainingRun, TrainingRun]]) -> list[Difference]:
    """Settings that differ within a pair, once each where all pairs differ alike."""
    seen: dict[tuple[str, tuple[str | None, ...]], None] = {}
    for before, after in pairs:
        for key, values in _unequal([_run(before), _run(after)]):
            seen[key, values] = None
    return [Difference(where="settings", key=key, values=values) for key, values in seen]


def _run(run: TrainingRun) -> Mapping[str, Any]:
    fields = {name: getattr(run, name) for name in _RUN_FIELDS}
    return {**fields, **{key: value for key, value in run.settings.items() if key not in fields}}


def _unequal(sides: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str | None, ...]]]:
    """Keys whose values are not the same on all sides that know anything, with each side's text."""
    keys = dict.fromkeys(key for side in sides for key in side)
    found = []
    for key in keys:
        values = tuple(_text(side.get(key)) for side in sides)
        if len(set(values)) > 1:
            found.append((key, values))
    return found


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
