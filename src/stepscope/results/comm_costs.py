"""What collectives cost here, from whatever the evidence holds: a calibration, or measured collectives to make one of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.predict.calibration import calibrate, machine_of
from stepscope.predict.overlap import Transport, measured_transport
from stepscope.predict.run_buckets import choose_buckets, naive_twin, own_timeline
from stepscope.records.calibration import CalibratedMachine, Calibration, CollectiveFit
from stepscope.records.cell import CellSpec
from stepscope.records.comm import CommRow
from stepscope.records.prediction import BucketChoice, Timeline
from stepscope.records.samples import CellResult
from stepscope.results.comm_labels import cells_of
from stepscope.results.evidence import Evidence

NOWHERE = CalibratedMachine(
    hosts=(), cpu_model=None, usable_cores=None, gpus=(), torch_version=None, backend_version=None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommCosts:
    """A calibration and the rows that tell how collectives and computation slow each other (may be empty)."""

    calibration: Calibration
    rows: tuple[CommRow, ...] = ()

    def timeline(self, cell: CellResult) -> Timeline | str:
        """The step of ``cell`` as its own buckets allow it, or why it cannot be told."""
        try:
            return own_timeline(cell, self.calibration, transport=self._transport(cell))
        except (StepscopeError, ValueError) as error:
            return _reason(error)

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
            return _reason(error)

    def _transport(self, cell: CellResult) -> Transport | None:
        try:
            return measured_transport(cell.spec.backend, self.rows)
        except UsageError:
            return None


def _reason(error: Exception) -> str:
    return error.line if isinstance(error, StepscopeError) else str(error).partition("\n")[0]


def comm_costs(evidence: Evidence) -> CommCosts | None:
    """None where no collective was measured, or none that a calibration can be made of.

    The last answer is kept: several rules ask of the same evidence, and a fit takes its time.
    """
    global _last
    if evidence.calibration is not None:
        return CommCosts(calibration=evidence.calibration, rows=evidence.comm)
    machine = NOWHERE if evidence.environment is None else machine_of(evidence.environment)
    if _last is None or _last[0] is not evidence.comm or _last[1] != machine:
        _last = evidence.comm, machine, _fitted(evidence.comm, machine)
    return _last[2]


_last: tuple[tuple[CommRow, ...], CalibratedMachine, CommCosts | None] | None = None


def _fitted(rows: tuple[CommRow, ...], machine: CalibratedMachine) -> CommCosts | None:
    """All rows together, which prefers the usual way of a call; then sweeps that this hid behind one with too few sizes."""
    fits = list(_fits(rows, machine))
    known = {(fit.op, fit.world_size, fit.backend, fit.network) for fit in fits}
    hidden = (row for row in rows if (row.op, row.world_size, row.backend, row.network) not in known)
    sweeps = cells_of(hidden, "collective")
    fits += [fit for sweep in sweeps.values() for fit in _fits(sweep, machine)]
    if not fits:
        return None
    made = Calibration(run="the measured collectives", machine=machine, fits=tuple(fits))
    return CommCosts(calibration=made, rows=rows)


def _fits(rows: Sequence[CommRow], machine: CalibratedMachine) -> tuple[CollectiveFit, ...]:
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
