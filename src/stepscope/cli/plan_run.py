"""What ``stepscope plan`` does: read what is fixed, search, print, write the matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.blocks import show_table
from stepscope.cli.console import err, out, print_document
from stepscope.cli.predict_step import as_json, cluster_of, constants_of
from stepscope.cli.predict_what_if import parse_gpus
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.words import counted
from stepscope.predict.collectives.choose import known_gpu
from stepscope.predict.step.alternatives import warnings_of
from stepscope.predict.step.layout import layout_text, parse_layout
from stepscope.predict.step.model import model_of
from stepscope.predict.step.plan import LayoutSearch, plan
from stepscope.report.views import planned, predicted_step

if TYPE_CHECKING:
    from stepscope.cli.commands.plan import Plan as Options
    from stepscope.results.traced_model import TracedModel

_EXAMPLE = "stepscope plan --model llama3-8b --gpu h100-sxm --gpus 64 --layout gbs=512,seq=8192"
USUAL_TOKENS = 4 << 20
"""Of a step, where no batch is given."""


def run(options: Options) -> int:
    """Search and print; the exit code: 0 also where nothing fits, which is an answer. Raises StepscopeError."""
    job = options.from_ or options.run
    if job is not None and (options.model is not None or (options.from_ is not None and options.run is not None)):
        raise UsageError("a plan is for one model, and several are named", fix="give one of --model, --from and RUN")
    traced = None if job is None else _model_of_job(job)
    for name in ("model", "gpu", "gpus"):
        if getattr(options, name) is None and not (name == "model" and traced is not None):
            raise UsageError(
                f"--{name} is missing",
                why=None if traced is None else f"{_known(traced)}; which GPUs it is planned for is not in them",
                fix=_EXAMPLE if job is None else f"stepscope plan --from {job} --gpu h100-sxm --gpus 64",
            )
    counts = parse_gpus(str(options.gpus))
    if len(counts) > 1:
        raise UsageError(f"--gpus {options.gpus}: one number here", why="a plan is for one number of GPUs")
    model = model_of(str(options.model)) if traced is None else traced.shape
    asked = parse_layout(_with_sequence(options.layout, traced), model)
    if asked.acc is not None and any(part.startswith("acc") for text in options.layout for part in text.split(",")):
        raise UsageError("--layout acc is what a plan finds", fix="give the global batch: gbs=512")
    base, notes = asked.layout, [note for note in asked.assumed if note.startswith("seq")]
    if traced is not None:
        notes.append(f"{_known(traced)}; sequences of {base.seq_len}")
    if asked.acc is not None:
        base = replace(base, global_batch=_usual_batch(base.seq_len, counts[0]))
        notes.append(f"gbs not given: {base.global_batch} sequences, {base.tokens_per_step:,} tokens per step")
    gpu = known_gpu(str(options.gpu))
    if options.matrix is not None:
        from stepscope.predict.step.plan import require_measurable

        require_measurable(model, base)
    found = plan(model, cluster_of(options, counts[0]), base, asked.given, constants_of(options, model))
    if options.matrix is not None and found.best:
        from stepscope.predict.step.plan import matrix_yaml
        from stepscope.store.writer import write_bytes

        others = [a.prediction for a in found.alternatives if a.prediction is not None]
        text = matrix_yaml(model, [p.layout for p in (*found.best, *others)])
        write_bytes(options.matrix, text.encode())
        err().print(f"wrote {options.matrix}", style="dim", soft_wrap=True)
    if options.json:
        print_document(_document(found, notes))
    else:
        _show(f"{model.name} on {counts[0]} x {gpu.name}", found, notes)
    return 0


def _model_of_job(path: Path) -> TracedModel:
    """Of the first rank's trace. Raises UsageError with what its traces do not show."""
    from stepscope.cli.trace_files import traces_of
    from stepscope.results.traced_model import model_of_calls, recorded_parameters
    from stepscope.store.files import require_there
    from stepscope.traces.layer_calls import layer_calls
    from stepscope.traces.load import load_file, trace_files

    require_there(path)
    (folder,) = traces_of(str(path), None)
    files, _ = trace_files([folder])
    trace = load_file(files[0])
    facts = trace.meta.stepscope.get("model")
    name = path.resolve().name
    found = model_of_calls(
        layer_calls(trace.events), recorded_parameters(facts if isinstance(facts, dict) else {}), name=name
    )
    if isinstance(found, Unavailable):
        raise UsageError(
            f"{path}: the dimensions of its model are unknown, and a plan needs them",
            why=found.reason,
            fix=f"write them into a file: stepscope plan --model MODEL.yaml; {path} on more GPUs as it is: "
            f"stepscope predict --from {path}",
        )
    return found


def _known(traced: TracedModel) -> str:
    shape = traced.shape
    return (
        f"of the traces: {shape.layers} layers of {shape.hidden}, {shape.heads} heads, MLP {shape.ffn}, vocabulary "
        f"{shape.vocab}; {traced.parameters:,} parameters"
    )


def _with_sequence(layout: tuple[str, ...], traced: TracedModel | None) -> tuple[str, ...]:
    """The job's own length of a sequence, where the layout names none."""
    named = any(part.strip().startswith("seq") for text in layout for part in text.split(","))
    return layout if traced is None or named else (*layout, f"seq={traced.sequence}")


def _usual_batch(seq_len: int, gpus: int) -> int:
    """The power of two of sequences that comes to :data:`USUAL_TOKENS`, or one a GPU."""
    batch = 1
    while batch * seq_len < USUAL_TOKENS or batch < gpus:
        batch *= 2
    return batch


def _show(what: str, found: LayoutSearch, notes: list[str]) -> None:
    console = out()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style)

    looked = f"{counted(found.priced, 'layout')} priced, {counted(found.dropped, 'family')} dropped unpriced"
    if not found.best:
        say(f"{what}: no layout fits; {looked}", "bold")
        say("more GPUs, GPUs with more memory, or cp above 1 for long sequences")
        return
    best = found.best[0]
    say(f"best layout: {layout_text(best.layout)}", "bold")
    say(predicted_step.verdict(best))
    for line in predicted_step.bound(best):
        say(line)
    say("")
    show_table(planned.build_plan(found))
    if found.alternatives:
        say("\nWhy not the obvious ones", "bold")
        show_table(planned.build_alternatives(found))
    say("")
    for warned in warnings_of(best):
        say(f"! {warned}", "yellow")
    for note in (*notes, *best.notes, f"constants: {best.calibration}", looked):
        say(f"! {note}", "yellow")


def _document(found: LayoutSearch, notes: list[str]) -> dict[str, Any]:
    from stepscope.records.codec import headed

    return {
        **headed("layout_plan/1"),
        "best": [as_json(p) for p in found.best],
        "alternatives": [
            {"name": a.name, "why": a.why, "prediction": None if a.prediction is None else as_json(a.prediction)}
            for a in found.alternatives
        ],
        "priced": found.priced,
        "dropped": found.dropped,
        "notes": notes,
    }
