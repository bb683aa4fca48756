"""Every declared figure of inputs whose lengths are known: something fills it, in its unit, within its range.

The runs, diaries and traces go the way of a user's: samples through ``build_runs``, logs through importers, traces through
``analyse_job``. A field that only a test fills is therefore not filled.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import comm_rows, diaries, dry_ranks
from tests import fake_runs as fakes
from tests.trace_builder import build, write_job
from tests.unit.results import test_goodput as walls
from tests.unit.store.importers import test_notebook_results as notebook

from stepscope.core.dataclass import dataclass
from stepscope.diagnose.engine import diagnose
from stepscope.predict.dry.step import predict_dry
from stepscope.predict.step.layout import Cluster
from stepscope.records.dry_run import DryCall
from stepscope.records.nouns import Measured
from stepscope.records.parts import RECORDED
from stepscope.records.profile import FIRST
from stepscope.results.comparing import figures_by_step
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.figures import BETTER, FIGURES, Figure, run_facts
from stepscope.results.goodput import goodput
from stepscope.results.job_figures import job_figures
from stepscope.results.joining import derived
from stepscope.results.runs import Planned, build_runs
from stepscope.results.scaling import speedups
from stepscope.stats.step_table import trace_table
from stepscope.store.importers import read_foreign
from stepscope.store.layout import RunLayout
from stepscope.traces.diff import diff_profiles
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import EVERYTHING, Wanted

MS = 1_000_000
STEPS = 6
ZERO = {"hang_fraction"}
"""0 in every example: a job that still makes progress has none."""

FACTOR = 300
"""How far a time may be from the length of what it is a part of; base units are a factor of 1000 from the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """read: a figure's value; None: unknown. length_ns: of the input's step, epoch or window. batch: samples of it."""

    read: Callable[[Figure], Measured | float | None]
    length_ns: float
    batch: int = 64


