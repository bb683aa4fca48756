"""What to change in a user's own command: its knobs and those of the hook, with predicted gain, risk and findings.

A prediction is the measured job replayed with one thing changed (predict/scale.py) where traces of a window show the job,
else its step diary without the part that the knob takes away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError
from stepscope.matrix.command_knobs import HOOK_KNOBS, PER_STEP, CommandKnob, changes_mathematics
from stepscope.matrix.proposals import ALIKE, ALONE, REACH, RISK, RULES
from stepscope.predict.job import MeasuredJob, replayed, sending
from stepscope.predict.loading import Loading, fewest_workers, step_with_workers
from stepscope.predict.prices import Prices
from stepscope.predict.scale import predict_scale
from stepscope.predict.what_if import FOLLOWS_BATCH, WhatIf
from stepscope.records.nouns import Estimate
from stepscope.records.tuning import CHANGES_MATHEMATICS, Knob, Proposal

CAPS_MB = (50, 25, 16, 8, 4, 2, 1)
MIB = 1 << 20
EXPOSED = 0.05
"""Share of the step that waits for communication at which something about it begins to be proposed."""
UNTOLD = ("static_graph", "gradient_as_bucket_view")


@record
class JobBasis:
    """A job as it was measured. step_ns: of the slowest rank; data_ns, comm_ns: of it, waits for data and for transfers.

    waiting_ns: for other ranks; of a late one it stays, else (``by_chance``) it goes with the root of the number of waits.
    crowding_ns: of its work, waits for a core that threads of its communication have (gloo's, on a CPU; whoever else has it
    is taken for them). share: of its own work that follows the batch; None: usual.

    job, prices: from traces of a window; None: there are none. ddp: arguments of its DistributedDataParallel that are known;
    None: it has none. workers: of its loader; None: it has no loader. used_ns, cores: as of a ``Loading``. micro_steps:
    backward passes of a step, each of which reduces; 1: one does. fired: rules with a finding.
    """

    step_ns: float
    data_ns: float
    comm_ns: float
    ranks: int
    waiting_ns: float = 0.0
    by_chance: bool = False
    crowding_ns: float = 0.0
    share: float | None = None
    job: MeasuredJob | None = None
    prices: Prices | None = None
    ddp: Mapping[str, object] | None = None
    workers: int | None = None
    micro_steps: int = 1
    fired: frozenset[str] = frozenset()
    used_ns: float | None = None
    cores: float | None = None

    @property
    def loading(self) -> Loading:
        return self.loading_from(self.workers or 0)

    def loading_from(self, workers: int) -> Loading:
        """Return the loading with so many workers in it."""
        return Loading(
            step_ns=self.step_ns, wait_ns=self.data_ns, workers=workers, used_ns=self.used_ns, cores=self.cores
        )

    @property
    def communicating_ns(self) -> float:
        """What the step would be shorter by without communication, ns."""
        return self.comm_ns + self.crowding_ns

    @property
    def work_ns(self) -> float:
        """Part of the step in which the rank itself works, ns."""
        return max(0.0, self.step_ns - self.data_ns - self.communicating_ns - self.waiting_ns)


def job_proposals(
    basis: JobBasis,
    knobs: Sequence[CommandKnob],
    *,
    hook: frozenset[str],
    allowed: frozenset[str] = CHANGES_MATHEMATICS,
) -> tuple[Proposal, ...]:
    """Return all that the command's knobs and the hook's (names of ``HOOK_KNOBS``) can change; the best of several together,
    of those too that are the same mathematics, or another one only by ``allowed`` knobs."""
    single = [*_of_command(basis, knobs)]
    taken = {knob.knob for knob in knobs}
    single += [proposal for proposal in _of_hook(basis, hook) if proposal.knobs[0] not in taken]
    gaining = sorted(
        (p for p in single if p.gain and p.gain.value > 1.01), key=lambda p: -(p.gain.value if p.gain else 0)
    )
    permitted = [p for p in gaining if p.mathematics <= allowed]
    parts = (permitted, [p for p in gaining if p.exact], gaining)
    combined = [both for part in parts if (both := _combined_proposal(basis, part, knobs))]
    return tuple({proposal.key: proposal for proposal in (*combined, *gaining, *single)}.values())


def _combined_proposal(basis: JobBasis, parts: Sequence[Proposal], knobs: Sequence[CommandKnob]) -> Proposal | None:
    """Combine the best of each knob: with the step that more samples make, each knob of communication leaves a share of it,
    and workers hide what they can of the loading then."""
    chosen: dict[Knob, Proposal] = {}
    for part in parts:
        chosen.setdefault(part.knobs[0], part)
    if len(chosen) < 2 or {"batch", "accumulation"} <= chosen.keys():
        return None
    now = {knob.option: knob.now for knob in knobs if knob.now}
    factor, step, left = 1.0, basis.step_ns, 1.0
    for knob, part in chosen.items():
        saved = basis.step_ns * (1 - 1 / part.gain.value) if part.gain else 0.0
        if knob in PER_STEP and part.gain:
            ((option, value),) = part.changes.items()
            factor = float(str(value)) / float(now[option])
            step = factor * basis.step_ns / part.gain.value
        elif knob != "workers" and basis.communicating_ns:
            left *= max(0.0, 1 - saved / basis.communicating_ns)
    step -= basis.communicating_ns * (1 - left)
    if "workers" in chosen:
        ((option, value),) = chosen["workers"].changes.items()
        fed = replace(basis, step_ns=max(step, basis.data_ns * factor), data_ns=basis.data_ns * factor)
        hidden = _of_workers(fed, int(str(value)), before=int(now.get(option) or basis.workers or 0))
        step = fed.step_ns / hidden.value if hidden else step
    share = FOLLOWS_BATCH[0] if basis.share is None else basis.share
    work = basis.work_ns * (factor * share + 1 - share)
    members = list(chosen.values())
    return Proposal(
        key=" ".join(p.key for p in members),
        knobs=tuple(chosen),
        changes={key: value for p in members for key, value in p.changes.items()},
        gain=_estimate_around(factor * basis.step_ns / max(step, work)),
        exact=all(p.exact for p in members),
        risk="; ".join(dict.fromkeys(p.risk for p in members if p.risk)),
        because=tuple(sorted({rule for p in members for rule in p.because})),
    )


def _estimate_around(value: float) -> Estimate:
    return Estimate(value=value, low=value / (1 + REACH), high=value * (1 + REACH))


def _knob_proposal(
    basis: JobBasis, knob: Knob, changes: Mapping[str, object], gain: Estimate | None, *, exact: bool
) -> Proposal:
    """Return the proposal of one knob. gain: of the throughput; exact: the job computes the same."""
    key = " ".join(name if value == "" else f"{name}={value}" for name, value in changes.items())
    return Proposal(
        key=key,
        knobs=(knob,),
        changes=changes,  # type: ignore[arg-type]
        gain=gain,
        exact=exact,
        risk=RISK.get(knob, "unknown: the command's own option"),
        because=tuple(sorted(set(RULES.get(knob, ())) & basis.fired)),
    )


def _of_command(basis: JobBasis, knobs: Sequence[CommandKnob]) -> Iterator[Proposal]:
    for knob in knobs:
        exact = not changes_mathematics(knob.knob)
        for value in knob.values:
            gain = _gain_of_option(basis, knob, value)
            yield _knob_proposal(basis, knob.knob, {knob.option: value}, gain, exact=exact)


def _gain_of_option(basis: JobBasis, knob: CommandKnob, value: str) -> Estimate | None:
    """Return what a value of the command's own option gains, of the throughput; None: unknown."""
    if knob.knob in ("batch", "accumulation") and knob.now and value.isdecimal() and int(value) > 0:
        factor = int(value) / int(knob.now)
        return _batch_gain(basis, factor) if knob.knob == "batch" else _of_accumulation(basis, factor)
    if knob.knob == "workers" and value.isdecimal():
        return _of_workers(
            basis, int(value), before=int(knob.now) if knob.now and knob.now.isdecimal() else basis.workers or 0
        )
    if knob.knob == "bucket":
        try:
            return _bucket_gain(basis, float(value))
        except ValueError:
            return None
    return None


