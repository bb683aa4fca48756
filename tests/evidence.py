"""Hand-made evidence for rules, charts and tables: everything has a default, tests name what matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.records.nouns import Measured
from stepscope.records.training import Epoch, TrainingRun
from stepscope.results.evidence import Evidence, Source
from stepscope.results.joining import derived

MS = 1_000_000.0


def run(run_id: str, *, ranks: int | None = 1, **known: Any) -> TrainingRun:
    """A finished training run of group ``toy`` on ``ranks`` ranks; ``known``: any other field."""
    fields: dict[str, Any] = {
        "label": f"{run_id} on {ranks} ranks",
        "group": "toy",
        "source": "made by hand",
        "status": "ok",
        "scaling": "strong",
    }
    return TrainingRun(run_id=run_id, world_size=ranks, **{**fields, **known})


def step(ms: float, *, spread: float = 0.01, n: int = 40) -> Measured:
    """A measured time of ``ms`` milliseconds, its interval +- ``spread``."""
    return Measured(value=ms * MS, low=ms * MS * (1 - spread), high=ms * MS * (1 + spread), n=n)


def rate(samples_per_s: float, *, spread: float = 0.01, n: int = 40) -> Measured:
    """A throughput with its interval."""
    return Measured(value=samples_per_s, low=samples_per_s * (1 - spread), high=samples_per_s * (1 + spread), n=n)


def epochs(
    *,
    seconds: list[float],
    loss: list[float] | None = None,
    accuracy: list[float] | None = None,
    seen: int | None = None,
) -> tuple[Epoch, ...]:
    """Epochs from 1 with their time, training loss and validation accuracy."""
    return tuple(
        Epoch(
            number=at + 1,
            duration_ns=time * 1e9,
            train_loss=None if loss is None else loss[at],
            validation_accuracy=None if accuracy is None else accuracy[at],
            samples_seen=seen,
        )
        for at, time in enumerate(seconds)
    )


def evidence(*runs: TrainingRun, drop_epochs: int = 1, **parts: Any) -> Evidence:
    """Evidence of these runs (scaling worked out) and any other ``parts``."""
    made = Evidence(sources=(Source(path=Path("hand-made"), kind="imported"),), runs=runs, **parts)
    return derived(made, drop_epochs=drop_epochs)
