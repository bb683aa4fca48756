"""``stepscope predict --model`` and ``stepscope plan``: steps of a named model on named GPUs, without any measurement."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.console import log, print_document, say
from stepscope.cli.findings import show_table
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.collectives.machine import find_fabric
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
from stepscope.predict.step.plan import LayoutSearch, plan
from stepscope.predict.step.step import StepPrediction, predict_step
from stepscope.predict.what_if import parse_gpus, parse_what_if
from stepscope.report.render import picture
from stepscope.report.views import predicted_step
from stepscope.store.writer import write_bytes

if TYPE_CHECKING:
    from stepscope.cli.commands.plan import Plan as Options
    from stepscope.cli.commands.predict import Predict
    from stepscope.report.vega import Chart
    from stepscope.results.job_from_traces import TracedModel


_EXAMPLE = "stepscope predict --model llama3-8b --gpu h100-sxm --gpus 8,64,512 --layout zero=3,mbs=2"


def run(options: Predict) -> int:
    """Predict and print; the exit code. Raises StepscopeError."""
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
    """Read ``64=620000`` as {64: 620000.0}. Raises UsageError."""
    speeds: dict[int, float] = {}
    for text in texts:
        parts = re.fullmatch(r"(\d+)=(\d+(?:\.\d+)?(?:e\d+)?)", text.strip().lower())
        if parts is None or not (speed := float(parts[2])):
            raise UsageError(f"--measured {text}", fix="give GPUS=TOKENS_PER_SECOND of the whole job: 64=620000")
        speeds[parse_gpus(parts[1])[0]] = speed
    return speeds


def constants_of(options: Any, shape: ModelShape) -> StepCalibration:
    """Return the constants that come with stepscope, corrected by --calib. Raises StepscopeError."""
    gpu = known_gpu(options.gpu)
    constants = shipped(gpu, shape)
    if options.calib is None:
        return constants
    from stepscope.store.reader import read_calibration

    return calibrated(constants, read_calibration(options.calib), gpu)


def cluster_of(options: Any, gpus: int) -> Cluster:
    """Return the machine that --gpu, --network, ... describe. Raises UsageError with did-you-mean."""
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
        own_factor, other_factor = (shipped(c.gpu, shape).factor for c in (before.cluster, cluster))
        constants = replace(constants, factor=constants.factor * other_factor / own_factor)
    return predict_step(shape, cluster, layout, constants)


def _show(
    options: Predict,
    predictions: Sequence[StepPrediction],
    asked: AskedLayout,
    bend: int | None,
    other: Sequence[StepPrediction],
    ways: dict[int, tuple[Remedy, ...]],
) -> None:
    def table(built: Any) -> None:
        say()
        show_table(built, titled=bool(built.title))

    last = predictions[-1]
    say(predicted_step.verdict(last), "bold")
    if len(predictions) > 1:
        base = base_of(predictions)
        share = format_percent(efficiency(last, base))
        bent = f"knee at {bend} GPUs: beyond it speed per GPU falls below 80%" if bend else "no knee found"
        say(f"efficiency {share} of {base.layout.gpus} GPUs; {bent}")
        table(predicted_step.build_scaling(predictions))
        say()
    for line in predicted_step.bound(last):
        say(line)
    table(predicted_step.build_budget(last))
    if options.memory or not last.fits:
        table(predicted_step.build_memory(last))
    for gpus, way in ways.items():
        if way:
            table(predicted_step.build_remedies(way))
        else:
            say(f"\non {counted(gpus, 'GPU')} no change looked at makes it fit: more GPUs, or GPUs with more memory")
    if other:
        say()
        for before, after in zip(predictions, other, strict=True):
            faster = f"{speedup(after, before):.2f}x the speed"
            say(f"with {' '.join(options.what_if)}: {predicted_step.verdict(after)}; {faster}", "bold")
        table(predicted_step.build_scaling(other))
    say()
    for reason in last.extrapolated:
        say(f"! extrapolated: {reason}", "yellow")
    for warned in warnings_of(last):
        say(f"! {warned}", "yellow")
    notes = dict.fromkeys((*asked.assumed.values(), *(note for p in (*predictions, *other) for note in p.notes)))
    for note in (*notes, f"constants: {last.calibration}"):
        say(f"! {note}", "yellow")


def _draw(
    options: Predict, predictions: Sequence[StepPrediction], bend: int | None, measured: dict[int, float]
) -> None:

    assert options.chart is not None
    if len(predictions) < 2:
        raise UsageError("--chart needs several numbers of GPUs", fix="--gpus 8,64,512")
    curve = predicted_step.ScaleCurve(
        title=f"{predictions[0].model.name} on {predictions[0].cluster.gpu.name}",
        unit="tokens/s",
        points=tuple(
            predicted_step.ScalePoint(
                gpus=p.layout.gpus, value=p.tokens_per_s, low=p.low_tokens_per_s, high=p.high_tokens_per_s
            )
            for p in predictions
        )
        + tuple(predicted_step.ScalePoint(gpus=n, value=speed, measured=True) for n, speed in measured.items()),
        knee=bend,
    )
    write_chart(options.chart, predicted_step.predicted_scaling_chart(curve))


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
        "assumed": list(asked.assumed.values()),
        "predictions": [as_json(p) for p in predictions],
        "what_if": [as_json(p) for p in other],
        "remedies": {
            str(gpus): [{"change": r.what, "slower": r.slower, **as_json(r.prediction)} for r in way]
            for gpus, way in ways.items()
        },
    }


def as_json(p: StepPrediction) -> dict[str, Any]:
    """Return the prediction in base units: seconds, bytes."""
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


def write_chart(file: Path, chart: Chart) -> None:
    """Draw ``chart``. Raises UsageError for another kind of file, WriteError."""
    formats = [name for name in picture.FORMATS if name == file.suffix.removeprefix(".").lower()]
    if not formats:
        ends = ", ".join(f".{name}" for name in picture.FORMATS)
        raise UsageError(f"--chart {file} is not a picture", fix=f"end it with {ends}")
    work = json.dumps(chart.spec), chart.title, chart.caption, (formats[0],)
    write_bytes(file, picture.pictures(work)[1])
    log(f"wrote {file}")


_EXAMPLE_of_plan_run = "stepscope plan --model llama3-8b --gpu h100-sxm --gpus 64 --layout gbs=512,seq=8192"
USUAL_TOKENS = 4 << 20
"""Tokens of a step, where no batch is given."""


def run_plan(options: Options) -> int:
    """Search and print; the exit code: 0 also where nothing fits, which is an answer. Raises StepscopeError."""
    job = options.from_ or options.run
    if job is not None and (options.model is not None or (options.from_ is not None and options.run is not None)):
        raise UsageError("a plan is for one model, and several are named", fix="give one of --model, --from and RUN")
    traced = None if job is None else _model_of_job(job)
    for name in ("model", "gpu", "gpus"):
        if getattr(options, name) is None and not (name == "model" and traced is not None):
            raise UsageError(
                f"--{name} is missing",
                why=None if traced is None else f"{_dimensions(traced)}; which GPUs it is planned for is not in them",
                fix=_EXAMPLE_of_plan_run if job is None else f"stepscope plan --from {job} --gpu h100-sxm --gpus 64",
            )
    counts = parse_gpus(str(options.gpus))
    if len(counts) > 1:
        raise UsageError(f"--gpus {options.gpus}: one number here", why="a plan is for one number of GPUs")
    model = model_of(str(options.model)) if traced is None else traced.shape
    asked = parse_layout(options.layout, model, seq_len=None if traced is None else traced.sequence)
    if "acc" in asked.given:
        raise UsageError("--layout acc is what a plan finds", fix="give the global batch: gbs=512")
    base, notes = asked.layout, [text for key, text in asked.assumed.items() if key == "seq"]
    if traced is not None:
        notes.append(f"{_dimensions(traced)}; sequences of {base.seq_len}")
    if asked.acc is not None:
        base = replace(base, global_batch=_usual_batch(base.seq_len, counts[0]))
        notes.append(f"gbs not given: {base.global_batch} sequences, {base.tokens_per_step:,} tokens per step")
    gpu = known_gpu(str(options.gpu))
    if options.matrix is not None:
        from stepscope.predict.step.plan import require_measurable

        require_measurable(model, base)
    search = plan(model, cluster_of(options, counts[0]), base, asked.given, constants_of(options, model))
    if options.matrix is not None and search.best:
        from stepscope.predict.step.plan import matrix_yaml
        from stepscope.store.writer import write_bytes

        others = [a.prediction for a in search.alternatives if a.prediction is not None]
        text = matrix_yaml(model, [p.layout for p in (*search.best, *others)])
        write_bytes(options.matrix, text.encode())
        log(f"wrote {options.matrix}")
    if options.json:
        print_document(_document_of_plan_run(search, notes))
    else:
        _show_of_plan_run(f"{model.name} on {counts[0]} x {gpu.name}", search, notes)
    return 0


def _model_of_job(path: Path) -> TracedModel:
    """Return the model of the first rank's trace. Raises UsageError with what its traces do not show."""
    from stepscope.api.traces import traces_of
    from stepscope.results.job_from_traces import model_of_calls, recorded_parameters
    from stepscope.store.importer import require_there
    from stepscope.traces.load import load_file, trace_files
    from stepscope.traces.operators import layer_calls

    require_there(path)
    (folder,) = traces_of(str(path), None, log)
    files, _ = trace_files([folder])
    trace = load_file(files[0])
    facts = trace.meta.stepscope.get("model")
    name = path.resolve().name
    model = model_of_calls(
        layer_calls(trace.events), recorded_parameters(facts if isinstance(facts, dict) else {}), name=name
    )
    if isinstance(model, Unavailable):
        raise UsageError(
            f"{path}: the dimensions of its model are unknown, and a plan needs them",
            why=model.reason,
            fix=f"write them into a file: stepscope plan --model MODEL.yaml; {path} on more GPUs as it is: "
            f"stepscope predict --from {path}",
        )
    return model


