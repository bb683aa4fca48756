"""What ``stepscope tune RUN|MATRIX`` does: look at the cell, propose, measure by halving, show the better cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import duration_ns, listed, require_only
from stepscope.cli.commands.tune import MATRIX
from stepscope.cli.console import log, print_document, say
from stepscope.cli.findings import show_table
from stepscope.cli.tune_trials import Bench, Losses, Rungs, Tuning
from stepscope.core.errors import DataError, ExitCode, Interrupted, StepscopeError, UsageError
from stepscope.core.units import format_percent
from stepscope.core.words import counted, in_words, named, unknown
from stepscope.matrix import proposals as proposing
from stepscope.matrix.load import resolved_matrix
from stepscope.matrix.run_folder import default_run_dir
from stepscope.matrix.session import make_plan
from stepscope.matrix.tuning import (
    PROBE,
    failure_of,
    trial_spec,
    trial_specs,
)
from stepscope.predict.halving import BASELINE, Contender, Found, Lost, chosen, search
from stepscope.records import codec
from stepscope.records.cell import CellSpec
from stepscope.records.nouns import Estimate
from stepscope.records.tuning import CHANGES_MATHEMATICS, Proposal, Trial, Tuned
from stepscope.report.views.tuned import tuned_table
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_calibration, read_cells, read_if_there, read_run
from stepscope.store.writer import write_record

if TYPE_CHECKING:
    from stepscope.cli.commands.tune import Tune
    from stepscope.predict.overlap import Transport
    from stepscope.predict.prices import Prices

SIZES = "4K:16M:4"
LOOK_S = 10
"""Seconds of the first look at the cell; each size of its collectives has a tenth."""


def run(options: Tune) -> int:
    """Tune what the words name; the exit code. Raises StepscopeError."""
    words = options.words
    require_only(options, "a run or a matrix", vars(options).keys() - {"knob", "hook_knobs", "start"})
    budget_s = duration_ns("--budget", options.budget) / 1e9
    allowed = allowed_knobs(options.allow)
    most = loss_limit(options.max_loss_change)
    path = Path(words[0])
    if not (RunLayout(path).is_there or (path.suffix in MATRIX and path.is_file())):
        raise UsageError(
            f"{path} is neither a run of `stepscope bench` nor a matrix file (.yaml)",
            why="it does not exist" if not path.exists() else None,
            fix="stepscope tune MATRIX.yaml, stepscope tune RUN",
        )
    return tune_cell(path, options, budget_s=budget_s, allowed=allowed, max_loss_change=most)


def allowed_knobs(texts: Sequence[str]) -> frozenset[str]:
    """Read --allow. Raises UsageError."""
    words = {word for text in texts for word in listed(text)}
    if strange := sorted(words - CHANGES_MATHEMATICS - {"all"}):
        raise UsageError(unknown("--allow", strange[0], {*CHANGES_MATHEMATICS, "all"}))
    return CHANGES_MATHEMATICS if "all" in words else frozenset(words)


def loss_limit(text: str | None) -> float | None:
    """Read --max-loss-change as a share. Raises UsageError."""
    if text is None:
        return None
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        raise UsageError(f"--max-loss-change {text!r}: expected a share such as 2% or 0.02")
    return value


def tune_cell(
    path: Path, options: Tune, *, budget_s: float, allowed: frozenset[str], max_loss_change: float | None
) -> int:
    """Tune a cell of a run or of a matrix; the exit code."""
    spec, launch, data_dir = _cell(path, options)
    root = options.output or default_run_dir(f"tune-{spec.workload}-{spec.strategy}".replace(":", "."))
    bench = Bench(root, launch=launch, data_dir=data_dir)
    outcome, learnt = Found(best=BASELINE, lost={}, scores=()), dict[str, Proposal]()
    try:
        basis = _measure_basis(bench, spec, options)
        losses = Losses(bench, basis.cell.spec, max_loss_change)
        if max_loss_change is not None and not options.plan:
            basis, learnt = learning(basis, losses)
        allowed = allowed if max_loss_change is None else CHANGES_MATHEMATICS
        offered = proposing.proposals(replace(basis, allowed=allowed))
        tried, left_out = admitted(offered, options.trials, allowed=allowed)
        offered += tuple(learnt.values())
        left_out |= {key: losses.refused[key] for key in learnt}
        rungs = Rungs(path, spec, bench, trial_specs(basis.cell.spec, tried), losses, budget_s=budget_s)
        if not options.plan and tried:
            losses.judge(tried)
            outcome = search([candidate(proposal) for proposal in tried if proposal.key not in losses.refused], rungs)
    except Interrupted as stop:
        raise Interrupted(
            stop.what,
            signum=stop.exit_code - 128,
            fix=f"what has finished is kept: the same command with `-o {root}` continues",
        ) from None
    return conclude(
        rungs, options, tried, outcome, lost={**outcome.lost, **losses.refused}, offered=offered, left_out=left_out
    )


def conclude(
    tuning: Tuning,
    options: Tune,
    tried: Sequence[Proposal],
    outcome: Found,
    *,
    lost: Mapping[str, str],
    offered: Sequence[Proposal],
    left_out: Mapping[str, str],
) -> int:
    """Write and print what a search came to; the exit code. lost: key -> why it is out."""
    trials = []
    for key, proposal in ({BASELINE: None} | {proposal.key: proposal for proposal in tried}).items():
        numbers = [number for number, scores in enumerate(outcome.scores, start=1) if key in scores]
        scores = outcome.scores[numbers[-1] - 1] if numbers else {}
        score, base = scores.get(key), scores.get(BASELINE)
        trial = Trial(key=key, proposal=proposal, rungs=len(numbers), lost=lost.get(key), **tuning.facts(key))
        if isinstance(score, Estimate):
            trial = replace(trial, sample=score, step_ns=score.value * tuning.work(key))
            if proposal is not None and isinstance(base, Estimate):
                trial = replace(trial, gain=tuning.gain(numbers[-1], key) or base.over(score))
        elif proposal is not None and trial.lost is None:
            trial = replace(trial, lost="not tried")
        trials.append(trial)
    won = next((proposal for proposal in tried if proposal.key == outcome.best), None)
    diff, run_it = ((), None) if won is None else tuning.change(won)
    tuned = Tuned(
        of=tuning.of,
        best=outcome.best,
        trials=tuple(trials),
        left_out=left_out,
        proposals=tuple(offered),
        diff=diff,
    )
    tell(tuned, tuning.root, options, run_it=run_it)
    failed = outcome.scores and isinstance(outcome.scores[0].get(BASELINE), Lost)
    return ExitCode.ALL_CELLS_FAILED if failed else ExitCode.OK


def _cell(path: Path, options: Tune) -> tuple[CellSpec, dict[str, Any], Path | None]:
    """Return the cell to tune, how its ranks start, where its data lies. Raises StepscopeError."""
    layout = RunLayout(path)
    if layout.is_there:
        if options.set_ or options.data_dir:
            name = "--set" if options.set_ else "--data-dir"
            raise UsageError(f"{name} goes with a matrix file: {path} is a run", fix="name the matrix file of the run")
        record = read_run(path)
        if record.kind != "bench":
            raise UsageError(f"{path} is a {record.kind} run", fix="tune takes a run of `stepscope bench`")
        launch = dict(record.matrix.get("launch") or {})
        data = None if record.data_dir is None else Path(record.data_dir)
        return _one(read_cells(layout), options.cell), launch, data
    plan = make_plan(path, overrides=options.set_, data_dir=options.data_dir)
    runnable = [cell.spec for cell in plan.cells if cell.runnable]
    if not runnable:
        why = next((cell.unsupported or cell.skipped for cell in plan.cells), None)
        raise UsageError(f"no cell of {path} can run here", why=why)
    return _one(runnable, options.cell), dict(resolved_matrix(plan.matrix)["launch"]), options.data_dir


def _one(specs: Sequence[CellSpec], cell_id: str | None) -> CellSpec:
    """Return the cell asked for; else the only one, or the only one on several ranks. Raises UsageError."""
    if cell_id is not None:
        ids = named(cell_id, [spec.cell_id for spec in specs])
        able = [spec for spec in specs if spec.cell_id in ids]
    else:
        able = list(specs) if len(specs) == 1 else [spec for spec in specs if spec.world_size > 1]
    if len(able) != 1:
        lines = [
            f"    --cell {s.cell_id}  {s.strategy}, {counted(s.world_size, 'rank')}, batch {s.micro_batch}"
            for s in specs
        ]
        raise UsageError(
            f"--cell {cell_id} names {counted(len(able), 'cell')}"
            if cell_id
            else f"there are {counted(len(specs), 'cell')}",
            fix="\n".join(["choose one:", *lines]),
        )
    if able[0].strategy == "pipeline":
        raise UsageError(
            "pipeline cells are not tuned", fix="stepscope bench --preset pipeline-microbatches measures them"
        )
    return able[0]


def _measure_basis(bench: Bench, spec: CellSpec, options: Tune) -> proposing.Basis:
    """Measure the cell once, beside what its prediction needs: another batch, whole replicas, its collectives' costs."""
    from stepscope.diagnose.engine import diagnose
    from stepscope.predict.specs import specs_of
    from stepscope.records.environment import EnvironmentRecord
    from stepscope.results.open import load_evidence

    base = trial_spec(spec)
    sharded = specs_of(base).strategy.sharded
    whole = replace(base, mesh={}) if sharded else base
    like: dict[str, Any] = {"strategy": "ddp"} if sharded else {}
    probe = trial_spec(whole, {**like, "micro_batch": base.micro_batch * PROBE})
    replica = trial_spec(whole, like)
    comm = None
    if base.world_size > 1 and options.calib is None:
        ops = "all_reduce,all_gather,reduce_scatter" if sharded else "all_reduce"
        comm = {"ops": ops, "sizes": SIZES, "budget_s": LOOK_S / 10, "overlap": not sharded}
    log("a first look at the cell" + (", and at what its collectives cost" if comm else ""), "bold")
    cells = {trial.cell_id: trial for trial in ((base, replica, probe) if sharded else (base, probe))}
    bench.run("look", cells.values(), budget_s=LOOK_S, comm=comm)
    cell, larger, copy = (bench.read("look", trial) for trial in (base, probe, replica))
    lost = failure_of(cell)
    if cell is None or lost is not None:
        why = "it has not begun" if lost is None else lost.reason
        raise DataError(f"the cell to tune did not finish: {why}", fix=f"stepscope diagnose {bench.root / 'look'}")
    layout = RunLayout(bench.root / "look")
    prices, transport = _prices(base, layout, options.calib) if base.world_size > 1 else (None, None)
    environment = read_if_there(layout.environment, EnvironmentRecord)
    return proposing.Basis(
        cell=cell,
        others=(copy,) if sharded and copy is not None and failure_of(copy) is None else (),
        prices=prices,
        transport=transport,
        replica=copy if sharded and copy is not None and failure_of(copy) is None else cell,
        probe=larger if larger is not None and failure_of(larger) is None else None,
        fired=frozenset(f.rule for f in diagnose(load_evidence([layout.root], traces=False)).findings),
        cores=1 if environment is None else environment.usable_cores,
    )


