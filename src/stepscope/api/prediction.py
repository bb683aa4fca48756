"""A measured job on more GPUs, or with one thing changed: from its path to the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.answer import Answer
from stepscope.api.traces import traces_of
from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError, Unavailable, UsageError
from stepscope.core.words import counted
from stepscope.predict.collectives.choose import known_gpu
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

if TYPE_CHECKING:
    from stepscope.results.dry_job import DryJob


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


def asked_of_dry_run(job: DryJob, question: Question, *, gpu: str | None = None) -> DryJob:
    """Return a dry run on other GPUs and links, and on these worlds alone. Raises UsageError for what it does not hold."""
    again = "give the command again after --"
    if question.gpus_per_node is not None:
        raise UsageError("--gpus-per-node: the script saw its nodes", fix=again)
    if question.calib is not None:
        raise UsageError("--calib: a dry run is priced by its GPU and network", fix="give --gpu and --network")
    if job.profile is not None and (gpu or question.network or question.adapters):
        raise UsageError(f"{job.folder} is of ranks of the host", fix=again)
    run = replace(
        job.run,
        gpu=known_gpu(gpu).key if gpu else job.run.gpu,
        network=question.network or job.run.network,
        adapters=question.adapters or job.run.adapters,
    )
    worlds = tuple(job.worlds) if question.gpus is None else tuple(question.gpus)
    if missing := [world for world in worlds if world not in job.worlds]:
        raise UsageError(f"{job.folder} has no step of {counted(missing[0], 'GPU')}", fix=f"{again}, with --gpus")
    return replace(job, run=run, ranks=tuple(rank for rank in job.ranks if rank.world_size in worlds or job.profile))


def answered_dry_run(job: DryJob, other: DryJob | None = None) -> Answer:
    """Return what a dry run says as an answer. other: the same with something changed."""
    from stepscope.diagnose.dry_words import headline
    from stepscope.report.views import dry_run as views
    from stepscope.results.dry_changes import dry_changes

    tables = {
        "steps": views.dry_steps_table, "parts": views.dry_parts_table, "memory": views.dry_memory_table,
        "changes": views.dry_changes_table,
    }  # fmt: skip
    shown = job if other is None else other
    return Answer(
        headline=headline(shown),
        frames={name: frame_of(table([shown])) for name, table in tables.items()},
        record=shown.steps,
        document={
            **headed("predict/1"),
            "kind": "script",
            "name": job.name,
            "folder": str(job.folder),
            "script": list(job.run.command),
            "predictions": [plain(step) for step in job.steps.values()],
            "what_if": [] if other is None else [plain(step) for step in other.steps.values()],
            "failures": [plain(failure) for failure in job.run.failures],
            "changes": [plain(change) for change in dry_changes(job)],
            "notes": [plain(note) for rank in job.worlds[job.largest.ranks] for note in rank.notes],
        },
    )


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
