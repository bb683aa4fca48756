"""``stepscope predict --from RUN|TRACE|PROFILE``: the user's own measured job on more GPUs, or with one thing changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.prediction import Question, answered, measured_job, predict_job
from stepscope.cli.command import require_only
from stepscope.cli.console import out, print_document, say
from stepscope.cli.evidence import scaling_of
from stepscope.cli.findings import show_table
from stepscope.core.errors import UsageError
from stepscope.core.units import format_duration, format_percent
from stepscope.predict.scale import OFF
from stepscope.predict.what_if import parse_gpus, parse_what_if
from stepscope.records.prediction import ScalePrediction
from stepscope.report.views import predicted_step
from stepscope.store.layout import DryLayout

if TYPE_CHECKING:
    from stepscope.cli.commands.predict import Predict

_OF_DRY_RUNS = ("run", "from_", "gpus", "gpu", "gpus_per_node", "network", "adapters", "what_if", "calibrate", "memory",
                "chart", "json")  # fmt: skip


def run(options: Predict) -> int:
    """Predict and print; the exit code. Raises StepscopeError."""
    if options.from_ is not None and options.run is not None:
        raise UsageError("predict starts from one job, and --from and RUN name two", fix="leave one of them out")
    path = options.from_ or options.run
    assert path is not None
    if DryLayout(path).is_there:
        from stepscope.cli.predict_script import run_folder

        require_only(options, f"predict --from {path}, a dry run,", _OF_DRY_RUNS)
        return run_folder(path, options)
    mode = f"predict --from {path}, no dry run,"
    require_only(options, mode, vars(options).keys() - {"gpu", "memory", "calibrate"})
    question = Question(
        gpus=None if options.gpus is None else parse_gpus(options.gpus),
        what_if=parse_what_if(options.what_if),
        scaling=scaling_of(options.scaling) or "weak",
        network=options.network,
        adapters=options.adapters,
        gpus_per_node=options.gpus_per_node,
        calib=options.calib,
    )
    job = measured_job(path, options.cell, calib=options.calib)
    prediction = predict_job(job, question)
    if options.chart is not None:
        _draw(prediction, options.chart, global_batch=job.global_batch)
    if options.json:
        print_document(answered(prediction).to_json())
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


def show(prediction: ScalePrediction) -> None:
    """Print the answer, its table, what it rests on."""
    console = out()
    say(predicted_step.scale_sentence(prediction), "bold")
    say(_replay(prediction), "" if abs(prediction.replay_error) <= OFF else "yellow")
    say(f"collectives: {prediction.prices}")
    say()
    show_table(predicted_step.scaled_steps_table(prediction), width=min(console.width, 140))
    say()
    for text in prediction.assumptions:
        say(f"- {text}", "dim")
    for text in prediction.notes:
        say(f"! {text}", "yellow")


def _replay(prediction: ScalePrediction) -> str:
    replay, measured = format_duration(prediction.replay_ns), format_duration(prediction.step_ns)
    if not prediction.replay_checks:
        return f"replay of the measured step: {replay}, measured {measured}: made to agree, which checks nothing"
    off = format_percent(prediction.replay_error, digits=1, signed=True)
    text = f"replay of the measured step: {replay}, measured {measured}, {off}"
    if abs(prediction.replay_error) <= OFF:
        return text
    return f"{text}: far off; the difference stays in every step below, and the intervals hold it"
