"""A measured job on more GPUs, or with one thing changed: from its path to the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepscope.api.answer import Answer
from stepscope.api.traces import traces_of
from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError, Unavailable, UsageError
from stepscope.predict.collectives.machine import find_fabric
from stepscope.predict.job import MeasuredJob
from stepscope.predict.overlap import measured_transport
from stepscope.predict.prices import Links, Prices, calibrated_prices, own_prices
from stepscope.predict.scale import check_gpus, predict_scale
from stepscope.predict.what_if import WhatIf
from stepscope.records.codec import headed, plain
from stepscope.records.nouns import Scaling
from stepscope.records.prediction import ScalePrediction
from stepscope.report.frame import frame_of
from stepscope.report.views import predicted_step
from stepscope.store.importer import require_there
from stepscope.store.layout import ProfileLayout, RunLayout


@record
class Question:
    """What is asked of a measured job. gpus: numbers of ranks; None: doublings of its own, up to 64 times. what_if: the
    change; None: none. network, adapters, gpus_per_node: other links; calib: a calibration of them."""

    gpus: Sequence[int] | None = None
    what_if: WhatIf | None = None
    scaling: Scaling = "weak"
    network: str | None = None
    adapters: int | None = None
    gpus_per_node: int | None = None
    calib: Path | None = None


def predict_job(job: MeasuredJob, question: Question) -> ScalePrediction:
    """Predict the job as asked. Raises UsageError for what the job does not allow."""
    what = question.what_if or WhatIf()
    gpus = tuple(job.ranks * 2**doubled for doubled in range(7)) if question.gpus is None else tuple(question.gpus)
    check_gpus(gpus, job, scaling=question.scaling)
    prices, measured = _prices(question, job, what)
    return predict_scale(job, gpus, prices, measured=measured, what=what, scaling=question.scaling)


def measured_job(path: Path, cell_id: str | None, *, calib: Path | None) -> MeasuredJob:
    """Return the measured job at ``path``. Raises DataError, UsageError."""
    require_there(path)
    layout = RunLayout(path)
    if not layout.is_there:
        if cell_id is not None and not ProfileLayout(path).is_there:
            raise UsageError(f"--cell {cell_id}: {path} is not a run folder of stepscope bench", fix="remove --cell")
        from stepscope.results.diary import job_steps
        from stepscope.results.job_from_traces import SECTIONS, job_of_traces, unprofiled
        from stepscope.store.diary import read_diaries
        from stepscope.traces.job import analyse_job
        from stepscope.traces.sections import Wanted

        (traces,) = traces_of(str(path), cell_id)
        traced = job_of_traces(analyse_job(Path(traces), Wanted(sections=SECTIONS)), name=str(path))
        timed = unprofiled(traced, job_steps(read_diaries(ProfileLayout(path))))
        return traced if isinstance(timed, Unavailable) else timed
    from stepscope.results.cell_job import choose_cell, job_of_cell
    from stepscope.store.reader import read_cell, read_run

    record = read_run(path)
    if record.kind != "bench":
        raise UsageError(
            f"{path} is a {record.kind} run", fix="--from takes a run of `stepscope bench`, or traces of a job"
        )
    cells = [read_cell(layout.cell(cell)) for cell in record.cells]
    chosen = choose_cell(cells, cell_id)
    transport = None
    if calib is not None:
        from stepscope.results.comm_rows import read_comm_rows
        from stepscope.store.reader import read_calibration

        try:
            transport = measured_transport(chosen.spec.backend, read_comm_rows(Path(read_calibration(calib).run)))
        except StepscopeError:  # the calibrated run is elsewhere, or did not measure overlap
            transport = None
    return job_of_cell(chosen, cells, transport=transport)


def _prices(question: Question, job: MeasuredJob, what: WhatIf) -> tuple[Prices, Prices]:
    """Return the prices of the question, and those of the links that the job used."""
    if question.network is not None and what.link is not None and what.link != "pcie":
        raise UsageError("--network and --what-if link= both name a network", fix="give one of them")
    given = {
        "--network": question.network,
        "--adapters": question.adapters,
        "--gpus-per-node": question.gpus_per_node,
        "--what-if link": what.link,
        "--what-if gpu": what.gpu,
    }
    asked = [name for name, value in given.items() if value is not None]
    if question.calib is not None:
        _refuse(asked, "--calib", why="a calibration is of the links that it was measured on")
        from stepscope.store.reader import read_calibration

        prices = calibrated_prices(read_calibration(question.calib), backend=job.backend, network=job.network)
        return prices, prices
    if job.gpu is None:
        _refuse(asked, f"{job.name} on {job.device}", why="its GPU is not in the hardware table, which has the links")
    network = question.network or (what.link if what.link != "pcie" else None)
    links = Links(
        gpus_per_node=question.gpus_per_node,
        fabric=None if network is None else find_fabric(network),
        adapters=question.adapters,
        pcie=what.link == "pcie",
    )
    own = own_prices(job, Links())
    return (own_prices(job, links, gpu=what.gpu) if asked else own), own


def _refuse(asked: list[str], mode: str, *, why: str) -> None:
    if asked:
        raise UsageError(f"{mode} does not go with {', '.join(asked)}", why=why)


def answered(prediction: ScalePrediction) -> Answer:
    """Return a prediction as an answer: its sentence, its table of steps, the document of ``predict --json``."""
    return Answer(
        headline=predicted_step.scale_sentence(prediction),
        frames={"steps": frame_of(predicted_step.scaled_steps_table(prediction))},
        record=prediction,
        document={**headed("predict/1"), "kind": "scale", **plain(prediction)},
    )