def _prices(spec: CellSpec, layout: RunLayout, calib: Path | None) -> tuple[Prices, Transport | None]:
    """Return what the cell's collectives cost, and what they and computation slow each other."""
    from stepscope.cli.commands.calibrate import _of_comm
    from stepscope.predict.overlap import measured_transport
    from stepscope.predict.prices import calibrated_prices
    from stepscope.results.comm_rows import read_comm_rows

    calibration = read_calibration(calib) if calib is not None else _of_comm(layout.comm_run)[1]
    prices = calibrated_prices(calibration, backend=spec.backend, network=spec.network)
    try:
        return prices, measured_transport(spec.backend, read_comm_rows(Path(calibration.run)))
    except StepscopeError:  # the calibrated run is elsewhere, or did not measure overlap
        return prices, None


def candidate(proposal: Proposal) -> Contender:
    return Contender(
        key=proposal.key, gain=None if proposal.gain is None else proposal.gain.value, changes=len(proposal.knobs)
    )


def admitted(
    offered: Sequence[Proposal], most: int, *, allowed: frozenset[str], judged: bool = True
) -> tuple[list[Proposal], dict[str, str]]:
    """Return (to try, key -> why not) of what is offered. judged: the loss could decide, too."""
    left_out: dict[str, str] = {}
    able: list[Proposal] = []
    for proposal in offered:
        needed = sorted(proposal.mathematics)
        if not allowed.issuperset(needed):
            ways = f"--allow {','.join(needed)}{' or --max-loss-change' if judged else ''}"
            left_out[proposal.key] = f"changes the mathematics: {ways} tries it"
        else:
            able.append(proposal)
    kept, others = chosen([candidate(proposal) for proposal in able], most)
    for one in others:
        small = one.gain is not None and one.gain < 1.01
        left_out[one.key] = "no gain predicted" if small else f"beyond --trials {most}"
    by_key = {proposal.key: proposal for proposal in able}
    return [by_key[one.key] for one in kept], left_out


