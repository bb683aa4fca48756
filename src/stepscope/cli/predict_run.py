"""``stepscope predict --collective`` and ``--buckets``: check what was asked, predict, print."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stepscope.cli.command import require_only
from stepscope.cli.console import log, out, print_document, say
from stepscope.cli.findings import show_facts, show_table
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.units import format_bandwidth, format_bytes_binary, format_duration, parse_size_bytes, parse_sizes
from stepscope.core.words import counted
from stepscope.machine.collect import collect
from stepscope.predict.calibrated import FitWanted, machine_warnings, time_of
from stepscope.predict.calibration import machine_of
from stepscope.predict.collectives.choose import dtype_name, known_gpu, known_op, predict_collective
from stepscope.predict.collectives.costs import Predicted
from stepscope.predict.collectives.machine import Caller
from stepscope.predict.overlap import Transport, measured_transport
from stepscope.predict.run_buckets import DEFAULT, advised, choose_buckets, measured_steps, naive_twin, pick_cell
from stepscope.predict.what_if import parse_gpus
from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.records.codec import headed
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.samples import CellResult
from stepscope.report.views import buckets as bucket_views
from stepscope.report.views.predicted import build_alternatives, build_sizes, interval_text
from stepscope.results.comm_rows import read_comm_rows
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_calibration, read_cell, read_if_there, read_run

if TYPE_CHECKING:
    from stepscope.cli.commands.predict import Predict


_EXAMPLE = "stepscope predict --collective all_reduce --size 25MiB --gpus 64 --gpu h100-sxm"


def run(options: Predict) -> int:
    """Predict and print; returns the exit code. Raises StepscopeError."""
    if options.validate is not None:
        raise UsageError(
            "--validate is not an option of predict any more",
            why="grading predictions against published tables is part of the repository, not of the package",
            fix=f"in a checkout of stepscope: python -m benchmarks.validate {options.validate}",
        )
    if options.buckets is None and options.calib is not None:  # of the machine that was measured: no specification
        require_only(options, "--calib", ("collective", "size", "sizes", "gpus", "network", "dtype", "calib", "json"))
    elif options.buckets is None:
        of_others = {"cell", "layout", "memory", "measured", "what_if", "chart", "scaling", "calibrate"}
        require_only(options, "--collective", vars(options).keys() - of_others)
    if options.buckets is not None:
        if options.calib is None:
            raise UsageError(
                "--buckets needs a calibration of the network",
                why="--calib was not given",
                fix="stepscope comm -o RUN, stepscope calibrate RUN, then --calib RUN/calib.json",
            )
        return predict_buckets(
            options.buckets, calibration=read_calibration(options.calib), cell_id=options.cell, json=options.json
        )
    if options.collective is None:
        raise UsageError(
            "nothing to predict",
            why="neither a command after -- nor --from, --model, --collective or --buckets was given",
            fix=_EXAMPLE,
        )
    op = known_op(options.collective)
    if options.gpus is None:
        raise UsageError("the number of ranks is missing", why="--gpus was not given", fix=_EXAMPLE)
    sizes, gpus = _sizes(options, op), _one(options.gpus)
    if options.calib is not None:
        predictions, what = _calibrated(options, options.calib, op, sizes, gpus)
    else:
        predictions, what = _from_specification(options, op, sizes, gpus)
    if options.json:
        entries = [{"size_bytes": size, **asdict(predicted)} for size, predicted in predictions.items()]
        print_document({**headed("predict/1"), "kind": "collective", "op": op, "gpus": gpus, "predictions": entries})
    elif len(predictions) == 1:
        _show_one(next(iter(predictions.values())), f"{_call_text(op, next(iter(predictions)))} on {what}")
    else:
        table = build_sizes(predictions, title=f"{op} on {what}")
        ends = [(predictions[size].time_ns, size) for size in (min(predictions), max(predictions))]
        times = " to ".join(f"{format_duration(time)} at {format_bytes_binary(size)}" for time, size in ends)
        say(f"{op} on {what}: {times}", "bold")
        show_table(table)
    return 0


def _sizes(options: Predict, op: str) -> tuple[int, ...]:
    if options.size is not None and options.sizes is not None:
        raise UsageError("--size and --sizes both given", fix="give one of them")
    if op == "barrier" and (options.size is not None or options.sizes is not None):
        raise UsageError("a barrier sends no bytes: leave out --size and --sizes")
    if options.sizes is not None:
        return parse_sizes(options.sizes)
    if options.size is not None:
        return (parse_size_bytes(options.size),)
    if op == "barrier":
        return (0,)
    raise UsageError("the size is missing", why="neither --size nor --sizes was given", fix=_EXAMPLE)


def _one(gpus: str) -> int:
    numbers = parse_gpus(gpus)
    if len(numbers) > 1:
        raise UsageError(f"--gpus {gpus}: one number here", why="a collective is predicted for one number of ranks")
    return numbers[0]


def _from_specification(
    options: Predict, op: str, sizes: tuple[int, ...], gpus: int
) -> tuple[dict[int, Predicted], str]:
    if options.gpu is None:
        raise UsageError("the GPU is missing", why="neither --gpu nor --calib was given", fix=_EXAMPLE)
    gpu = known_gpu(options.gpu)
    predictions = {
        size: predict_collective(
            op,
            size,
            n_gpus=gpus,
            gpu=gpu,
            gpus_per_node=options.gpus_per_node,
            inter_node=options.network,
            adapters_per_node=options.adapters,
            dtype=options.dtype or "float32",
            algorithm=options.algorithm,
            sharp=options.sharp,
            caller=cast(Caller, options.caller),
        )
        for size in sizes
    }
    nodes = "" if options.gpus_per_node is None else f", {options.gpus_per_node} a node"
    network = "" if options.network is None else f", {options.network}"
    return predictions, f"{gpus} x {gpu.name}{nodes}{network}"


def _calibrated(
    options: Predict, file: Path, op: str, sizes: tuple[int, ...], gpus: int
) -> tuple[dict[int, Predicted], str]:
    calibration = read_calibration(file)
    for warning in machine_warnings(calibration, machine_of(collect(with_torch=False))):
        log(f"warning: {warning}", "yellow")
    dtype = None if options.dtype is None else dtype_name(options.dtype)
    asked = FitWanted(dtype=dtype, network=options.network)
    predictions = {size: time_of(calibration, op, size, gpus, asked=asked) for size in sizes}
    return predictions, f"{counted(gpus, 'rank')}, from {file}"


def _call_text(op: str, size: int) -> str:
    return op if op == "barrier" else f"{op} of {format_bytes_binary(size)}"


def _show_one(predicted: Predicted, title: str) -> None:
    say(title, "bold")
    protocol = f", {predicted.protocol}" if predicted.protocol else ""
    busbw = predicted.busbw_bytes_per_s
    show_facts(
        [
            ("time", f"{format_duration(predicted.time_ns)}, 80%: {interval_text(predicted)}"),
            *([] if busbw is None else [("busbw", format_bandwidth(busbw))]),
            ("algorithm", f"{predicted.algorithm}{protocol}"),
            ("why", predicted.why),
        ]
    )
    if predicted.alternatives:
        say()
        show_table(build_alternatives(predicted))
    if predicted.notes:
        say()
    for note in predicted.notes:
        say(f"! {note}", "yellow")


def predict_buckets(folder: Path, *, calibration: Calibration, cell_id: str | None, json: bool) -> int:
    """Predict and print; the exit code. Raises StepscopeError."""
    layout = RunLayout(folder)
    record = read_run(folder)
    if record.kind != "bench":
        raise UsageError(f"{folder} is a {record.kind} run", fix="--buckets takes a run folder of `stepscope bench`")
    cells = [read_cell(layout.cell(id_)) for id_ in record.cells]
    cell = pick_cell(cells, cell_id)
    environment = read_if_there(layout.environment, EnvironmentRecord)
    if environment is not None:
        for warning in machine_warnings(calibration, machine_of(environment)):
            log(f"warning: {warning}", "yellow")
    measured = measured_steps(cells, cell)
    choice = choose_buckets(
        cell,
        calibration,
        naive=naive_twin(cells, cell),
        transport=_transport(calibration, cell),
        also_mb=[float(way) for way in measured if way not in ("naive", DEFAULT)],
    )
    advice = advised(choice, measured)
    if json:
        steps = {way: step.value for way, step in measured.items()}
        plain = {"choice": codec.plain(choice), "measured": steps, "advice": codec.plain(advice)}
        print_document({**codec.headed("buckets/1"), **plain})
        return 0
    width = min(out().width, 120)
    for number, line in enumerate(bucket_views.verdict(choice, advice)):
        say(line, "bold" if number == 0 else "")
    show_table(bucket_views.bucket_choice_table(choice, measured, advice), width=width)
    say(f"\n{choice.strategy} with {choice.bucket_cap_mb:g} MiB, as predicted")
    say("\n".join(bucket_views.timeline_picture(choice.chosen.timeline, width=width)))
    return 0


def _transport(calibration: Calibration, cell: CellResult) -> Transport | None:
    """Return slow-downs where the calibrated run measured overlap; None: the backend's lanes, nothing slowed."""
    folder = Path(calibration.run)
    try:
        return measured_transport(cell.spec.backend, read_comm_rows(folder))
    except StepscopeError:
        note = "overlap was not measured (`stepscope comm --overlap`): communication is assumed not to slow computation"
        log(f"note: {note}")
        return None
