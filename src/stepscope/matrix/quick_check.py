"""``stepscope doctor --quick``: a few seconds of training on this machine, and what they say of its ranks."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import Interrupted, MissingError, UsageError
from stepscope.core.installing import install_extra
from stepscope.core.units import format_bandwidth, format_bytes, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.engine import check as apply_rule
from stepscope.diagnose.rules import REGISTRY as RULES
from stepscope.launch.join import joined_world
from stepscope.machine.collect import collect
from stepscope.machine.judging import Outcome, Status, failed, passed, skipped, warned
from stepscope.machine.verdicts import CheckVerdict
from stepscope.matrix.expand import PlannedCell, expand
from stepscope.matrix.kinds import BENCH
from stepscope.matrix.load import digest_lookup, matrix_of, resolved_matrix
from stepscope.matrix.machine import Machine, machine_of
from stepscope.matrix.runner import OnEvent, run_matrix
from stepscope.matrix.session import derive_results
from stepscope.matrix.work import RunRequest
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.plan import CommOp
from stepscope.results.evidence import CellEvidence, Evidence, Source
from stepscope.results.slow_ranks import StepCollective, comparable_ranks, excess_fractions, rank_times, step_collective
from stepscope.stats.compare import LEAST_STEPS
from stepscope.stats.step_table import StepTable
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_cell
from stepscope.store.yaml_loader import parse_yaml

BUDGET_S = 5
TIMEOUT_S = 25
VARIES = 2.0
"""p90 / median of the collective from which it is said to vary. Loopback with a free core per rank: 1.1 to 1.6 (2026-11)."""

_SIZES = {"cpu": (4, 512, 64), "cuda": (8, 4096, 256)}
"""(layers, width, samples a rank): 4 MB of gradients and about 0.4 GFLOP a step on a CPU, 0.5 GB and 0.2 TFLOP on a GPU."""


@record
class QuickCheck:
    """Everything that the check showed. times, collective: None where no step was timed, or on one rank."""

    cell: CellEvidence
    times: StepTable | None
    collective: StepCollective | None
    verdicts: tuple[CheckVerdict, ...]
    wall_ns: int

    @property
    def broken(self) -> tuple[CheckVerdict, ...]:
        return tuple(v for v in self.verdicts if v.outcome.status is Status.FAIL)


def quick_check(*, ranks: int | None, torch_timeout_s: float, show: OnEvent) -> QuickCheck:
    """Train for a few seconds on ``ranks`` (None: all GPUs, or 2 on the CPU) and judge. Leaves nothing behind."""
    if joined_world(os.environ) is not None:
        raise UsageError(
            "doctor --quick starts its own ranks and cannot do so inside a world that a launcher started",
            fix="run it on the host itself, without torchrun; in the launcher: `stepscope bench --preset quick -o DIR`",
        )
    started = time.monotonic_ns()
    environment = collect(torch_timeout_s=torch_timeout_s, remember=True)
    planned, request_of = _cell_and_request(environment, ranks)
    with tempfile.TemporaryDirectory(prefix="stepscope-quick-") as folder:
        layout = RunLayout(Path(folder) / "run")
        try:
            # torch leaves folders in TMPDIR
            run_matrix(request_of(layout=layout, cache_dir=Path(folder) / "cache", env={"TMPDIR": folder}), show)
        except Interrupted as stop:
            raise Interrupted("interrupted; nothing is left behind", signum=stop.exit_code - 128) from None
        (run,) = derive_results(layout)
        cell = CellEvidence(run=replace(run, source="doctor --quick"), result=read_cell(layout.cell(run.run_id)))
    return assess(cell, environment, planned.comm_plan, wall_ns=time.monotonic_ns() - started)


def assess(cell: CellEvidence, environment: EnvironmentRecord, plan: Sequence[CommOp], *, wall_ns: int) -> QuickCheck:
    """Judge what the steps of ``cell`` say of the machine. Pure. plan: its collectives in a step; wall_ns: of the whole
    check."""
    times = comparable_ranks(cell.result)
    collective = None if times is None else step_collective(plan, times)
    return QuickCheck(
        cell=cell,
        times=times,
        collective=collective,
        verdicts=tuple(_check_verdicts(cell, times, collective, environment)),
        wall_ns=wall_ns,
    )


def _cell_and_request(
    environment: EnvironmentRecord, ranks: int | None
) -> tuple[PlannedCell, Callable[..., RunRequest]]:
    """Return the cell, and what makes the request of a run once its folders are known."""
    if environment.torch is None:
        raise MissingError(
            "doctor --quick needs torch, and torch does not respond",
            why=environment.unavailable.get("torch"),
            fix=f"run `stepscope doctor` to see what is installed; install torch with `{install_extra('torch')}`",
        )
    machine = machine_of(environment)
    matrix = matrix_of(parse_yaml(matrix_text(machine, ranks), source="doctor --quick"), name="doctor-quick")
    cells = expand(matrix, machine=machine, digest_of=digest_lookup(None))
    refused = next((cell.unsupported for cell in cells if cell.unsupported), None)
    if refused is not None:
        raise MissingError(refused, fix="ask for fewer: --ranks N")
    return cells[0], partial(
        RunRequest,
        kind=BENCH,
        name="doctor-quick",
        matrix=resolved_matrix(matrix),
        cells=cells,
        measure=matrix.measure,
        usable_cores=environment.usable_cores,
        argv=("stepscope", "doctor", "--quick"),
        environment=environment,
    )


def matrix_text(machine: Machine, ranks: int | None) -> str:
    """Return the matrix of the check: one model, blocking all-reduce of all gradients in one piece after each step."""
    world = ranks or machine.num_gpus or 2
    depth, width, batch = _SIZES["cuda" if machine.num_gpus else "cpu"]
    strategy = "naive, strategy_options: {flat: true}" if world > 1 else "single"
    return (
        "version: 1\n"
        f"base: {{workload: deep_mlp, model: {{depth: {depth}, width: {width}}}, loss: mse, dataset: synthetic,\n"
        f"       dataset_options: {{samples: {4 * batch * world}}}, optimizer: sgd, lr: 1e-4, micro_batch: {batch},\n"
        f"       steps: auto, world_size: {world}, strategy: {strategy}}}\n"
        # An interval that is never reached: the budget decides, so that there are as many steps as it allows.
        f"measure: {{budget_s: {BUDGET_S}, ci: 0.0005, timeout_s: {TIMEOUT_S}}}\n"
    )


def _check_verdicts(
    cell: CellEvidence, times: StepTable | None, collective: StepCollective | None, environment: EnvironmentRecord
) -> Iterator[CheckVerdict]:
    """Yield what the quick run shows: step, collective, ranks that are slow."""
    run, ranks = cell.run, cell.spec.world_size
    if run.status != "ok" or run.step_ns is None:
        fix = (
            "run `stepscope doctor` to check torch, links and network, or `stepscope bench --preset quick` to keep logs"
        )
        yield _quick_verdict("training", failed(f"{run.status}: {run.error}", fix=fix))
        return
    steps = f"{run.step_ns.n} steps of {format_duration(run.step_ns.value)}"
    yield _quick_verdict("training", passed(f"{counted(ranks, 'rank')}: {steps}, replicas equal"))
    evidence = Evidence(
        sources=(Source(path=Path("doctor --quick"), kind="bench"),),
        runs=(cell.run,),
        cells=(cell,),
        environment=environment,
    )
    if ranks == 1:
        yield _quick_verdict("ranks", skipped("one rank: no other rank to compare with"))
    else:
        yield from _rule_verdict("straggler", "ranks", evidence, _ranks_message(times))
    if collective is not None:
        yield _collective_verdict(collective)
    yield from _rule_verdict("oversubscription", "threads", evidence, None)


def _rule_verdict(key: str, title: str, evidence: Evidence, good: str | None) -> Iterator[CheckVerdict]:
    """Yield the verdict of one rule. good: what it says where nothing is wrong."""
    outcome = apply_rule(RULES.load(key), evidence)
    if isinstance(outcome, Skipped):
        yield _quick_verdict(title, skipped(outcome.reason))
    elif isinstance(outcome, Quiet):
        yield _quick_verdict(title, passed(good or outcome.looked_at))
    else:
        for finding in outcome:
            advice = finding.advice[0] if finding.advice else None
            # Too many threads are a way to run, which was chosen; a slow rank is a fault of the machine.
            broken = finding.severity == "problem" and key == "straggler"
            status = Status.FAIL if broken else Status.WARN
            fix = None if advice is None else advice.text
            yield _quick_verdict(title, Outcome(status=status, message=finding.title, fix=fix))


def _ranks_message(times: StepTable | None) -> str | None:
    if times is None:
        return None
    return f"none is slow: the slowest takes {format_percent(max(excess_fractions(times)))} more than the others"


def _collective_verdict(collective: StepCollective) -> CheckVerdict:
    """Return whether the step's collective takes about the same time each time."""
    size = format_bytes(collective.size_bytes)
    text = (
        f"{collective.op} of {size}: {format_duration(collective.time_ns)}, p90 {format_duration(collective.p90_ns)}, "
    )
    text += f"busbw {format_bandwidth(collective.busbw_bytes_per_s)}"
    if collective.tail <= VARIES:
        return _quick_verdict("collective", passed(text))
    varies = f"{text}: unsteady ({collective.tail:.1f} times the median in one of ten steps)"
    fix = "check for other traffic or other jobs; `stepscope comm --pairs` finds a slow link"
    return _quick_verdict("collective", warned(varies, fix=fix))


def _quick_verdict(title: str, outcome: Outcome) -> CheckVerdict:
    return CheckVerdict(key=title, section="quick", title=title, outcome=outcome)


def summary(check: QuickCheck) -> str:
    """Return the verdict in one line."""
    if check.broken:
        return f"not healthy: {'; '.join(v.outcome.message for v in check.broken)}"
    warned = sum(v.outcome.status is Status.WARN for v in check.verdicts)
    text = "healthy" if not warned else f"healthy, {counted(warned, 'warning')}"
    if check.times is not None and check.times.steps < LEAST_STEPS:
        return f"{text}; too few steps to name slow ranks"
    return text


def rank_figures(check: QuickCheck, rank: int) -> dict[str, Any]:
    """Return own time of a rank (ns), what it takes beyond the others, how long it waits: medians over the steps."""
    times = check.times
    assert times is not None
    return {
        "rank": rank,
        "host": times.hosts[rank],
        "device": _device_names(check).get(rank),
        **asdict(rank_times(times, rank)),
    }


def _device_names(check: QuickCheck) -> dict[int, str]:
    return {summary.rank: summary.device_name for summary in check.cell.result.summaries}
