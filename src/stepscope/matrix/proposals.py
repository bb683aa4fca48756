"""What to change in a cell that has run: each change with its predicted gain, its risk, and the findings that ask for it.

One prediction for all: the cell's own step without communication, with the collectives that the changed cell's strategy
plans, at calibrated prices. What the replay of the measured step lacks is taken to be communication as far as the step shows
any, and stays otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError
from stepscope.predict.job import MeasuredJob, replayed
from stepscope.predict.overlap import Transport
from stepscope.predict.prices import Prices
from stepscope.predict.run_buckets import profile_of
from stepscope.predict.specs import specs_of
from stepscope.predict.what_if import FOLLOWS_BATCH
from stepscope.records.cell import CellSpec
from stepscope.records.nouns import Estimate
from stepscope.records.prediction import BackwardProfile
from stepscope.records.samples import CellResult
from stepscope.records.tuning import CHANGES_MATHEMATICS, Knob, Proposal
from stepscope.results.cell_job import job_of_cell
from stepscope.stats.measured import step_of
from stepscope.stats.order import median
from stepscope.stats.step_table import cell_table
from stepscope.strategies import REGISTRY as STRATEGIES

CAPS_MB = (50.0, 25.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
"""The largest first: of sizes alike, fewer collectives disturb computation less."""
ALIKE = 0.03
"""Predictions closer than this do not tell values of one knob apart: the first of them is proposed."""
FACTORS = (2, 4, 8, 16, 32)
ENOUGH = 0.9
"""The smallest batch that has this share of the largest one's gain is proposed, as a larger one only learns slower."""
WORKERS = (1, 2, 4, 8)
UNITS = (1, 2, 4, 8, 0)
ALONE = 0.05
"""Share of the step that waits for data at which workers begin to be proposed."""
MOST_OFF = 3.0
"""Largest factor on prices at which the measured step still decides what its communication costs."""
REACH = 0.1
"""No prediction is taken to be more exact than this share of the step (80%)."""

RULES: Mapping[Knob, tuple[str, ...]] = {
    "batch": ("communication-bound", "launch-bound", "small-kernels", "python-overhead", "negative-scaling", "low-mfu"),
    "accumulation": ("communication-bound", "exposed-communication", "negative-scaling"),
    "workers": ("data-loading",),
    "bucket": ("bucket-size", "exposed-tail-bucket", "poor-overlap", "exposed-communication"),
    "strategy": ("naive-synchronisation", "fastest-strategy"),
    "hook": ("communication-bound", "exposed-communication", "amp-communication"),
    "precision": ("fp32-matmul", "no-tensor-cores", "compute-bound"),
    "unit": ("fsdp-small-units", "fsdp-root-unit"),
    "reshard": ("fsdp-regathers",),
    "prefetch": ("fsdp-no-prefetch",),
    "static-graph": ("python-overhead",),
    "bucket-view": ("exposed-memcpy",),
    "compile": ("launch-bound", "small-kernels", "memory-bandwidth-bound"),
}
"""Rules whose findings a knob answers."""

RISK: Mapping[Knob, str] = {
    "batch": "another optimisation: fewer steps for the same samples, and more memory",
    "accumulation": "more memory for activations",
    "workers": "processes that need cores and memory of their own",
    "bucket": "",  # the same sums, in other groups
    "no-sync": "",  # the same sums, in another order
    "strategy": "more memory: gradients have buckets beside them, as large as the model",
    "hook": "gradients are rounded before they are added",
    "precision": "products are rounded",
    "unit": "more memory while a larger unit is whole",
    "reshard": "more memory: parameters stay whole from forward to backward",
    "prefetch": "more memory: one more unit is whole",
    "static-graph": "an error where a step uses other parameters than the first",
    "bucket-view": "an error where the code detaches gradients",
    "compile": "minutes of compilation, again for every new shape",
}


@record
class Basis:
    """What a cell's proposals rest on. cell: finished. others: of the same run. prices: None: one rank, or not known.
    replica, probe: two cells that differ in the batch of a rank alone, for what of the computation follows it (whole
    replicas where the cell is sharded); None: the usual share.
    fired: names of rules with a finding. cores: of the machine. most_batch: of a rank; None: whatever the model favours.
    allowed: knobs that may change the mathematics in what is tried.
    """

    cell: CellResult
    others: tuple[CellResult, ...]
    prices: Prices | None
    transport: Transport | None = None
    replica: CellResult | None = None
    probe: CellResult | None = None
    fired: frozenset[str] = frozenset()
    cores: int = 1
    most_batch: int | None = None
    allowed: frozenset[str] = CHANGES_MATHEMATICS


