"""``stepscope predict --model``: a training step of a named model on named GPUs, without any measurement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stepscope.cli.blocks import show_table
from stepscope.cli.command import require_only
from stepscope.cli.console import out, print_document
from stepscope.cli.predict_what_if import parse_gpus, parse_what_if
from stepscope.core.errors import UsageError
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.collectives.fabrics import find_fabric
from stepscope.predict.step.alternatives import (
    Remedy,
    base_of,
    changed,
    efficiency,
    knee,
    remedies,
    speedup,
    warnings_of,
)
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import AskedLayout, Cluster, layout_text, parse_layout
from stepscope.predict.step.measured import calibrated, corrected, shipped
from stepscope.predict.step.model import ModelShape, model_of
from stepscope.predict.step.step import StepPrediction, predict_step
from stepscope.report.views import predicted_step

if TYPE_CHECKING:
    from stepscope.cli.commands.predict import Predict

OBEYED = (
    "model", "layout", "gpu", "gpus", "gpus_per_node", "network", "adapters", "sharp", "memory", "measured", "what_if",
    "calib", "chart", "json",
)  # fmt: skip
_EXAMPLE = "stepscope predict --model llama3-8b --gpu h100-sxm --gpus 8,64,512 --layout zero=3,mbs=2"


def run(options: Predict) -> int:
    """Predict and print; the exit code. Raises StepscopeError."""
    require_only(options, "--model", OBEYED)
    assert options.model is not None
    shape = model_of(options.model)
    if options.gpu is None or options.gpus is None:
        missing = "--gpu" if options.gpu is None else "--gpus"
        raise UsageError(f"{missing} is missing", why="a named model needs GPUs to run on", fix=_EXAMPLE)
    asked = parse_layout(options.layout, shape)
    measured = _measured(options.measured)
    calibration = constants_of(options, shape)

    def at(gpus: int) -> StepPrediction:
        return predict_step(shape, cluster_of(options, gpus), asked.on(gpus), calibration)

    if measured:
        calibration = corrected(calibration, {gpus: at(gpus) for gpus in measured}, measured)
    predictions = [at(gpus) for gpus in parse_gpus(options.gpus)]
    bend = knee(base_of(predictions), at) if len(predictions) > 1 else None
    other = [_other(options, shape, p, calibration) for p in predictions] if options.what_if else []
    ways = {p.layout.gpus: remedies(p, calibration) for p in predictions if not p.fits} if options.memory else {}
    if options.chart is not None:
        _draw(options, predictions, bend, measured)
    if options.json:
        print_document(_document(predictions, asked, bend, other, ways))
    else:
        _show(options, predictions, asked, bend, other, ways)
    return 0


def _measured(texts: Sequence[str]) -> dict[int, float]:
    """``64=620000`` -> {64: 620000.0}. Raises UsageError."""
    found: dict[int, float] = {}
    for text in texts:
        parts = re.fullmatch(r"(\d+)=(\d+(?:\.\d+)?(?:e\d+)?)", text.strip().lower())
        if parts is None or not (speed := float(parts[2])):
            raise UsageError(f"--measured {text}", fix="give GPUS=TOKENS_PER_SECOND of the whole job: 64=620000")
        found[parse_gpus(parts[1])[0]] = speed
    return found


def constants_of(options: Any, shape: ModelShape) -> StepCalibration:
    """Those that come with stepscope, corrected by --calib. Raises StepscopeError."""
    gpu = known_gpu(options.gpu)
    found = shipped(gpu, shape)
    if options.calib is None:
        return found
    from stepscope.store.calibration import read_calibration

    return calibrated(found, read_calibration(options.calib), gpu)


def cluster_of(options: Any, gpus: int) -> Cluster:
    """The machine that --gpu, --network, ... describe. Raises UsageError with did-you-mean."""
    gpu = known_gpu(options.gpu)
    return Cluster(
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=options.gpus_per_node,
        network=None if options.network is None else find_fabric(options.network, gpu_key=gpu.key),
        adapters_per_node=options.adapters,
        sharp=options.sharp,
    )


def _other(options: Predict, shape: ModelShape, before: StepPrediction, calibration: StepCalibration) -> StepPrediction:
    what = parse_what_if(options.what_if)
    cluster, layout, constants = changed(before.cluster, before.layout, calibration, what)
    if what.gpu is not None:
        mine, theirs = (shipped(c.gpu, shape).factor for c in (before.cluster, cluster))
        constants = replace(constants, factor=constants.factor * theirs / mine)
    return predict_step(shape, cluster, layout, constants)


def _show(
    options: Predict,
    predictions: Sequence[StepPrediction],
    asked: AskedLayout,
    bend: int | None,
    other: Sequence[StepPrediction],
    ways: dict[int, tuple[Remedy, ...]],
) -> None:
    console = out()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style)

    def table(built: Any) -> None:
        say("")
        if built.title:
            say(built.title, "bold")
        show_table(built)

    last = predictions[-1]
    say(predicted_step.verdict(last), "bold")
    if len(predictions) > 1:
        base = base_of(predictions)
        share = format_percent(efficiency(last, base))
        bent = f"knee at {bend} GPUs: beyond it speed per GPU falls below 80%" if bend else "no knee found"
        say(f"efficiency {share} of {base.layout.gpus} GPUs; {bent}")
        table(predicted_step.build_scaling(predictions))
        say("")
    for line in predicted_step.bound(last):
        say(line)
    table(predicted_step.build_budget(last))
    if options.memory or not last.fits:
        table(predicted_step.build_memory(last))
    for gpus, found in ways.items():
        if found:
            table(predicted_step.build_remedies(found))
        else:
            say(f"\non {counted(gpus, 'GPU')} no change looked at makes it fit: more GPUs, or GPUs with more memory")
    if other:
        say("")
        for before, after in zip(predictions, other, strict=True):
            faster = f"{speedup(after, before):.2f}x the speed"
            say(f"with {' '.join(options.what_if)}: {predicted_step.verdict(after)}; {faster}", "bold")
        table(predicted_step.build_scaling(other))
    say("")
    for reason in last.extrapolated:
        say(f"! extrapolated: {reason}", "yellow")
    for warned in warnings_of(last):
        say(f"! {warned}", "yellow")
    notes = dict.fromkeys((*asked.assumed, *(note for p in (*predictions, *other) for note in p.notes)))
    for note in (*notes, f"constants: {last.calibration}"):
        say(f"! {note}", "yellow")


def _draw(
    options: Predict, predictions: Sequence[StepPrediction], bend: int | None, measured: dict[int, float]
) -> None:
    from stepscope.cli.predict_chart import write_chart
    from stepscope.report.views import predicted_scaling

    assert options.chart is not None
    if len(predictions) < 2:
        raise UsageError("--chart needs several numbers of GPUs", fix="--gpus 8,64,512")
    curve = predicted_scaling.ScaleCurve(
        key=predictions[0].model.name,
        title=f"{predictions[0].model.name} on {predictions[0].cluster.gpu.name}",
        unit="tokens/s",
        points=tuple(
            predicted_scaling.ScalePoint(
                gpus=p.layout.gpus,
                value=p.tokens_per_s,
                low=p.low_tokens_per_s,
                high=p.high_tokens_per_s,
            )
            for p in predictions
        )
        + tuple(predicted_scaling.ScalePoint(gpus=n, value=speed, measured=True) for n, speed in measured.items()),
        knee=bend,
    )
    write_chart(options.chart, curve, predicted_scaling.draw, predicted_scaling.caption)


def _document(
    predictions: Sequence[StepPrediction],
    asked: AskedLayout,
    bend: int | None,
    other: Sequence[StepPrediction],
    ways: dict[int, tuple[Remedy, ...]],
) -> dict[str, Any]:
    from stepscope.records.codec import headed

    return {
        **headed("predict/1"),
        "kind": "step",
        "model": predictions[0].model.name,
        "params": predictions[0].model.params,
        "knee_gpus": bend,
        "assumed": list(asked.assumed),
        "predictions": [as_json(p) for p in predictions],
        "what_if": [as_json(p) for p in other],
        "remedies": {
            str(gpus): [{"change": r.what, "slower": r.slower, **as_json(r.prediction)} for r in found]
            for gpus, found in ways.items()
        },
    }


def as_json(p: StepPrediction) -> dict[str, Any]:
    """Base units: seconds, bytes."""
    return {
        "gpus": p.layout.gpus,
        "gpu": p.cluster.gpu.key,
        "layout": asdict(p.layout),
        "layout_text": layout_text(p.layout),
        "step_s": p.step_s,
        "low_s": p.low_s,
        "high_s": p.high_s,
        "tokens_per_s": p.tokens_per_s,
        "tokens_per_s_per_gpu": p.tokens_per_s_per_gpu,
        "mfu": dict(p.mfu),
        "hfu": p.hfu,
        "dominant": p.dominant,
        "budget_s": p.budget.parts,
        "memory_bytes": {**asdict(p.memory), "total": p.memory.total},
        "memory_stage": p.memory_stage,
        "traffic": [asdict(calls) for calls in p.traffic],
        "fits": p.fits,
        "warnings": [{"cause": w.cause, "share": w.share} for w in warnings_of(p)],
        "extrapolated": list(p.extrapolated),
        "calibration": p.calibration,
        "notes": list(p.notes),
    }