def of_runs(folder: Path) -> Iterator[tuple[str, Example]]:
    """One rank and two for steps of 20 and 12 ms, two for epochs of 0.8 s, and a notebook's epochs of 8 s and less."""
    layout = RunLayout(folder / "cells")
    cells = (
        fakes.single("one"),
        fakes.spec("two"),
        fakes.spec("epochs", workload="text_classifier", dataset="ag_news", steps=None, epochs=3),
    )
    lengths = (20, 12, 200)
    for spec, ms in zip(cells, lengths, strict=True):
        steps = [fakes.step(n, ms * MS + n * 1000, warmup=n < 3, epoch=n // 4) for n in range(12)]
        epochs = [[fakes.epoch(n, 800 * MS) for n in range(3)]] * spec.world_size if spec.epochs else None
        fakes.write_cell(
            layout, spec, ranks=[steps] * spec.world_size, epochs=epochs, device_name="NVIDIA A100-SXM4-80GB"
        )
    plan = Planned(num_parameters=1000, comm_bytes_per_step=4000, train_flop_per_sample=10**9)
    runs = build_runs(layout, cells, plans={each.cell_id: plan for each in cells})
    rows = speedups(runs)
    for run, ms in zip(runs, lengths, strict=True):
        facts = run_facts(run, rows.get(run.run_id))
        yield "run", Example(read=partial(Figure.measured, facts=facts), length_ns=ms * MS)
        if run.epochs:
            yield "epoch", Example(read=partial(Figure.measured, facts=facts), length_ns=800 * MS)
    for run in read_foreign(notebook.write(folder, notebook.benchmark())).runs:
        yield "epoch", Example(read=partial(Figure.measured, facts=run_facts(run)), length_ns=8e9)
    evidence = derived(Evidence(sources=(), runs=runs))
    looked = SimpleNamespace(evidence=evidence, diagnosis=diagnose(evidence))
    yield "diagnosis", Example(read=partial(Figure.measured, facts=looked), length_ns=12 * MS)


def of_a_trace(folder: Path, **plan: Any) -> Iterator[tuple[str, Example]]:
    """A job whose first rank's events say how long it was."""
    write_job(build(steps=STEPS, **plan), folder)
    events = [e for e in json.loads((folder / "rank-0.json").read_text())["traceEvents"] if e.get("ph") == "X"]
    length_ns = (max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)) * 1000
    summary = analyse_job(folder, Wanted(sections=EVERYTHING | {"profile"}))
    profile = summary.ranks[0].profile
    assert profile is not None
    rows = {row.name: row.after_ns for row in diff_profiles(profile, profile).parts}
    yield "job", Example(read=partial(Figure.measured, facts=summary), length_ns=length_ns)
    yield "rank", Example(read=lambda figure: rows.get(str(figure.value)), length_ns=length_ns / STEPS)
    of_steps = figures_by_step(trace_table(summary.ranks))
    for at in range(STEPS):
        yield "step", Example(read=lambda figure, at=at: float(of_steps[figure.key][at]), length_ns=length_ns / STEPS)  # type: ignore[misc]
    evidence = Evidence(sources=(), traces=(TraceEvidence(name="job", summary=summary),))
    facts = SimpleNamespace(evidence=evidence, diagnosis=diagnose(evidence))
    yield "diagnosis", Example(read=partial(Figure.measured, facts=facts), length_ns=length_ns)


def of_jobs(folder: Path) -> Iterator[tuple[str, Example]]:
    """The diary of 36 ms steps, the wall time of one that was restarted, and the calls of a sweep."""
    diaries.planted(folder / "diary")
    diaries.write_samples(
        diaries.ProfileLayout(folder / "diary").diaries(0)[0],
        [2.0**30 + 2**20 * n for n in range(30)],
        **{name: [2.0**31 + 2**20 * n for n in range(30)] for name in ("allocated", "reserved")},
    )
    diaries.write_gpu(
        folder / "diary", {"ecc_corrected": 2, "ecc_uncorrected": 1, "nvlink_errors": 3}, rank=0, steps=200
    )
    diaries.write_hardware(
        folder / "diary", "ports-node0-0", {"send_drops": 4}, rank=0, steps=200, name="eth0", kind="net"
    )
    steps = diaries.job(folder / "diary").steps
    assert steps is not None
    found = job_figures(steps)
    for kind in ("steps", "shares", "memory", "hardware"):
        yield kind, Example(read=lambda figure: found[figure.key], length_ns=36 * MS)
    diaries.write_diary(folder / "parts", dict.fromkeys(RECORDED, [36.0 / len(RECORDED)] * 40))
    every_part = diaries.job(diaries.write_record(folder / "parts")).steps
    assert every_part is not None
    of_parts = job_figures(every_part)
    yield "steps", Example(read=lambda figure: of_parts[figure.key], length_ns=36 * MS)
    long = [400.0 if n in (10, 20, 30, 33, 36) else 20.0 for n in range(40)]
    events = [
        {"kind": kind, "step": step, "at_ns": 0, "ns": 300 * MS}
        for kind, step in (("compilation", 11), ("garbage_collection", 21), ("inference", 34), ("loader_start", 37))
    ]
    diaries.write_diary(folder / "long", {"forward": long}, events=events, flags=[FIRST] + [0] * 39)
    for wall in (walls.planted(folder / "wall"), goodput(diaries.job(diaries.write_record(folder / "long")))):
        yield "wall", Example(read=partial(Figure.measured, facts=wall), length_ns=20 * MS)
    for us in (50.0, 900.0):
        row = comm_rows.collective(1 << 20, us)
        yield "collective", Example(read=partial(Figure.measured, facts=row), length_ns=us * 1000)


def of_a_dry_run() -> Iterator[tuple[str, Example]]:
    """Large products, and a collective that only the end of the step waits for."""
    call = DryCall(op="all_reduce", size_bytes=1 << 30, dtype="float32", group=0, at=8, waited=None, phase="backward")
    large = dry_ranks.product(8192, 8192, 8192)
    rank = dry_ranks.dry_rank((large,) * 8, calls=(call,), groups=(tuple(range(8)),), peak=(1 << 30,) * 7)
    step = predict_dry(rank, Cluster.of("h100-sxm", 8))
    yield "dry", Example(read=partial(Figure.measured, facts=step), length_ns=step.step_ns, batch=8 * 4096)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Example]]:
    """By what their figures are of."""
    folder = tmp_path_factory.mktemp("figures")
    found: dict[str, list[Example]] = defaultdict(list)
    for kind, example in chain(
        of_runs(folder),
        of_a_trace(folder / "late", world=4, late={2: 900_000}, late_kind="compute", data_ns=100_000),
        of_a_trace(folder / "launches", world=2, late={0: 4_000_000, 1: 4_000_000}, late_kind="launch"),
        of_a_trace(folder / "fsdp", world=2, shape="fsdp", data_ns=100_000),
        of_jobs(folder),
        of_a_dry_run(),
    ):
        found[kind].append(example)
    return found


def measured(found: Measured | float) -> Measured:
    return found if isinstance(found, Measured) else Measured(value=found)


def plausible(figure: Figure, value: float, example: Example) -> bool:
    """Whether a value can be in the figure's unit: a time beside a known one, a rate beside batch and step."""
    if figure.unit == "ns":
        return 1 / FACTOR <= value / example.length_ns <= FACTOR
    if figure.unit == "per s":
        return 1 / FACTOR <= value * example.length_ns / 1e9 / example.batch <= FACTOR
    if figure.unit == "bytes":
        return value == round(value) and 2**10 <= value <= 2**42
    return value == round(value) if figure.unit == "count" else 1 / 1000 <= abs(value) <= 1000


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: f"{each.of}-{each.key}")
def test_a_figure_is_filled_in_its_unit_and_range(figure: Figure, examples: dict[str, list[Example]]) -> None:
    known = [(measured(found), each) for each in examples[figure.of] if (found := each.read(figure)) is not None]
    assert known, f"nothing fills {figure.key}: no example of {figure.of} has a value"
    low, high = figure.range
    for found, each in known:
        assert low <= found.value <= high
        assert found.low is None or found.high is None or low <= found.low <= found.value <= found.high <= high
        assert not found.value or plausible(figure, found.value, each), f"{found.value} is no number of {figure.unit}"
    assert any(found.value for found, _ in known) or figure.key in ZERO


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: f"{each.of}-{each.key}")
def test_a_figure_is_better_as_its_unit_is_unless_it_says_why_not(figure: Figure) -> None:
    assert (figure.because is None) == (figure.better == BETTER.get(figure.unit, figure.better))