def larger_batches(basis: Basis) -> tuple[Proposal, ...]:
    """Propose the batch alone, from twice the present one to that which is proposed, each twice the one before."""
    model = _Model(basis)
    most = max(_batch_factors(basis, model), default=0)
    changes = [_batch_changes(basis, factor) for factor in FACTORS if factor <= most]
    return tuple(proposal for value in changes if (proposal := _model_proposal(basis, model, value, ("batch",))))


def proposals(basis: Basis) -> tuple[Proposal, ...]:
    """Return all proposals that concern the cell: those that gain most first, then their combinations, then what nothing
    predicts."""
    model = _Model(basis)
    single = [
        proposal
        for changes, knob in _single_changes(basis, model)
        if (proposal := _model_proposal(basis, model, changes, (knob,)))
    ]
    gaining = [proposal for proposal in single if proposal.gain is not None and proposal.gain.value > 1.01]
    gaining.sort(key=lambda proposal: -(proposal.gain.value if proposal.gain else 0.0))
    modest = [proposal for proposal in gaining if not _is_far(proposal, single)]
    permitted = [p for p in gaining if p.mathematics <= basis.allowed]
    parts = ([p for p in gaining if p.exact], permitted, gaining, modest)
    several = [proposal for part in parts if (proposal := _combined_proposal(basis, model, part))]
    unknown = [proposal for proposal in single if proposal.gain is None]
    by_key = {proposal.key: proposal for proposal in (*several, *gaining, *unknown, *single)}
    return tuple(by_key.values())


def _is_far(proposal: Proposal, others: Sequence[Proposal]) -> bool:
    """Whether a smaller batch is proposed, too."""
    micro_batch = proposal.changes.get("micro_batch")
    batches = [p.changes["micro_batch"] for p in others if p.knobs == ("batch",)]
    return proposal.knobs == ("batch",) and micro_batch != min(batches, key=lambda batch: int(batch or 0))


def changed(spec: CellSpec, changes: Mapping[str, Any]) -> CellSpec:
    """Return ``spec`` with a proposal's changes; its id is that of the old one."""
    options = dict(spec.strategy_options)
    plain: dict[str, Any] = {}
    strategy = changes.get("strategy", spec.strategy)
    if strategy != spec.strategy:
        options = {}
    for key, value in changes.items():
        if key.startswith("strategy_options."):
            options[key.partition(".")[2]] = value
        else:
            plain[key] = value
    options = json.loads(json.dumps(STRATEGIES.load(strategy).options.model_validate(options).as_dict()))
    micro = plain.pop("micro_batch", spec.micro_batch)
    accumulation = plain.get("accumulation", spec.accumulation)
    shards = spec.global_batch // (spec.micro_batch * spec.accumulation)
    plain |= {"micro_batch": micro, "global_batch": micro * accumulation * shards, "strategy_options": options}
    return replace(spec, **plain)


def _model_proposal(
    basis: Basis, model: _Model, changes: Mapping[str, Any], knobs: tuple[Knob, ...]
) -> Proposal | None:
    """Return the proposal with these changes; None where nothing changes, or the strategy refuses."""
    spec = basis.cell.spec
    after = changed(spec, changes)
    if after == spec or _is_refused(after):
        return None
    exact = after.global_batch == spec.global_batch and not CHANGES_MATHEMATICS.intersection(knobs)
    rules = {rule for knob in knobs for rule in RULES.get(knob, ())} & basis.fired
    return Proposal(
        key=" ".join(f"{key.removeprefix('strategy_options.')}={_value_text(value)}" for key, value in changes.items()),
        knobs=knobs,
        changes=changes,
        gain=model.gain(after) if _is_predicted(knobs) else None,
        exact=exact,
        risk="; ".join(dict.fromkeys(RISK[knob] for knob in knobs if RISK.get(knob))),
        because=tuple(sorted(rules)),
    )


def _value_text(value: Any) -> str:
    return {True: "on", False: "off", None: "default"}.get(value, str(value)) if isinstance(value, bool | None) else (
        f"{value:g}" if isinstance(value, float) else str(value)
    )  # fmt: skip


def _is_predicted(knobs: Iterable[Knob]) -> bool:
    return not {"static-graph", "bucket-view", "prefetch", "compile", "precision"}.intersection(knobs)


def _is_refused(spec: CellSpec) -> bool:
    specs = specs_of(spec)
    return specs.strategy.requires(specs.facts, specs.setting, specs.strategy_options) is not None


