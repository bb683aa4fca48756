"""Evidence of several sources as one, what is worked out from all of its runs, and the facts
that no file tells: asked for, never guessed.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.places import telling_names
from stepscope.core.words import counted, grouped, unknown
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.imported import Stated
from stepscope.records.nouns import Scaling
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import ORIGIN_MARK, CellEvidence, Evidence, NoScaling, Source, TraceEvidence
from stepscope.results.scaling import scaling_rows
from stepscope.results.scaling_budget import scaling_budgets
from stepscope.store.columns import absent_columns, no_such_column
from stepscope.store.stated import require_known

_JOINED = (
    "sources", "runs", "cells", "comm", "arrivals", "records", "traces", "profiled", "dry", "nccl", "flight", "signs",
    "readings", "memory", "hardware", "files_found", "notes", "remarks",
)  # fmt: skip


def join(parts: Sequence[Evidence], names: Sequence[str] | None = None) -> Evidence:
    """Join all of ``parts``, one alone as it is; a run_id or a sweep that two have gets its source's name before it.

    names: of the parts; None: as their paths tell them apart. A fact that differs is left out.
    """
    if len(parts) < 2:
        return parts[0] if parts else Evidence(sources=())
    counts = Counter(run.run_id for part in parts for run in part.runs)
    clashing = {run_id for run_id, number in counts.items() if number > 1}
    sweeps = Counter(cell_id for part in parts for cell_id in {row.cell_id for row in part.comm})
    twice = {cell_id for cell_id, number in sweeps.items() if number > 1}
    names = names or telling_names([part.sources[0].path for part in parts])
    parts = [
        _with_own_sweeps(_renamed_part(part, clashing, name), twice, name)
        for part, name in zip(parts, names, strict=True)
    ]
    traced = Counter(trace.name for part in parts for trace in part.traces)
    parts = [
        replace(part, traces=tuple(_renamed_trace(trace, traced, name) for trace in part.traces))
        for part, name in zip(parts, names, strict=True)
    ]
    joined: dict[str, Any] = {name: tuple(x for p in parts for x in getattr(p, name)) for name in _JOINED}
    joined |= {name: tuple(dict.fromkeys(joined[name])) for name in ("notes", "remarks")}
    return Evidence(
        **joined,
        calibration=_common_value([p.calibration for p in parts]),
        environment=_one_machine([p.environment for p in parts]),
        topology=_common_value([p.topology for p in parts]),
    )


def _renamed_part(part: Evidence, clashing: set[str], name: str) -> Evidence:
    """Return the evidence with its name before each run, and before each run_id that another part has."""
    if not clashing:
        return part

    def run_of(run: TrainingRun) -> TrainingRun:
        baseline = run.baseline_id
        return replace(
            run,
            run_id=f"{name}/{run.run_id}" if run.run_id in clashing else run.run_id,
            label=f"{name}: {run.label}",
            baseline_id=f"{name}/{baseline}" if baseline in clashing else baseline,
        )

    def cell_of(cell: CellEvidence) -> CellEvidence:
        return replace(cell, run=run_of(cell.run))

    return replace(part, runs=tuple(map(run_of, part.runs)), cells=tuple(map(cell_of, part.cells)))


def _renamed_trace(trace: TraceEvidence, names: Counter[str], name: str) -> TraceEvidence:
    """Return a job with its source's name, where another source has one of the same name."""
    if names[trace.name] < 2:
        return trace
    return replace(trace, name=name if name.endswith(trace.name) else f"{name}: {trace.name}")


def _with_own_sweeps(part: Evidence, twice: set[str], name: str) -> Evidence:
    """Return the evidence with its name before the sweeps that another part has, too."""
    if not twice:
        return part
    rows = (
        replace(row, cell_id=f"{name}{ORIGIN_MARK}{row.cell_id}") if row.cell_id in twice else row for row in part.comm
    )
    return replace(part, comm=tuple(rows))


