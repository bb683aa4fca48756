"""From a command's paths and options to evidence: `diagnose`, `report` and `compare` read them alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from stepscope.cli.command import given, spelled
from stepscope.cli.console import err
from stepscope.cli.evidence_options import EvidenceOptions
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown

if TYPE_CHECKING:
    from stepscope.records.imported import Stated
    from stepscope.records.training import Scaling
    from stepscope.results.evidence import Evidence

_STOPPED = "terminated while reading"
SCALINGS = ("strong", "weak")

WORTH_SAYING = 4 << 20
"""Bytes of a trace, mostly packed, from which on reading it takes long enough for a word on the terminal."""


def read_evidence(options: EvidenceOptions, *, spans: bool = False) -> Evidence:
    """The evidence at the paths. Raises DataError, and UsageError for facts that only the user knows.

    spans: also what timelines draw, of every trace.
    """
    from stepscope.core.signals import stop_signals_raise
    from stepscope.results.missing import require_stated

    stated = _stated(options)
    with stop_signals_raise(_STOPPED):
        evidence = _load(options.paths, options, stated, spans=spans)
    require_stated(evidence, stated)
    for name in ("drop_epochs", "target_accuracy"):
        if name in given(options) and not any(run.epochs for run in evidence.runs):
            raise UsageError(f"{spelled(type(options), name)} changes nothing: no run here has epochs")
    _require_epochs(evidence, options)
    return evidence


def _require_epochs(evidence: Evidence, options: EvidenceOptions) -> None:
    """Raises UsageError where --drop-epochs leaves out all epochs of every run."""
    if "drop_epochs" in given(options):
        from stepscope.core.words import counted
        from stepscope.results.figures import timed_epochs

        most = max((len({epoch.number for epoch in timed_epochs(run)}) for run in evidence.runs), default=0)
        if most and options.drop_epochs >= most:
            raise UsageError(
                f"{spelled(type(options), 'drop_epochs')} {options.drop_epochs} leaves no epoch",
                why=f"no run has more than {counted(most, 'timed epoch')}",
                fix=f"leave out at most {most - 1}" if most > 1 else "leave the option out",
            )


def read_each(options: EvidenceOptions) -> tuple[Evidence, ...]:
    """As ``read_evidence``, every path by itself; what the user states may be of a run at any of them."""
    from stepscope.core.places import telling_names
    from stepscope.core.signals import stop_signals_raise
    from stepscope.results.joining import join
    from stepscope.results.missing import require_columns, require_stated
    from stepscope.store.stated import require_known, stated_of_source

    stated = _stated(options)
    names = telling_names(options.paths)
    found = []
    with stop_signals_raise(_STOPPED):
        for path, name in zip(options.paths, names, strict=True):
            evidence = _load((path,), options, stated_of_source(stated, name, names))
            require_stated(evidence)
            _require_epochs(evidence, options)
            found.append(evidence)
    require_known(join(found, names).runs, stated)
    require_columns([source for evidence in found for source in evidence.sources], stated)
    return tuple(found)


def scaling_of(text: str | None) -> Scaling | None:
    """What ``--scaling`` says. Raises UsageError."""
    if text is not None and text not in SCALINGS:
        raise UsageError(unknown("--scaling", text, SCALINGS))
    return cast("Scaling | None", text)


def _stated(options: EvidenceOptions) -> Stated:
    from stepscope.records.imported import Stated
    from stepscope.store.stated import parse_columns, parse_world_sizes

    return Stated(
        world_size={} if options.world_size is None else parse_world_sizes(options.world_size),
        scaling=scaling_of(options.scaling),
        columns={} if options.columns is None else parse_columns(options.columns),
    )


def _load(paths: tuple[Path, ...], options: EvidenceOptions, stated: Stated, *, spans: bool = False) -> Evidence:
    from stepscope.results.open import load_evidence

    return load_evidence(
        paths,
        stated=stated,
        cell=options.cell,
        drop_epochs=options.drop_epochs,
        targets=_targets(options.target_accuracy),
        spans=spans,
        on_trace=_said if err().is_terminal else None,
    )


def _targets(text: str | None) -> tuple[float, ...]:
    """Accuracies between 0 and 1. Raises UsageError."""
    found = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 1:
            raise UsageError(
                f"--target-accuracy {part.strip()!r} is not an accuracy between 0 and 1",
                fix="for example --target-accuracy 0.75,0.77",
            )
        found.append(value)
    return tuple(found)


def _said(path: Path) -> None:
    if path.stat().st_size < WORTH_SAYING:
        return
    err().print(f"read {path.name}", style="dim")
