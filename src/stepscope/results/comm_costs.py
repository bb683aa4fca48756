"""What collectives cost here: from a calibration, from measured collectives, or from the collectives in a job's traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.words import grouped
from stepscope.predict.calibration import calibrate, machine_of
from stepscope.predict.overlap import Transport, measured_transport
from stepscope.predict.run_buckets import choose_buckets, naive_twin, own_timeline
from stepscope.records.calibration import CalibratedMachine, Calibration, CollectiveFit
from stepscope.records.cell import CellSpec
from stepscope.records.comm import CommRow
from stepscope.records.prediction import BucketChoice, Timeline
from stepscope.records.samples import CellResult
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.comm_rows import UNMEASURED
from stepscope.results.evidence import Evidence
from stepscope.results.labels import cells_of
from stepscope.stats.compare import bootstrap_median_interval

NOWHERE = CalibratedMachine(
    hosts=(), cpu_model=None, usable_cores=None, gpus=(), torch_version=None, backend_version=None
)


@record
class CommCosts:
    """A calibration and the rows that tell how collectives and computation slow each other (may be empty)."""

    calibration: Calibration
    rows: tuple[CommRow, ...] = ()

    def timeline(self, cell: CellResult) -> Timeline | str:
        """The step of ``cell`` as its own buckets allow it, or why it cannot be told."""
        try:
            return own_timeline(cell, self.calibration, transport=self._transport(cell))
        except (StepscopeError, ValueError) as error:
            return _error_line(error)

    def buckets(
        self, cell: CellResult, cells: tuple[CellResult, ...], *, also_mb: tuple[float, ...] = ()
    ) -> BucketChoice | str:
        """Which bucket size is best for ``cell``, or why it cannot be told. cells: of the run, for a naive twin.

        also_mb: sizes in use, MiB, priced beside the usual ones.
        """
        try:
            return choose_buckets(
                cell,
                self.calibration,
                naive=naive_twin(cells, cell),
                transport=self._transport(cell),
                also_mb=also_mb,
            )
        except (StepscopeError, ValueError) as error:
            return _error_line(error)

    def _transport(self, cell: CellResult) -> Transport | None:
        try:
            return measured_transport(cell.spec.backend, self.rows)
        except UsageError:
            return None


def _error_line(error: Exception) -> str:
    return error.line if isinstance(error, StepscopeError) else str(error).partition("\n")[0]


def comm_costs(evidence: Evidence) -> CommCosts | None:
    """Return what collectives cost; None where none was measured, or none that a calibration can be made of.

    The last answer is kept: several rules ask of the same evidence, and a fit takes its time.
    """
    global _last
    if evidence.calibration is not None:
        return CommCosts(calibration=evidence.calibration, rows=evidence.comm)
    machine = NOWHERE if evidence.environment is None else machine_of(evidence.environment)
    if _last is None or _last[0] is not evidence.comm or _last[1] != machine:
        _last = evidence.comm, machine, _fitted_costs(evidence.comm, machine)
    return _last[2]


_last: tuple[tuple[CommRow, ...], CalibratedMachine, CommCosts | None] | None = None


def _fitted_costs(rows: tuple[CommRow, ...], machine: CalibratedMachine) -> CommCosts | None:
    """Fit all rows together, which prefers the usual way of a call; then sweeps that this hid behind one with too few
    sizes."""
    fits = list(_collective_fits(rows, machine))
    covered = {(fit.op, fit.world_size, fit.backend, fit.network) for fit in fits}
    hidden = (row for row in rows if (row.op, row.world_size, row.backend, row.network) not in covered)
    sweeps = cells_of(hidden, "collective")
    fits += [fit for sweep in sweeps.values() for fit in _collective_fits(sweep, machine)]
    if not fits:
        return None
    made = Calibration(run="the measured collectives", machine=machine, fits=tuple(fits))
    return CommCosts(calibration=made, rows=rows)


def _collective_fits(rows: Sequence[CommRow], machine: CalibratedMachine) -> tuple[CollectiveFit, ...]:
    try:
        return calibrate(rows, run="", machine=machine).fits
    except UsageError:
        return ()


def command_for(cell: CellSpec, *, run: str = "RUN") -> str:
    """The command that measures what the collectives of ``cell`` cost, overlap included. run: folder of the cell."""
    network = "" if cell.network is None else f" --emulate-network {cell.network}"
    return (
        f"stepscope comm --ops all_reduce --sizes 64K:64M:4 --overlap --ranks {cell.world_size}{network} -o COMM "
        f"&& stepscope diagnose {run} COMM"
    )


SECTIONS = frozenset({"collectives"})
"""What of a trace is needed beside what any reading gives."""

OF_A_JOB = "from the traces of a job: transfers beside its computation, waiting for other ranks taken off"

_SHORT = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SEED = 20_261_123


def rows_of_traces(summary: TraceSummary, *, name: str) -> tuple[CommRow, ...]:
    """Median transfer (ns, from the last rank's arrival to the first exit) of each op, type, group and size.

    Raises DataError where no transfer can be told from waiting: one rank's traces, or none that match.
    """
    instances = [] if summary.collectives is None else list(summary.collectives.instances)
    usable = [
        instance for instance in instances
        if instance.transfer_ns and instance.size_bytes and instance.group_size and instance.complete
        and instance.op in COLLECTIVES.names()
    ]  # fmt: skip
    if not usable:
        raise DataError(
            f"{name}: these traces show no transfer of a collective", why=_why_not_fitted(summary, instances),
            fix="stepscope comm -o COMM measures the network itself; then stepscope calibrate COMM",
        )  # fmt: skip
    hosts = summary.hosts
    backend = next((rank.facts.backend for rank in summary.ranks if rank.facts.backend), None)
    on_device = any(rank.facts.device_name for rank in summary.ranks)
    alike = grouped(
        usable,
        lambda instance: (instance.op, instance.dtype or "unknown", _member_ranks(instance), instance.size_bytes),
    )
    return tuple(
        _traced_row(
            same, hosts, backend=backend or ("nccl" if on_device else "gloo"), device="cuda" if on_device else "cpu"
        )
        for same in alike.values()
    )


def machine_of_traces(summary: TraceSummary) -> CalibratedMachine:
    """What the traces say of where the job ran."""
    facts = [rank.facts for rank in summary.ranks]
    return CalibratedMachine(
        hosts=tuple(sorted({fact.host for fact in facts if fact.host})),
        cpu_model=None,
        usable_cores=None,
        gpus=tuple(fact.device_name for fact in facts if fact.device_name),
        torch_version=None,
        backend_version=None,
    )


def _why_not_fitted(summary: TraceSummary, instances: Sequence[MatchedCollective]) -> str:
    """Say why a trace's collectives give no costs."""
    if not instances:
        return "the job's steps call no collective"
    if len(summary.ranks) < 2:
        return "only one rank's trace is there: what is transfer, and what waits for the others, is unknown"
    if not any(instance.size_bytes for instance in instances):
        return "sizes are not recorded (record_shapes=True; stepscope profile sets it)"
    return next((instance.unsplit for instance in instances if instance.unsplit), "the ranks' calls do not match")


def _member_ranks(instance: MatchedCollective) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in instance.ranks))


