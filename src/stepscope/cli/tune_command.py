"""What ``stepscope tune -- COMMAND`` does: run the command under the hook, propose, run it with other settings."""

from __future__ import annotations

import shlex
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import duration_ns, listed
from stepscope.cli.console import log, typed
from stepscope.cli.tune_run import admitted, allowed_knobs, candidate, conclude
from stepscope.core.errors import DataError, Interrupted, StepscopeError, Unavailable, UsageError
from stepscope.core.forks import STOP_SIGNALS, signals_call
from stepscope.core.words import counted, unknown
from stepscope.launch.hooked_job import check_program
from stepscope.launch.trial_job import read_knobs, run_trial
from stepscope.matrix.command_knobs import (
    HOOK_KNOBS,
    CommandKnob,
    command_diff,
    command_of,
    hook_settings,
    parse_knob,
    work_of,
)
from stepscope.matrix.job_proposals import JobBasis, job_proposals
from stepscope.matrix.run_folder import default_run_dir, name_of_command
from stepscope.predict.halving import BASELINE, Found, Lost, Score, search
from stepscope.records.nouns import Estimate
from stepscope.records.profile import ProfileRecord, WindowRequest
from stepscope.records.tuning import KnobTurn, Proposal
from stepscope.store.layout import ProfileLayout

if TYPE_CHECKING:
    from stepscope.cli.commands.tune import Tune
    from stepscope.results.diary import JobSteps

FIRST = WindowRequest(steps="auto", wait="auto", warmup=1, fixed_step=20, collect=(), sampled=("shapes",))


def run(options: Tune) -> int:
    """Tune the command; the exit code. Raises StepscopeError."""
    command = options.words
    budget_s = duration_ns("--budget", options.budget) / 1e9
    start_s = duration_ns("--start", options.start) / 1e9
    allowed = allowed_knobs(options.allow)
    if options.max_loss_change is not None:
        raise UsageError(
            "--max-loss-change goes with a run or a matrix",
            why="what a command learns is not in its step times",
            fix="judge its loss yourself, and allow what may change it: --allow batch",
        )
    for name, value in (
        ("--set", options.set_),
        ("--data-dir", options.data_dir),
        ("--cell", options.cell),
        ("--calib", options.calib),
    ):
        if value:
            raise UsageError(f"{name} goes with a run or a matrix, not with a command")
    check_program(command)
    knobs = [parse_knob(text, command) for text in options.knob]
    hook = hook_names(options.hook_knobs)
    root = options.output or default_run_dir(f"tune-{name_of_command(command)}")
    if root.exists() and any(root.iterdir()):
        raise UsageError(f"{root} exists and is not an empty folder", fix="choose another folder with -o DIR")
    runs = _Runs(root, command, knobs, budget_s=budget_s, start_s=start_s)
    tried: list[Proposal] = []
    offered: Sequence[Proposal] = ()
    left_out: Mapping[str, str] = {}
    outcome, stopped = Found(best=BASELINE, lost={}, scores=()), 0
    try:
        with _stopping():
            basis = _measure_basis(runs, probe="batch" in allowed)
            offered = job_proposals(basis, knobs, hook=hook, allowed=allowed)
            tried, left_out = admitted(offered, options.trials, allowed=allowed, judged=False)
            runs.proposals |= {proposal.key: proposal for proposal in tried}
            if tried and not options.plan:
                outcome = search([candidate(proposal) for proposal in tried], runs)
    except KeyboardInterrupt as stop:  # once the running trial is stopped
        (stopped,) = stop.args
        outcome = Found(best=BASELINE, lost={}, scores=tuple(runs.scores))
        log("interrupted: what has finished is shown", "yellow")
    reasons = {key: score.reason for rung in outcome.scores for key, score in rung.items() if isinstance(score, Lost)}
    lost = {**reasons, **outcome.lost}
    code = conclude(runs, options, tried, outcome, lost=lost, offered=offered, left_out=left_out)
    if stopped:
        raise Interrupted("interrupted", signum=stopped, fix=f"the trials that have finished are in {root}")
    return code


@contextmanager
def _stopping() -> Iterator[None]:
    """Make Ctrl-C, SIGTERM and SIGHUP raise within the block: a trial has a session of its own and would outlive us."""

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt(signum)

    with signals_call(stop, (signal.SIGINT, *STOP_SIGNALS)):
        yield


def hook_names(text: str) -> frozenset[str]:
    """Read --hook-knobs. Raises UsageError."""
    if text == "none":
        return frozenset()
    if text == "auto":
        return frozenset(HOOK_KNOBS)
    names = listed(text)
    if strange := [name for name in names if name not in HOOK_KNOBS]:
        raise UsageError(unknown("--hook-knobs", strange[0], (*HOOK_KNOBS, "auto", "none")))
    return frozenset(names)