def _batch_gain(basis: JobBasis, factor: float) -> Estimate | None:
    """Return what a larger batch gains, of the throughput."""
    fixed, work = basis.communicating_ns + basis.waiting_ns, basis.work_ns
    if basis.share is not None:
        longer = work * (factor * basis.share + 1 - basis.share) + basis.data_ns * factor + fixed
        return _estimate_around(factor * basis.step_ns / longer)
    if basis.job is not None and basis.prices is not None:
        try:
            (step,) = predict_scale(basis.job, [basis.job.ranks], basis.prices, what=WhatIf(batch=factor)).steps
        except StepscopeError:
            pass
        else:
            return Estimate(value=step.throughput, low=step.throughput_low, high=step.throughput_high)
    steps = [work * (factor * share + 1 - share) + basis.data_ns * factor + fixed for share in FOLLOWS_BATCH]
    gains = sorted(factor * basis.step_ns / step for step in steps)
    return Estimate(value=factor * basis.step_ns / steps[1], low=gains[0], high=gains[-1])


def _of_accumulation(basis: JobBasis, factor: float) -> Estimate:
    """Estimate the gain of more micro-steps, of which one communicates."""
    step = (basis.step_ns - basis.communicating_ns) * factor + basis.communicating_ns
    return _estimate_around(factor * basis.step_ns / step)