def _one_machine(environments: Sequence[EnvironmentRecord | None]) -> EnvironmentRecord | None:
    """Return the first environment where all are of one machine: what is free on it changes from run to run."""
    there = [e for e in environments if e is not None]
    machines = {(e.host, e.cpu_model, e.usable_cores, e.memory_bytes, tuple(gpu.name for gpu in e.gpus)) for e in there}
    return there[0] if len(machines) == 1 else None


def _common_value(values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    return there[0] if there and all(value == there[0] for value in there) else None


def as_given(parts: Sequence[Evidence], names: Sequence[str] | None = None) -> Evidence:
    """Join ``parts``. Two that hold a run each, on different numbers of ranks, are a run and its baseline.

    What keeps them from being compared is a remark.
    """
    evidence = join(parts, names)
    runs = [run for run in evidence.runs if run.status == "ok"]
    alone = len(parts) == 2 and all(sum(run.status == "ok" for run in part.runs) == 1 for part in parts)
    if not alone or any(part.cells for part in parts):
        return evidence
    unknown = [run.run_id for run in runs if run.world_size is None]
    differ = [key for key in _ALIKE if len({getattr(run, key) for run in runs} - {None}) > 1]
    if unknown:
        option = shlex.quote(",".join(f"{name}=RANKS" for name in unknown))
        why = f"the number of ranks is unknown: state --world-size {option}"
    elif runs[0].world_size == runs[1].world_size:
        return evidence
    elif differ:
        why = "; ".join(f"{key} is {getattr(runs[0], key)} and {getattr(runs[1], key)}" for key in differ)
    else:
        base, run = sorted(runs, key=lambda candidate: candidate.world_size or 0)
        named = replace(run, baseline_id=run.baseline_id or base.run_id)
        return replace(evidence, runs=tuple(named if other is run else other for other in evidence.runs))
    return replace(evidence, remarks=(*evidence.remarks, NoScaling(f"no scaling verdict of the two runs: {why}")))


_ALIKE = ("model", "dataset", "precision", "unit", "device", "hardware")
"""What a run and its baseline must have in common, as far as both tell."""


def require_stated(evidence: Evidence, stated: Stated | None = None) -> None:
    """Raise UsageError where runs lack a fact that comparing them needs; it names all of them and the option to give.

    A fact is needed where a group has two runs or more with results; runs without any, and lonely ones, are shown without
    it. stated: what the user gave; a name in it that fits no run is an error too.
    """
    if stated is not None:
        require_known(evidence.runs, stated, tables_of(evidence))
        if not any(scaling_budget.traced for scaling_budget in evidence.scaling_budgets):
            _require_taken(evidence.runs, stated.scaling)
        require_columns(evidence.sources, stated)
    lacking = _runs_by_lacking_fact(evidence.runs)
    if not lacking:
        return
    runs = dict.fromkeys(run.run_id for members in lacking.values() for run in members)
    reasons = [
        f"{run.run_id} ({run.source}): {run.missing[fact]}" for fact, members in lacking.items() for run in members
    ]
    raise UsageError(
        f"{counted(len(runs), 'run')} cannot be compared: {' and '.join(map(_fact_text, lacking))} unknown for "
        f"{', '.join(runs)}",
        why="\n       ".join(reasons),
        fix="state what you know: " + " ".join(_option_text(*item) for item in lacking.items()),
    )


def tables_of(evidence: Evidence) -> list[tuple[str, str]]:
    """Return (title, file) of what importers read of measured collectives, whose ranks the user may state."""
    read = [source for source in evidence.sources if source.format == "nccl_tests"]
    titles = dict.fromkeys(row.cell_id for row in evidence.comm) if read else {}
    return [(title, "") for title in titles] + [("", str(source.path)) for source in read]


def require_columns(sources: Sequence[Source], stated: Stated) -> None:
    """Raise UsageError for a column whose meaning is stated and that no source has."""
    if not stated.columns:
        return
    tables = [source for source in sources if source.columns is not None]
    if not tables:
        raise UsageError("--columns: no table of results was given", fix="leave it out")
    names = [name for table in tables for name in table.columns or ()]
    for column in absent_columns(names, stated):
        raise no_such_column(column, names, *(table.path for table in tables))


def _require_taken(runs: Sequence[TrainingRun], scaling: Scaling | None) -> None:
    """Raise UsageError for a kind of scaling that no run here took: all of them know their own."""
    if scaling is None or any(run.scaling == scaling for run in runs):
        return
    if not runs:
        raise UsageError(f"--scaling {scaling}: no training runs were given", fix="leave it out")
    kinds = dict.fromkeys(run.scaling for run in runs if run.scaling is not None)
    raise UsageError(
        f"--scaling {scaling} contradicts the {counted(len(runs), 'run')}: {' and '.join(kinds)} by their own settings",
        fix="leave it out",
    )


def has_results(run: TrainingRun) -> bool:
    """Whether the run finished and timed anything."""
    if run.status != "ok":
        return False
    figures = (run.step_ns, run.epoch_ns, run.samples_per_s)
    return any(value is not None for value in figures) or any(e.duration_ns is not None for e in run.epochs)


def _runs_by_lacking_fact(runs: Iterable[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """Return the runs with results that lack each fact, in groups of two or more of them.

    The kind of scaling matters only where the runs are on different numbers of ranks.
    """
    groups = grouped(filter(has_results, runs), lambda run: run.group)
    lacking: dict[str, list[TrainingRun]] = {}
    for members in groups.values():
        same = len({run.world_size for run in members}) == 1 and members[0].world_size is not None
        for run in members if len(members) > 1 else ():
            for fact in run.missing:
                given = fact == "world_size" and run.world_size is not None
                if not given and not (fact == "scaling" and same):
                    lacking.setdefault(fact, []).append(run)
    return lacking


def _fact_text(fact: str) -> str:
    return _WORDS.get(fact, f"{fact.replace('_', ' ')} is")


def _option_text(fact: str, lacking: Sequence[TrainingRun]) -> str:
    """Return the option that states a fact for these runs."""
    names = [run.run_id for run in lacking]
    if fact == "world_size":
        return f"--world-size {shlex.quote(','.join(f'{name}=RANKS' for name in names))}"
    if fact == "scaling":
        return "--scaling strong, or --scaling weak"
    return f"{fact} of {', '.join(names)}"


_WORDS: Mapping[str, str] = {"world_size": "the number of ranks is", "scaling": "the kind of scaling is"}


def derived(
    evidence: Evidence, *, drop_epochs: int = 1, targets: Sequence[float] = (), stated: Scaling | None = None
) -> Evidence:
    """Return ``evidence`` with ``scaling`` worked out from its runs, and ``scaling_budgets``. stated: the scaling of its
    traces."""
    scaled = replace(evidence, scaling=scaling_rows(evidence.runs, drop_epochs=drop_epochs, targets=targets))
    budgets, notes = scaling_budgets(scaled, stated=stated, drop_epochs=drop_epochs)
    return replace(scaled, scaling_budgets=budgets, remarks=tuple(dict.fromkeys((*scaled.remarks, *notes))))


def on_datasets(evidence: Evidence, names: Sequence[str], *, drop_epochs: int = 1) -> Evidence:
    """Keep the runs on the data sets named, however they are written: ``AGNews`` is ``AG News``. Raises UsageError."""
    there = {_letters_and_digits(run.dataset): run.dataset for run in evidence.runs if run.dataset}
    for name in names:
        if _letters_and_digits(name) not in there:
            if not there:
                raise UsageError(
                    f"--datasets {name}: no run in these results names its data set", fix="remove --datasets"
                )
            raise UsageError(unknown("data set", name, sorted(there.values())))
    wanted = {_letters_and_digits(name) for name in names}
    runs = tuple(run for run in evidence.runs if _letters_and_digits(run.dataset or "") in wanted)
    cells = tuple(cell for cell in evidence.cells if _letters_and_digits(cell.run.dataset or "") in wanted)
    return derived(replace(evidence, runs=runs, cells=cells), drop_epochs=drop_epochs)


def _letters_and_digits(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())