def _traced_row(
    same: Sequence[MatchedCollective], hosts: Mapping[int, str | None], *, backend: str, device: str
) -> CommRow:
    """Return one row for calls of the same kind: the median of their transfers, with its interval."""
    first = same[0]
    times = np.array([float(instance.transfer_ns or 0) for instance in same])
    group_hosts = {hosts.get(rank) for rank in _member_ranks(first)}
    low, high = bootstrap_median_interval(times, rng=np.random.default_rng(_SEED)) or (None, None)
    return CommRow(
        **{
            **UNMEASURED,
            "cell_id": "traces", "status": "ok", "error": None, "kind": "collective", "op": first.op,
            "dtype": _SHORT.get(first.dtype or "", first.dtype or "unknown"), "reduce_op": None, "in_place": True,
            "mode": "blocking", "in_flight": 1, "pattern": None, "pacing": "barrier", "root": 0,
            "world_size": first.group_size, "hosts": None if None in group_hosts else len(group_hosts), "device": device,
            "backend": backend, "env": {}, "network": None, "size_bytes": first.size_bytes,
            "asked_bytes": first.size_bytes, "iterations": len(same), "time_ns_median": float(np.median(times)),
            "time_ns_low": low, "time_ns_high": high,
            "time_ns_mean": float(times.mean()), "time_ns_min": float(times.min()), "time_ns_max": float(times.max()),
        }
    )  # fmt: skip
