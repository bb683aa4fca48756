"""Facts that no file tells and that a comparison needs: asked for, never guessed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from stepscope.core.errors import UsageError
from stepscope.core.words import counted, grouped
from stepscope.records.imported import Stated
from stepscope.records.nouns import Scaling
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence, Source
from stepscope.store.stated import require_known
from stepscope.store.stated_columns import absent_columns, no_such_column


def require_stated(evidence: Evidence, stated: Stated | None = None) -> None:
    """Raises UsageError where runs lack a fact that comparing them needs; it names all of them and the option to give.

    A fact is needed where a group has two runs or more with results; runs without any, and lonely ones, are shown
    without it. stated: what the user gave; a name in it that fits no run is an error too.
    """
    if stated is not None:
        require_known(evidence.runs, stated)
        if not any(each.traced for each in evidence.scaling_budgets):
            _require_taken(evidence.runs, stated.scaling)
        require_columns(evidence.sources, stated)
    lacking = _lacking(evidence.runs)
    if not lacking:
        return
    runs = dict.fromkeys(run.run_id for members in lacking.values() for run in members)
    reasons = [
        f"{run.run_id} ({run.source}): {run.missing[fact]}" for fact, members in lacking.items() for run in members
    ]
    raise UsageError(
        f"{counted(len(runs), 'run')} cannot be compared: {' and '.join(map(_words, lacking))} unknown for "
        f"{', '.join(runs)}",
        why="\n       ".join(reasons),
        fix="state what you know: " + " ".join(_option(*each) for each in lacking.items()),
    )


def require_columns(sources: Sequence[Source], stated: Stated) -> None:
    """Raises UsageError for a column whose meaning is stated and that no source has."""
    if not stated.columns:
        return
    tables = [source for source in sources if source.columns is not None]
    if not tables:
        raise UsageError("--columns: no table of results was given", fix="leave it out")
    names = [name for table in tables for name in table.columns or ()]
    for column in absent_columns(names, stated):
        raise no_such_column(column, names, *(table.path for table in tables))


def _require_taken(runs: Sequence[TrainingRun], scaling: Scaling | None) -> None:
    """Raises UsageError for a kind of scaling that no run here took: all of them know their own."""
    if scaling is None or any(run.scaling == scaling for run in runs):
        return
    if not runs:
        raise UsageError(f"--scaling {scaling}: no training runs were given", fix="leave it out")
    known = dict.fromkeys(run.scaling for run in runs if run.scaling is not None)
    raise UsageError(
        f"--scaling {scaling} contradicts the {counted(len(runs), 'run')}: {' and '.join(known)} by their own settings",
        fix="leave it out",
    )


def has_results(run: TrainingRun) -> bool:
    """Whether the run finished and timed anything."""
    if run.status != "ok":
        return False
    known = (run.step_ns, run.epoch_ns, run.samples_per_s)
    return any(value is not None for value in known) or any(e.duration_ns is not None for e in run.epochs)


def _lacking(runs: Iterable[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """Fact -> runs with results that lack it, in groups of two or more of them.

    The kind of scaling matters only where the runs are on different numbers of ranks.
    """
    groups = grouped(filter(has_results, runs), lambda run: run.group)
    found: dict[str, list[TrainingRun]] = {}
    for members in groups.values():
        same = len({run.world_size for run in members}) == 1 and members[0].world_size is not None
        for run in members if len(members) > 1 else ():
            for fact in run.missing:
                known = fact == "world_size" and run.world_size is not None
                if not known and not (fact == "scaling" and same):
                    found.setdefault(fact, []).append(run)
    return found


def _words(fact: str) -> str:
    return _WORDS.get(fact, f"{fact.replace('_', ' ')} is")


def _option(fact: str, lacking: Sequence[TrainingRun]) -> str:
    names = [run.run_id for run in lacking]
    if fact == "world_size":
        return f"--world-size {shlex.quote(','.join(f'{name}=RANKS' for name in names))}"
    if fact == "scaling":
        return "--scaling strong, or --scaling weak"
    return f"{fact} of {', '.join(names)}"


_WORDS: Mapping[str, str] = {"world_size": "the number of ranks is", "scaling": "the kind of scaling is"}