def _combined_proposal(basis: Basis, model: _Model, parts: Sequence[Proposal]) -> Proposal | None:
    """Combine the best of each knob; None of less than two."""
    changes: dict[str, Any] = {}
    knobs: list[Knob] = []
    for part in parts:
        if part.knobs[0] not in knobs and not changes.keys() & part.changes.keys():
            if "strategy" in part.changes and any(key.startswith("strategy_options.") for key in changes):
                continue
            changes |= part.changes
            knobs.append(part.knobs[0])
    return _model_proposal(basis, model, changes, tuple(knobs)) if len(knobs) > 1 else None


def _single_changes(basis: Basis, model: _Model) -> Iterator[tuple[dict[str, Any], Knob]]:
    """Yield changes of one knob each: of a knob with many values those that the prediction favours."""
    spec = basis.cell.spec
    own = spec.strategy_options

    def best(values: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the first of those whose prediction is as good as the best."""
        rated = [(gain.value, value) for value in values if (gain := model.gain(changed(spec, value))) is not None]
        most = max((gain for gain, _ in rated), default=0.0)
        yield from [value for gain, value in rated if gain >= most / (1 + ALIKE)][:1]

    wait = model.waits
    if wait > ALONE:
        counts = [n for n in WORKERS if n > spec.num_workers and n <= max(basis.cores, 1) * 2]
        keep = {"persistent_workers": True} if spec.epochs else {}
        for value in best({"num_workers": n, **keep} for n in counts):
            yield value, "workers"
    if spec.accumulation > 1:
        yield {"accumulation": 1, "micro_batch": spec.micro_batch * spec.accumulation}, "accumulation"
    yield from ((_batch_changes(basis, factor), "batch") for factor in _batch_factors(basis, model))
    if spec.world_size == 1:
        return
    if spec.strategy == "naive":
        yield from (({"strategy": key}, "strategy") for key in ("bucketed", "ddp"))
    if spec.strategy in ("ddp", "bucketed"):
        caps = [cap for cap in CAPS_MB if cap != own.get("bucket_cap_mb")]
        for value in best({"strategy_options.bucket_cap_mb": cap} for cap in caps):
            yield value, "bucket"
    if spec.strategy == "ddp":
        if own.get("hook", "none") == "none":
            yield {"strategy_options.hook": "bf16"}, "hook"
        if not own.get("static_graph"):
            yield {"strategy_options.static_graph": True}, "static-graph"
        if not own.get("gradient_as_bucket_view"):
            yield {"strategy_options.gradient_as_bucket_view": True}, "bucket-view"
        if spec.device == "cuda" and not own.get("compile"):
            yield {"strategy_options.compile": True}, "compile"
    if spec.strategy in ("fsdp2", "hsdp"):
        sizes = [n for n in UNITS if n != own.get("blocks_per_unit", 1)]
        for value in best({"strategy_options.blocks_per_unit": n} for n in sizes):
            yield value, "unit"
        if own.get("reshard_after_forward", True):
            yield {"strategy_options.reshard_after_forward": False}, "reshard"
        if spec.device == "cuda" and not own.get("forward_prefetch"):
            yield {"strategy_options.forward_prefetch": 1}, "prefetch"
    if spec.device == "cuda" and spec.precision in ("fp32", "tf32"):
        yield {"precision": "amp_bf16"}, "precision"


def _batch_factors(basis: Basis, model: _Model) -> tuple[int, ...]:
    """Return factors of the batch: the smallest that has most of what a far larger one gains, and twice it, which learns
    nearly as fast."""
    spec = basis.cell.spec
    rated: list[tuple[int, float]] = []
    for factor in FACTORS:
        if basis.most_batch is None or spec.micro_batch * factor <= basis.most_batch:
            gain = model.gain(changed(spec, {"micro_batch": spec.micro_batch * factor}))
            rated.append((factor, 1.0 if gain is None else gain.value))
    most = max((gain for _, gain in rated), default=0.0)
    if most <= 1.01:
        return ()
    enough = next(factor for factor, gain in rated if gain - 1 >= ENOUGH * (most - 1))
    return tuple(dict.fromkeys((enough, FACTORS[0])))


def _batch_changes(basis: Basis, factor: int) -> dict[str, Any]:
    """Return a batch of a rank so many times as large, with its learning rate."""
    spec = basis.cell.spec
    value: dict[str, Any] = {"micro_batch": spec.micro_batch * factor}
    if spec.optimizer != "own" and spec.lr > 0:
        # Goyal et al. 2017 for SGD: in proportion; Malladi et al. 2022 for Adam: by the square root.
        value["lr"] = float(f"{spec.lr * (factor if spec.optimizer == 'sgd' else math.sqrt(factor)):.4g}")
    return value


class _Model:
    """The step of a changed cell, from the measured one."""

    def __init__(self, basis: Basis) -> None:
        self._basis = basis
        self._spec = basis.cell.spec
        self._of_units = _of_units(basis)
        self._job = self._job_of(self._spec)
        measured = step_of(basis.cell)
        self._measured = measured.value if measured is not None else None
        self._factor, self._rest = self._left_over()

    @property
    def waits(self) -> float:
        """Share of the step that waits for data."""
        job = self._job
        return 0.0 if job is None or not self._measured else job.input_ns / self._measured

    def gain(self, spec: CellSpec) -> Estimate | None:
        """Return the throughput of ``spec`` over the measured cell's, with its 80% interval; None where nothing tells."""
        predicted = self._step(spec)
        if predicted is None or self._measured is None:
            return None
        step, low, high = predicted
        work = spec.global_batch / self._spec.global_batch
        if work == 1 and low <= 0:
            return None
        return Estimate(
            value=work * self._measured / step, low=work * self._measured / high, high=work * self._measured / low
        )

    def _step(self, spec: CellSpec) -> tuple[float, float, float] | None:
        """Return the step of a spec, ns: likely, least and most; None: it cannot be predicted."""
        ends = []
        shares = (self._share, FOLLOWS_BATCH[0], FOLLOWS_BATCH[-1]) if self._usual else (self._share,)
        units = _unit_count(spec) / max(1, _unit_count(self._spec))
        for share, times in ((s, u) for s in shares for u in dict.fromkeys((units, (units + 1) / 2))):
            job = self._job_of(spec, share=share, units=times)
            if job is None:
                return None
            ends.append(self._replay(job) + self._rest)
        step = ends[0]
        doubt = REACH * step
        low, high = min(ends) - doubt, max(ends) + doubt
        return step, max(low, 0.3 * step), high

    def _replay(self, job: MeasuredJob) -> float:
        """Return the step of a job replayed, ns."""
        prices = self._basis.prices
        if not job.calls:
            return job.length_ns
        if prices is None:
            raise StepscopeError("no prices")  # of a cell with collectives: the caller has some
        return replayed(job, lambda *call: prices.of(*call).time_ns * self._factor).step_ns

    def _left_over(self) -> tuple[float, float]:
        """Return (factor on prices, time of no known kind) that make the replay of the measured step take what it took."""
        self._factor = 1.0
        if self._job is None or self._measured is None:
            return 1.0, 0.0
        if not self._job.calls:
            return 1.0, self._measured - self._job.length_ns
        low, high = -math.log(MOST_OFF), math.log(MOST_OFF)
        for _ in range(40):
            middle = (low + high) / 2
            self._factor = math.exp(middle)
            low, high = (middle, high) if self._replay(self._job) < self._measured else (low, middle)
        return self._factor, self._measured - self._replay(self._job)

    @property
    def _usual(self) -> bool:
        """Whether nothing was measured of what follows the batch."""
        return self._basis.probe is None

    @property
    def _share(self) -> float:
        """Share of the computation that follows the batch of a rank: as two measured batches say, or the usual one."""
        probe, replica = self._basis.probe, self._basis.replica
        here, there = (None if cell is None else _computing_ns(cell) for cell in (replica, probe))
        if here is None or there is None or probe is None:
            return FOLLOWS_BATCH[1]
        ratio = probe.spec.micro_batch / self._spec.micro_batch
        return min(1.0, max(0.0, (there / here - 1) / (ratio - 1)))

    def _job_of(self, spec: CellSpec, *, share: float = 1.0, units: float = 1.0) -> MeasuredJob | None:
        """Return the job that ``spec`` would be, with so many times the units; None where no profile tells."""
        own = _cell_as(self._basis.cell, spec, share=share, of_units=self._of_units, units=units)
        cells = [own, *(_cell_as(cell, spec, share=share) for cell in self._basis.others)]
        try:
            if spec.world_size == 1:
                return _one_rank_job(cells[0])
            return job_of_cell(cells[0], cells[1:], transport=self._basis.transport)
        except StepscopeError:
            return None


def _unit_count(spec: CellSpec) -> int:
    """Count the units whose gradients are scattered in a step: of fully sharded strategies; 0 for others."""
    return sum(op.op == "reduce_scatter" for op in specs_of(spec).comm_plan)


def _of_units(basis: Basis) -> tuple[float, float]:
    """Return (forward, backward) ns of a micro-step that a sharded cell takes beyond the same work on whole replicas: the
    work of the host on its units, and their copies. It follows their number, not the batch."""
    cell, replica = basis.cell, basis.replica
    if replica is None or replica is cell or not _unit_count(cell.spec):
        return 0.0, 0.0
    try:
        own, whole = profile_of(cell), profile_of(replica)
    except StepscopeError:
        return 0.0, 0.0
    rounds = cell.spec.accumulation
    return max(0.0, own.forward_ns - whole.forward_ns) / rounds, max(0.0, float(own.backward_ns - whole.backward_ns))


def _computing_ns(cell: CellResult) -> float | None:
    """Return ns of forward and backward passes of one micro-step of the slowest rank, without communication."""
    table = cell_table(cell)
    if table is None:
        return None
    computing = (table.parts_ns["forward"] + table.parts_ns["backward"]).max(axis=0)
    return median(computing.tolist()) / cell.spec.accumulation


def _one_rank_job(cell: CellResult) -> MeasuredJob | None:
    """Return the job of one rank: its own time and nothing else."""
    profiles = [summary.backward for summary in cell.summaries if summary.backward is not None]
    if not profiles:
        return None
    p = profiles[0]
    from stepscope.predict.overlap import transport_of

    return MeasuredJob(
        name=cell.spec.cell_id, source="run", ranks=1, seen_ranks=1, nodes=1, backend=cell.spec.backend, device="CPU",
        gpu=None, step_ns=p.step_ns, length_ns=p.step_ns, compute_ns=p.step_ns - p.data_wait_ns, copies_ns=0.0,
        input_ns=p.data_wait_ns, tail_ns=p.after_ns, spread_ns=0.0, spread_from=0, spread_of="steps",
        transport=transport_of(cell.spec.backend), calls=(),
    )  # fmt: skip


def _cell_as(
    cell: CellResult, spec: CellSpec, *, share: float, of_units: tuple[float, float] = (0.0, 0.0), units: float = 1.0
) -> CellResult:
    """Return ``cell`` as if it had been measured with the settings of ``spec``, as far as its own work goes."""
    old = cell.spec
    adapted = replace(
        old,
        micro_batch=spec.micro_batch,
        global_batch=spec.global_batch,
        accumulation=spec.accumulation,
        num_workers=spec.num_workers,
        lr=spec.lr,
    )
    if cell.spec.strategy == spec.strategy or not specs_of(cell.spec).strategy.sharded:
        keep = old.strategy if specs_of(spec).strategy.sharded and not specs_of(old).strategy.sharded else spec.strategy
        options = spec.strategy_options if keep == spec.strategy else old.strategy_options
        adapted = replace(adapted, strategy=keep, strategy_options=options, precision=spec.precision)
    summaries = tuple(
        summary
        if summary.backward is None
        else replace(summary, backward=_scaled_profile(summary.backward, old, spec, share, of_units, units))
        for summary in cell.summaries
    )
    return replace(cell, spec=adapted, summaries=summaries)


def _scaled_profile(
    p: BackwardProfile, old: CellSpec, new: CellSpec, share: float, of_units: tuple[float, float], units: float
) -> BackwardProfile:
    """Return the profile with another batch of a rank, accumulation, loading processes, and so many times the units."""
    ratio = new.micro_batch / old.micro_batch
    longer = ratio * share + 1 - share
    times = new.accumulation / old.accumulation

    def passes(whole: float, of_units: float) -> float:
        of_units = min(of_units, whole)
        return (whole - of_units) * longer + of_units * units

    loading = p.data_wait_ns * ratio * times
    backward = passes(p.backward_ns, of_units[1])
    earlier = backward * (new.accumulation - 1)
    if old.accumulation > 1 and new.accumulation > 1:
        one = p.earlier_backward_ns / (old.accumulation - 1)
        earlier = passes(one, of_units[1]) * (new.accumulation - 1)
    forward = passes(p.forward_ns / old.accumulation, of_units[0]) * new.accumulation
    if new.num_workers > old.num_workers:
        rest = forward + earlier + backward + p.optimizer_ns + p.other_ns
        whole = loading if old.num_workers == 0 else (loading + rest) * old.num_workers
        loading = max(0.02 * loading, whole / new.num_workers - rest)
    return replace(
        p,
        micro_batch=new.micro_batch,
        data_wait_ns=round(loading),
        forward_ns=round(forward),
        earlier_backward_ns=round(earlier),
        backward_ns=round(backward),
        ready=tuple(
            replace(ready, ready_ns=round(ready.ready_ns * backward / max(1, p.backward_ns))) for ready in p.ready
        ),
    )