class _Runs:
    """Runs the command, each time in a folder of its own below ``root``; those of a rung take turns."""

    def __init__(
        self, root: Path, command: Sequence[str], knobs: Sequence[CommandKnob], *, budget_s: float, start_s: float
    ) -> None:
        self.of, self.root, self.command, self.knobs = shlex.join(command), root, tuple(command), knobs
        self.budget_s, self.start_s = budget_s, start_s
        self.proposals: dict[str, Proposal] = {}
        self.applied: dict[str, dict[str, KnobTurn]] = {}
        self.scores: list[Mapping[str, Score]] = []

    def trial(self, name: str, key: str, *, budget_s: float, first: WindowRequest | None = None) -> str | None:
        """Make one run, into the folder ``name``; return why it says nothing."""
        proposal = self.proposals.get(key)
        changes: Mapping[str, Any] = {} if proposal is None else proposal.changes
        layout = ProfileLayout(self.root / name)
        record = ProfileRecord(
            command=command_of(self.command, changes), folder=str(Path.cwd()), host=socket.gethostname(), first=first,
            argv=typed(),
        )  # fmt: skip
        settings = hook_settings(changes)
        problem = run_trial(layout, record, settings, budget_s=budget_s, start_s=self.start_s)
        if settings and problem is None:
            self.applied[key] = read_knobs(layout, tuple(settings))
        return problem

    def __call__(self, rung: int, keys: Sequence[str]) -> Mapping[str, Score]:
        budget_s = self.budget_s * 2 ** (rung - 1) / rung
        log(
            f"rung {rung}: {counted(len(keys) - 1, 'configuration')} and the baseline, {counted(rung, 'run')} of "
            f"{budget_s:g} s each",
            "bold",
        )
        problems: dict[str, str] = {}
        times: dict[str, list[JobSteps]] = {key: [] for key in keys}
        for repeat in range(1, rung + 1):
            for place, key in enumerate(keys):
                if key in problems:
                    continue
                name = f"rung-{rung}-{place}-{repeat}"
                log(f"  {key}", "")
                problem = self.trial(name, key, budget_s=budget_s)
                steps = timed(ProfileLayout(self.root / name))
                unturned = [f"{n}: {turn}" for n, turn in self.applied.get(key, {}).items() if not turn.applied]
                if problem is not None or isinstance(steps, Unavailable) or unturned:
                    reason = steps.reason if isinstance(steps, Unavailable) else "no step"
                    problems[key] = problem or next(iter(unturned), reason)
                    log(f"  {key}: {problems[key]}", "yellow")
                    continue
                times[key].append(steps)
        scores: dict[str, Score] = {
            key: Lost(reason=problems[key]) if key in problems else self._score(key, times[key]) for key in keys
        }
        self.scores.append(scores)
        return scores

    def work(self, key: str) -> float:
        """Return the samples of a step over the baseline's."""
        proposal = self.proposals.get(key)
        return (
            1.0 if proposal is None else work_of(self.command, command_of(self.command, proposal.changes), self.knobs)
        )

    def gain(self, _rung: int, _key: str) -> Estimate | None:
        return None

    def facts(self, key: str) -> Mapping[str, Any]:
        return {"applied": self.applied.get(key, {})}

    def change(self, won: Proposal) -> tuple[tuple[str, ...], str | None]:
        edited = "" if won.changes.keys().isdisjoint(HOOK_KNOBS) else ", with these lines in its code"
        changed = shlex.join(command_of(self.command, won.changes))
        return command_diff(self.command, won.changes), f"{edited}: {changed}"

    def _score(self, key: str, runs: Sequence[JobSteps]) -> Score:
        from stepscope.stats.measured import estimate

        step = estimate({number: [round(ns) for ns in run.step_ns] for number, run in enumerate(runs)})
        return Lost(reason="no timed step") if step is None else step.times(1 / self.work(key))


def timed(layout: ProfileLayout) -> JobSteps | Unavailable:
    """Return the timed steps that a run left."""
    from stepscope.results.comparing import timed_steps
    from stepscope.store.diary import read_diaries

    return timed_steps(read_diaries(layout))