def _dimensions(traced: TracedModel) -> str:
    shape = traced.shape
    return (
        f"of the traces: {shape.layers} layers of {shape.hidden}, {shape.heads} heads, MLP {shape.ffn}, vocabulary "
        f"{shape.vocab}; {traced.parameters:,} parameters"
    )


def _usual_batch(seq_len: int, gpus: int) -> int:
    """Return the power of two of sequences that comes to :data:`USUAL_TOKENS`, or one a GPU."""
    batch = 1
    while batch * seq_len < USUAL_TOKENS or batch < gpus:
        batch *= 2
    return batch


def _show_of_plan_run(what: str, search: LayoutSearch, notes: list[str]) -> None:
    looked = f"{counted(search.priced, 'layout')} priced, {counted(search.dropped, 'family')} dropped unpriced"
    if not search.best:
        say(f"{what}: no layout fits; {looked}", "bold")
        say("more GPUs, GPUs with more memory, or cp above 1 for long sequences")
        return
    best = search.best[0]
    say(f"best layout: {layout_text(best.layout)}", "bold")
    say(predicted_step.verdict(best))
    for line in predicted_step.bound(best):
        say(line)
    say()
    show_table(predicted_step.build_plan(search))
    if search.alternatives:
        say("\nWhy not the obvious ones", "bold")
        show_table(predicted_step.build_alternatives(search))
    say()
    for warned in warnings_of(best):
        say(f"! {warned}", "yellow")
    for note in (*notes, *best.notes, f"constants: {best.calibration}", looked):
        say(f"! {note}", "yellow")


def _document_of_plan_run(search: LayoutSearch, notes: list[str]) -> dict[str, Any]:
    from stepscope.records.codec import headed

    return {
        **headed("layout_plan/1"),
        "best": [as_json(p) for p in search.best],
        "alternatives": [
            {"name": a.name, "why": a.why, "prediction": None if a.prediction is None else as_json(a.prediction)}
            for a in search.alternatives
        ],
        "priced": search.priced,
        "dropped": search.dropped,
        "notes": notes,
    }