def learning(basis: proposing.Basis, losses: Losses) -> tuple[proposing.Basis, dict[str, Proposal]]:
    """Return the basis with the largest batch that learns enough, and the larger ones, by key, that do not."""
    ladder = proposing.larger_batches(basis)
    losses.judge(ladder)
    accepted = list(takewhile(lambda proposal: proposal.key not in losses.refused, ladder))
    spec = basis.cell.spec
    most = max([spec.micro_batch, *(proposing.changed(spec, proposal.changes).micro_batch for proposal in accepted)])
    return replace(basis, most_batch=most), {
        proposal.key: proposal for proposal in ladder if proposal.key in losses.refused
    }


def tell(tuned: Tuned, root: Path, options: Tune, *, run_it: str | None) -> None:
    """Write tune.json, and print the answer, the table of trials, what was not tried, the change and how to run it."""
    write_record(root / "tune.json", tuned)
    if options.json:
        print_document({**codec.headed("tune/1"), **codec.plain(tuned)})
        return
    best = next((trial for trial in tuned.trials if trial.key == tuned.best), None)
    if options.plan:
        say(f"{counted(len(tuned.trials) - 1, 'configuration')} would be tried", "bold")
    elif best is None or best.proposal is None:
        say("no configuration is surely faster than the baseline", "bold")
    else:
        say(f"{best.key}: {_gain_text(best.gain)} the throughput of the baseline", "bold green")
        say(f"predicted: {_gain_text(best.proposal.gain)}" if best.proposal.gain else "predicted: nothing predicts it")
        if best.loss_change is not None:
            say(f"loss at the same samples: {format_percent(best.loss_change, digits=1, signed=True)}")
        say(f"risk: {best.proposal.risk or 'none known: the same sums, in other groups'}")
        if best.proposal.because:
            say(f"asked for by: {in_words(best.proposal.because)}")
    say()
    show_table(tuned_table(tuned), folded=True)
    for trial in tuned.trials:
        for name, turn in trial.applied.items():
            say(f"{trial.key}: {name} {turn}", "dim" if turn.applied else "yellow")
    if tuned.left_out:
        say("\nnot tried:")
        by_proposal = {proposal.key: proposal for proposal in tuned.proposals}
        for key, why in tuned.left_out.items():
            gain = by_proposal[key].gain
            say(f"  {key}{'' if gain is None else f', predicted {gain.value:.2f}x'}: {why}")
    if tuned.diff:
        say("\nthe change:")
        for line in tuned.diff:
            say(f"  {line}", "red" if line.startswith("-") else "green")
    if run_it is not None:
        say(f"\nrun it{run_it}")
    say(f"\nall trials: {root}", "dim")


def _gain_text(gain: Estimate | None) -> str:
    if gain is None:
        return "unknown"
    ends = "" if gain.low is None or gain.high is None else f" ({gain.low:.2f} to {gain.high:.2f})"
    return f"{gain.value:.2f}x{ends}"