def _of_workers(basis: JobBasis, workers: int, *, before: int) -> Estimate | None:
    if workers <= before:
        return None
    return _estimate_around(basis.step_ns / step_with_workers(basis.loading_from(before), workers))


def _bucket_gain(basis: JobBasis, cap_mb: float) -> Estimate | None:
    """Return what a bucket size gains, of the throughput, by a replay; None: unknown."""
    if basis.job is None or basis.prices is None:
        return None
    try:
        what = WhatIf(bucket_bytes=max(1, round(cap_mb * MIB)))
        (step,) = predict_scale(basis.job, [basis.job.ranks], basis.prices, what=what).steps
    except StepscopeError:  # one bucket does not show when its gradients are ready
        return None
    return Estimate(value=step.throughput, low=step.throughput_low, high=step.throughput_high)


def _of_hook(basis: JobBasis, hook: frozenset[str]) -> Iterator[Proposal]:
    """Propose those of the hook's knobs that the diagnosis asks for."""

    def made(name: str, value: object, gain: Estimate | None) -> Proposal:
        return _knob_proposal(basis, HOOK_KNOBS[name], {name: value}, gain, exact=name != "comm_hook")

    if "num_workers" in hook and basis.workers is not None and basis.data_ns > ALONE * basis.step_ns:
        wanted = fewest_workers(basis.loading)
        if wanted is not None and wanted > basis.workers:
            yield made("num_workers", wanted, _of_workers(basis, wanted, before=basis.workers))
    if basis.ddp is None or basis.ranks < 2:
        return
    if "no_sync" in hook and basis.micro_steps > 1:
        k = basis.micro_steps
        saved = basis.communicating_ns * (k - 1) / k
        if basis.by_chance:
            saved += basis.waiting_ns * (1 - k**-0.5)
        yield made("no_sync", k, _estimate_around(basis.step_ns / max(1.0, basis.step_ns - saved)))
    if "bucket_cap_mb" in hook and basis.comm_ns > EXPOSED * basis.step_ns:
        yield from (made("bucket_cap_mb", cap, gain) for cap, gain in _bucket_sizes(basis))
    if "comm_hook" in hook and basis.comm_ns > EXPOSED * basis.step_ns:
        yield made("comm_hook", "bf16", _of_half_the_bytes(basis))
    for name in UNTOLD:
        if name in hook and not basis.ddp.get(name) and not (name == "static_graph" and basis.micro_steps > 1):
            yield made(name, True, None)


def _bucket_sizes(basis: JobBasis) -> list[tuple[int, Estimate | None]]:
    """Return the size that the prediction favours, with its gain; two usual ones where it cannot tell."""
    rated = [(cap, gain) for cap in CAPS_MB if (gain := _bucket_gain(basis, cap)) is not None]
    if not rated:
        return [(25, None), (4, None)]
    most = max(gain.value for _, gain in rated)
    return [next((cap, gain) for cap, gain in rated if gain.value >= most / (1 + ALIKE))]


def _of_half_the_bytes(basis: JobBasis) -> Estimate:
    """Estimate the gain of gradients in 16 bits, from 32."""
    job, prices = basis.job, basis.prices
    if job is None or prices is None:
        return _estimate_around(basis.step_ns / (basis.step_ns - basis.comm_ns / 2))
    halved = sending(job, gradients=0.5, activations=1)
    now, then = (replayed(variant, lambda *call: prices.of(*call).time_ns).step_ns for variant in (job, halved))
    return _estimate_around(basis.step_ns / max(1.0, basis.step_ns - (now - then)))