def _measure_basis(runs: _Runs, *, probe: bool) -> JobBasis:
    """Run the command as it is, with a window of profiled steps: what it waits for, and what its collectives cost.

    probe: with its batch, too, at the largest value to try: what of its work follows the batch.
    """
    import numpy as np

    from stepscope.results.diary import late_ranks, parts_of
    from stepscope.results.host_load import crowding_ns, loading_of
    from stepscope.results.profiled_job import read_profiled_job

    log("a first look at the command", "bold")
    problem = runs.trial("look", BASELINE, budget_s=runs.budget_s, first=FIRST)
    layout = ProfileLayout(runs.root / "look")
    steps = timed(layout)
    if problem is not None or isinstance(steps, Unavailable):
        why = problem or getattr(steps, "reason", None)
        raise DataError(
            "the command to tune left no timed steps", why=why,
            fix=f"its output is in {layout.root / 'output.log'}; stepscope profile -- COMMAND says more",
        )  # fmt: skip
    looked_at = read_profiled_job(layout.root)
    assert looked_at is not None
    recorded = looked_at.steps
    assert recorded is not None
    parts = {name: float(np.nan_to_num(values).mean()) for name, values in parts_of(recorded).items()}
    facts: Mapping[str, Any] = looked_at.facts
    workers = [int(loader["num_workers"]) for loader in looked_at.loaders if loader.get("num_workers") is not None]
    ddp = facts.get("ddp")
    loading = loading_of(recorded, workers=min(workers, default=0))
    job, prices, rules, micro = _traced(layout)
    return JobBasis(
        step_ns=float(np.median(steps.step_ns)),
        data_ns=parts.get("data", 0.0),
        comm_ns=parts.get("transfer", 0.0),
        waiting_ns=parts.get("waiting", 0.0),
        by_chance=not late_ranks(recorded),
        crowding_ns=crowding_ns(recorded, on_cpu=bool(looked_at.on_cpu)),
        ranks=recorded.world_size,
        job=job,
        prices=prices,
        ddp=None if not ddp else ddp.get("first") or {},
        workers=min(workers) if workers else None,
        micro_steps=micro,
        fired=rules,
        used_ns=None if loading is None else loading.used_ns,
        cores=None if loading is None else loading.cores,
        share=_follows_batch(runs, recorded) if probe else None,
    )


def _follows_batch(runs: _Runs, before: JobSteps) -> float | None:
    """Return which share of the command's own work is in proportion to its batch; None where no other batch can be run."""
    from stepscope.results.diary import job_steps
    from stepscope.store.diary import read_diaries

    knob = next((option for option in runs.knobs if option.knob == "batch" and option.now and option.values), None)
    if knob is None or knob.now is None:
        return None
    value = max((v for v in knob.values if v.isdecimal()), key=int, default="0")
    ratio = int(value) / int(knob.now)
    if ratio <= 1:
        return None
    log(f"a look at {knob.option} {value}: how much of the work follows it", "bold")
    changes: Mapping[str, Any] = {knob.option: value}
    runs.proposals["probe"] = Proposal(key="probe", knobs=("batch",), changes=changes, gain=None, exact=False, risk="")
    problem = runs.trial("look-batch", "probe", budget_s=runs.budget_s)
    after = job_steps(read_diaries(ProfileLayout(runs.root / "look-batch")))
    if problem is not None or after is None:
        return None
    return min(1.0, max(0.0, (_own_ns(after) / _own_ns(before) - 1) / (ratio - 1)))


def _own_ns(steps: JobSteps) -> float:
    """Return the mean of a step without waits for data, communication and a core, in ns."""
    import numpy as np

    from stepscope.results.diary import parts_of

    parts = parts_of(steps)
    waits = sum(float(np.nan_to_num(parts[name]).mean()) for name in ("data", "transfer", "waiting") if name in parts)
    return float((steps.whole_ns - np.nan_to_num(steps.delay_ns)).mean()) - waits


def _traced(layout: ProfileLayout) -> tuple[Any, Any, frozenset[str], int]:
    """Return (job, prices, rules with a finding, backward passes of a step that reduce) of the window, as far as known."""
    from stepscope.api.prediction import measured_job
    from stepscope.diagnose.job_facts import micro_steps
    from stepscope.diagnose.jobs import judge_job
    from stepscope.launch.job_window import WindowReading
    from stepscope.predict.prices import Links, own_prices
    from stepscope.traces.sections import BY_STEP, Wanted

    rules: frozenset[str] = frozenset()
    micro = 1
    try:
        captures = WindowReading(layout.traces(1), beside=False).result(Wanted(sections=BY_STEP))
        judged = judge_job(layout.root, tuple(captures.values()))
        rules = frozenset(f.rule for f in judged.diagnosis.findings) if judged is not None else rules
        micro = max((micro_steps(capture) or 1 for capture in captures.values()), default=1)
        job = measured_job(layout.root, None, calib=None)
        return job, own_prices(job, Links()), rules, micro
    except StepscopeError as error:
        log(f"the traces of the first look give no prediction: {error.what}")
        return None, None, rules, micro
