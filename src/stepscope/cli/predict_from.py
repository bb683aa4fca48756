"""``stepscope predict --from RUN|TRACE|PROFILE``: the user's own measured job on more GPUs, or with one thing changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.console import out, print_document, say
from stepscope.cli.evidence import scaling_of
from stepscope.cli.findings import show_table
from stepscope.core.errors import StepscopeError, Unavailable, UsageError
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.predict.collectives.machine import find_fabric
from stepscope.predict.job import MeasuredJob
from stepscope.predict.overlap import measured_transport
from stepscope.predict.prices import Links, Prices, calibrated_prices, own_prices
from stepscope.predict.scale import KNEE, OFF, check_gpus, predict_scale
from stepscope.predict.what_if import WhatIf, parse_gpus, parse_what_if
from stepscope.records import codec
from stepscope.records.prediction import ScalePrediction
from stepscope.report.views import predicted_step
from stepscope.store.importer import require_there
from stepscope.store.layout import ProfileLayout, RunLayout

if TYPE_CHECKING:
    from stepscope.cli.commands.predict import Predict


SAME = 0.005
"""Relative difference of throughputs that two decimals do not show."""


def run(options: Predict) -> int:
    """Predict and print; the exit code. Raises StepscopeError."""
    if options.from_ is not None and options.run is not None:
        raise UsageError("predict starts from one job, and --from and RUN name two", fix="leave one of them out")
    path = options.from_ or options.run
    assert path is not None
    scaling = scaling_of(options.scaling) or "weak"
    what = parse_what_if(options.what_if)
    job = measured_job(path, options.cell, calib=options.calib)
    gpus = tuple(job.ranks * 2**doubled for doubled in range(7)) if options.gpus is None else parse_gpus(options.gpus)
    check_gpus(gpus, job, scaling=scaling)
    prices, measured = _prices(options, job, what)
    prediction = predict_scale(job, gpus, prices, measured=measured, what=what, scaling=scaling)
    if options.chart is not None:
        _draw(prediction, options.chart, global_batch=job.global_batch)
    if options.json:
        print_document({**codec.headed("predict/1"), "kind": "scale", **codec.plain(prediction)})
    else:
        show(prediction)
    return 0


def _draw(prediction: ScalePrediction, file: Path, *, global_batch: int | None) -> None:
    """Draw throughput with its band over GPUs, beside what was measured."""
    from stepscope.cli.predict_step import write_chart
    from stepscope.report.views.predicted_step import ScaleCurve, ScalePoint

    unit, scale = "x the measured throughput", 1.0
    if global_batch is not None:
        unit, scale = "samples/s", prediction.measured_samples_per_s(global_batch)
    points = [
        ScalePoint(
            gpus=s.ranks, value=s.throughput * scale, low=s.throughput_low * scale, high=s.throughput_high * scale
        )
        for s in prediction.steps
    ]
    for point in prediction.measured:
        value = scale * prediction.measured_throughput(point)
        points.append(ScalePoint(gpus=point.ranks, value=value, measured=True))
    curve = ScaleCurve(title=prediction.name, unit=unit, points=tuple(points), knee=prediction.knee)
    write_chart(file, predicted_step.predicted_scaling_chart(curve))


def measured_job(path: Path, cell_id: str | None, *, calib: Path | None) -> MeasuredJob:
    """Return the measured job at ``path``. Raises DataError, UsageError."""
    require_there(path)
    layout = RunLayout(path)
    if not layout.is_there:
        if cell_id is not None and not ProfileLayout(path).is_there:
            raise UsageError(f"--cell {cell_id}: {path} is not a run folder of stepscope bench", fix="remove --cell")
        from stepscope.cli.evidence import traces_of
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


def _prices(options: Predict, job: MeasuredJob, what: WhatIf) -> tuple[Prices, Prices]:
    """Return the prices of the question, and those of the links that the job used."""
    if options.network is not None and what.link is not None and what.link != "pcie":
        raise UsageError("--network and --what-if link= both name a network", fix="give one of them")
    given = {
        "--network": options.network,
        "--adapters": options.adapters,
        "--gpus-per-node": options.gpus_per_node,
        "--what-if link": what.link,
        "--what-if gpu": what.gpu,
    }
    asked = [name for name, value in given.items() if value is not None]
    if options.calib is not None:
        _refuse(asked, "--calib", why="a calibration is of the links that it was measured on")
        from stepscope.store.reader import read_calibration

        prices = calibrated_prices(read_calibration(options.calib), backend=job.backend, network=job.network)
        return prices, prices
    if job.gpu is None:
        _refuse(asked, f"{job.name} on {job.device}", why="its GPU is not in the hardware table, which has the links")
    network = options.network or (what.link if what.link != "pcie" else None)
    links = Links(
        gpus_per_node=options.gpus_per_node,
        fabric=None if network is None else find_fabric(network),
        adapters=options.adapters,
        pcie=what.link == "pcie",
    )
    own = own_prices(job, Links())
    return (own_prices(job, links, gpu=what.gpu) if asked else own), own


def _refuse(asked: list[str], mode: str, *, why: str) -> None:
    if asked:
        raise UsageError(f"{mode} does not go with {', '.join(asked)}", why=why)


def show(prediction: ScalePrediction) -> None:
    """Print the answer, its table, what it rests on."""
    console = out()
    say(_verdict(prediction), "bold")
    say(_replay(prediction), "" if abs(prediction.replay_error) <= OFF else "yellow")
    say(f"collectives: {prediction.prices}")
    say()
    show_table(predicted_step.scaled_steps_table(prediction), width=min(console.width, 140))
    say()
    for text in prediction.assumptions:
        say(f"- {text}", "dim")
    for text in prediction.notes:
        say(f"! {text}", "yellow")


def _verdict(prediction: ScalePrediction) -> str:
    last = prediction.steps[-1]
    changed = f" with {prediction.change}" if prediction.change else ""
    base = prediction.base_throughput
    so_changed = "" if abs(base - 1) < SAME else f" against the {base:.3g}x of {prediction.ranks} so changed"
    share = "" if last.efficiency is None else f", efficiency {format_percent(last.efficiency, digits=0)}{so_changed}"
    knee = (
        "none of the numbers keeps that"
        if prediction.knee is None
        else f"up to {prediction.knee} and beyond"
        if prediction.knee_open
        else f"up to {counted(prediction.knee, prediction.unit)}"
    )
    return (
        f"{prediction.name}{changed}: on {counted(last.ranks, prediction.unit)} {last.throughput:.3g}x the throughput of "
        f"{prediction.ranks} ({prediction.scaling} scaling{share}); at least {KNEE:.0%}: {knee}"
    )


def _replay(prediction: ScalePrediction) -> str:
    replay, measured = format_duration(prediction.replay_ns), format_duration(prediction.step_ns)
    if not prediction.replay_checks:
        return f"replay of the measured step: {replay}, measured {measured}: made to agree, which checks nothing"
    off = format_percent(prediction.replay_error, digits=1, signed=True)
    text = f"replay of the measured step: {replay}, measured {measured}, {off}"
    if abs(prediction.replay_error) <= OFF:
        return text
    return f"{text}: far off; the difference stays in every step below, and the intervals hold it"
