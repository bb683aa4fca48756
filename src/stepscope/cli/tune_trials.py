"""The measurements of ``stepscope tune RUN|MATRIX``: cells as small matrices, each kind in a folder of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stepscope.cli.commands.tune import MATRIX
from stepscope.cli.console import log
from stepscope.core.words import counted
from stepscope.matrix.session import make_plan
from stepscope.matrix.tuning import (
    gain_of,
    learned_less,
    loss_change,
    loss_samples,
    loss_specs,
    matrix_of,
    overrides_of,
    repeated,
    score_of,
    settings_diff,
)
from stepscope.predict.halving import BASELINE, Score
from stepscope.records.cell import CellSpec
from stepscope.records.nouns import Estimate
from stepscope.records.samples import CellResult
from stepscope.records.tuning import Proposal
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_cell

LAUNCH = ("backend", "device", "threads_per_rank", "env", "isolate", "oversubscribe")


class Bench:
    """Runs matrices of trials, each in a folder of its own below ``root``."""

    def __init__(self, root: Path, *, launch: Mapping[str, Any], data_dir: Path | None) -> None:
        self.root, self.data_dir = root, data_dir
        self.launch = {key: launch[key] for key in LAUNCH if key in launch}

    def run(
        self, name: str, specs: Iterable[CellSpec], *, budget_s: float, comm: Mapping[str, Any] | None = None
    ) -> None:
        """Measure cells into the folder ``name``."""
        from stepscope.cli.bench_run import run_plan
        from stepscope.cli.commands.bench import Bench as Options

        measure = {"budget_s": budget_s, "ci": 0.005}
        document = matrix_of(specs, name=name, launch=self.launch, measure=measure, comm=comm)
        plan = make_plan(document, data_dir=self.data_dir)
        run_plan(plan, Options(output=self.root / name, data_dir=self.data_dir), printed=False)

    def read(self, name: str, spec: CellSpec) -> CellResult | None:
        """Return what a cell came to; None: it has not begun."""
        layout = RunLayout(self.root / name).cell(spec.cell_id)
        return read_cell(layout) if layout.spec.is_file() else None


class Tuning(Protocol):
    """What is tuned: a cell, or a command. of: as typed; root: folder of the trials. Called, it measures a rung."""

    of: str
    root: Path

    def __call__(self, rung: int, keys: Sequence[str]) -> Mapping[str, Score]: ...

    def work(self, key: str) -> float:
        """Return the samples of a step; of a command, over the baseline's."""

    def gain(self, rung: int, key: str) -> Estimate | None:
        """Return the throughput over the baseline's, repeat by repeat; None: the means say it."""

    def facts(self, key: str) -> Mapping[str, Any]:
        """Return what else is known of a trial, by field of ``Trial``."""

    def change(self, won: Proposal) -> tuple[tuple[str, ...], str | None]:
        """Return what the better configuration changes, line by line, and what follows "run it"; None: nothing."""


class Rungs:
    """Measures a rung of trials as one matrix, in which all of them and the baseline take turns. own: the user's cell."""

    def __init__(
        self, path: Path, own: CellSpec, bench: Bench, specs: Mapping[str, CellSpec], losses: Losses, *, budget_s: float
    ) -> None:
        self.of, self.root = str(path), bench.root
        self._own, self._bench, self._specs, self._losses, self._budget_s = own, bench, specs, losses, budget_s

    def __call__(self, rung: int, keys: Sequence[str]) -> Mapping[str, Score]:
        budget_s, times = self._budget_s * 2 ** (rung - 1), rung + 1
        log(
            f"rung {rung}: {counted(len(keys) - 1, 'configuration')} and the baseline, {times} times "
            f"{budget_s / times:.3g} s each",
            "bold",
        )
        cells = repeated({key: self._specs[key] for key in keys}, times)
        self._bench.run(f"rung-{rung}", cells.values(), budget_s=budget_s / times)
        return {key: score_of(self._repeats(rung, key)) for key in keys}

    def work(self, key: str) -> float:
        return self._specs[key].global_batch

    def gain(self, rung: int, key: str) -> Estimate | None:
        before, after = ([c for c in self._repeats(rung, of) if c is not None] for of in (BASELINE, key))
        return gain_of(before, after)

    def facts(self, key: str) -> Mapping[str, Any]:
        loss, change = self._losses.by_key.get(key, (None, None))
        return {"loss": loss, "loss_change": change}

    def change(self, won: Proposal) -> tuple[tuple[str, ...], str | None]:
        diff = settings_diff(self._own, self._specs[won.key], won)
        named_file = diff and self.of.endswith(MATRIX)
        return diff, f": stepscope bench {shlex.quote(self.of)} {' '.join(overrides_of(diff))}" if named_file else None

    def _repeats(self, rung: int, key: str) -> list[CellResult | None]:
        cells = repeated({key: self._specs[key]}, rung + 1)
        return [self._bench.read(f"rung-{rung}", spec) for spec in cells.values()]


class Losses:
    """Measures losses of configurations that change the mathematics, all of them on as many samples as the baseline.

    most: allowed change; None: it is not judged. by_key: (loss, its change); refused: why it is not accepted.
    """

    def __init__(self, bench: Bench, spec: CellSpec, most: float | None) -> None:
        self._bench, self._spec, self._most = bench, spec, most
        self._samples = 0
        self._asked: dict[str, CellSpec] = {}
        self.by_key: dict[str, tuple[float, float]] = {}
        self.refused: dict[str, str] = {}

    def judge(self, asked: Iterable[Proposal]) -> None:
        lossy = [proposal for proposal in asked if not proposal.exact]
        new = [proposal for proposal in lossy if proposal.key not in self._asked]
        if not new:
            return
        self._samples = self._samples or loss_samples(self._spec, lossy)
        self._asked |= loss_specs(self._spec, new, self._samples)
        log(f"loss of {counted(len(new), 'configuration')} and the baseline at the same samples", "bold")
        self._bench.run("loss", self._asked.values(), budget_s=3600)
        base = self._bench.read("loss", self._asked[BASELINE])
        for proposal in new:
            cell = self._bench.read("loss", self._asked[proposal.key])
            change = None if base is None or cell is None else loss_change(base, cell)
            if change is not None:
                self.by_key[proposal.key] = change
            why = None if self._most is None else learned_less(base, cell, self._most)
            if why is not None:
                self.refused[proposal.key] = why
