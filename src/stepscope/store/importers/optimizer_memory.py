"""JSON of memory a rank by phase of a step, with plain or sharded optimizer state (CS336's second assignment)."""

from __future__ import annotations

from pathlib import Path

from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._fields import Fields, read_fields
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._training import (
    GIB,
    MS,
    label,
    measured,
    require_agreement,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

_SUFFIXES = (".json",)
_KINDS = {
    "parameters": "parameters_gib",
    "gradients": "gradients_gib",
    "optimizer": "optimizer_states_gib",
    "other": "other_gib",
}
_LAST_DIGIT = 0.001


def _knows(candidate: Candidate) -> bool:
    text = candidate.text
    return text.lstrip().startswith("{") and '"phase_peak_gib"' in text and '"optimizer_states_gib"' in text


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    runs = with_unique_ids(run for part in parts for run in part)
    alone = len({run.strategy for run in runs}) == 1
    if alone:
        notes = (*notes, f"only mode {runs[0].strategy!r} is here: nothing to compare its memory with")
    return Imported(format="optimizer_memory", path=str(path), runs=with_stated(runs, stated), notes=notes)


def _read_file(path: Path) -> tuple[TrainingRun, ...]:
    found = read_fields(path)
    config, results = found.part("config"), found.parts("results")
    if not results:
        raise found.wrong("results", "at least one result")
    alone = len(results) == 1
    return tuple(
        _run(path, config, each, path.stem if alone else f"{path.stem}-{each.text('mode')}") for each in results
    )


def _run(path: Path, config: Fields, found: Fields, run_id: str) -> TrainingRun:
    world_size, mode = config.count("world_size"), found.text("mode")
    precision = found.text("compute_dtype") if found.flag("mixed_precision") else "fp32"
    model = f"transformer {config.count('num_layers')} x {config.count('d_model')}"
    memory = found.part("memory")
    peak, phase = _peak(memory, world_size)
    return TrainingRun(
        run_id=run_id,
        label=label(mode, world_size),
        group=f"{model}, context {config.count('context_length')}, {precision}",
        source=str(path),
        status="ok",
        world_size=world_size,
        model=model,
        strategy=mode,
        precision=precision,
        num_parameters=found.count("num_parameters"),
        step_ns=measured(found.positive("iteration_ms"), scale=MS, n=config.maybe(config.count, "steps")),
        peak_memory_bytes=round(peak * GIB),
        memory={kind: round(phase.amount(key) * GIB) for kind, key in _KINDS.items()},
        settings={
            **config.plain("batch_size", "vocab_size", "context_length", "d_model", "d_ff", "num_layers"),
            **config.plain("num_heads", "lr"),
        },
        notes=(
            "the file does not say whether batch_size is of a rank or of all: no throughput",
            "kinds of memory are those at the end of the phase with the highest peak",
            f"peaks by phase: {_phase_peaks(memory)}",
        ),
    )


def _peak(memory: Fields, world_size: int) -> tuple[float, Fields]:
    """(highest peak of all ranks and phases in GiB, that phase); checked against what the file calls so."""
    ranks = memory.parts("per_rank")
    if sorted(rank.whole("rank") for rank in ranks) != list(range(world_size)):
        raise memory.wrong("per_rank", f"the ranks 0 to {world_size - 1}, each once")
    phases = [_phase(rank, name) for rank in ranks for name in rank.part("phases").values]
    if not phases:
        raise memory.wrong("per_rank", "at least one phase a rank")
    peak, first = max(((phase.positive("phase_peak_gib"), -i) for i, phase in enumerate(phases)))
    stated = memory.part("run_peak").positive("phase_peak_gib")
    require_agreement(
        memory.source,
        f"{memory.at}.run_peak",
        stated=stated,
        derived=peak,
        formula="the highest phase_peak_gib of all ranks",
        tolerance=_LAST_DIGIT / peak,
    )
    return peak, phases[-first]


def _phase(rank: Fields, name: str) -> Fields:
    return rank.part("phases").part(name)


def _phase_peaks(memory: Fields) -> str:
    """Highest peak of all ranks by phase, in words."""
    found: dict[str, float] = {}
    for rank in memory.parts("per_rank"):
        for name in rank.part("phases").values:
            found[name] = max(_phase(rank, name).positive("phase_peak_gib"), found.get(name, 0.0))
    return ", ".join(f"{name} {peak:g} GiB" for name, peak in found.items())


IMPORTER = Importer(title="optimizer memory a rank by phase (JSON)", recognises=_recognises, read=_read, rank=30)
