"""``trainer_state.json`` of the Hugging Face Trainer: its log by step, and what it says of the whole training.

The Trainer's own rates are over the whole runtime, evaluation and saving included.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.words import grouped
from stepscope.records.imported import Imported, LeftOut
from stepscope.records.nouns import Measured
from stepscope.store.importer import Candidate, Importer
from stepscope.store.reader import Fields, finite, read_fields
from stepscope.store.training_runs import LoggedStep, Scalars, joined, run_of, slug

FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_KEPT = ("num_train_epochs", "max_steps", "logging_steps", "eval_steps", "save_steps", "total_flos", "best_metric")
_OVER_ALL = re.compile(r"(?:train|eval)_(?:runtime|\w+_per_second)$")
"""Keys of a log entry: rates of an evaluation, or since the start, where ``include_num_input_tokens_seen`` is set."""
_DECIMAL = 0.0006
"""Half of the last digit of the Trainer's rates, and some for how it rounds."""
_WHOLE = (
    "step time and throughput are the Trainer's own figures, over the whole runtime including evaluation and saving"
)


def _recognises_state(candidate: Candidate) -> bool:
    text = candidate.text
    return candidate.path.name == FILE or ('"log_history"' in text and text.lstrip().startswith("{"))


def _read_states(source: Candidate) -> Imported:
    """Read the runs of the Trainer's states, of each folder the latest one. Raises DataError where none can be read."""
    files = [file for file in source.files if file.name == FILE] if source.is_folder else [source.path]
    runs: list[Imported] = []
    left_out: list[LeftOut] = []
    for folder, states in grouped(files, _output_folder).items():
        read = []
        for file in states:
            try:
                read.append((file, read_fields(file)))
            except DataError as error:
                left_out.append(LeftOut(path=str(file), reason=error.line))
        if not read and len(files) == len(states):
            raise DataError(left_out[0].reason, fix="pass the state of another checkpoint")
        if read:
            latest = max(read, key=lambda pair: finite(pair[1].values.get("global_step")) or 0)
            runs.append(_trainer_run(folder, *latest))
    return joined("hf_trainer", source, runs, left_out=left_out)


def _output_folder(file: Path) -> Path:
    """Return the Trainer's output folder: states of its checkpoints are earlier ones of the same run."""
    folder = file.absolute().parent
    return folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder


def _trainer_run(folder: Path, file: Path, state: Fields) -> Imported:
    """Return the run of one state: its logged steps, and the summary at its end."""
    log = state.parts("log_history")
    points: dict[int, LoggedStep] = {}
    summary: dict[str, Any] = {}
    for entry in log:
        step = entry.whole("step")
        values = {key: float(value) for key, value in entry.values.items() if isinstance(value, int | float)}
        runtime_s = values.get("train_runtime")
        if runtime_s is not None and "loss" not in values:
            summary = values
            continue
        logged = {key: value for key, value in values.items() if key != "step" and not _OVER_ALL.match(key)}
        point = points.setdefault(step, LoggedStep(step))
        point.values.update(logged)
        point.wall_s = point.wall_s or runtime_s
    if not points and not summary:
        raise DataError(f"{file}: log_history is empty", why="the training exited before its first logged step")
    done, most = state.maybe(state.whole, "global_step") or 0, state.maybe(state.whole, "max_steps") or 0
    rate = finite(summary.get("train_samples_per_second"))
    finished = done >= most > 0
    from_summary: dict[str, Any] = {} if not summary else {"step_ns": _confirmed_step_ns(summary, most)}
    return run_of(
        Scalars(
            source=str(file),
            run_id=slug(folder.name) or "run",
            group=folder.name,
            points=[points[step] for step in sorted(points)],
            notes=[] if not summary else [_WHOLE],
            fields=from_summary
            | {
                "samples_per_s": Measured(value=rate) if rate else None,
                "micro_batch": state.maybe(state.whole, "train_batch_size") or None,
                "settings": state.plain(*_KEPT),
                "status": "ok" if finished or summary else "interrupted",
                "error": None if finished or summary else f"the state is of step {done} of {most}",
            },
        )
    )


def _confirmed_step_ns(summary: dict[str, Any], steps: int) -> Measured | None:
    """Return the step time from the runtime if that confirms the rate of three decimals (0.003 steps/s: 286 to 400 s)."""
    per_s, runtime_s = finite(summary.get("train_steps_per_second")), finite(summary.get("train_runtime"))
    if not per_s:
        return None
    if runtime_s and steps and abs(steps / runtime_s - per_s) <= _DECIMAL:
        return Measured(value=runtime_s / steps * 1e9)
    return Measured(value=1e9 / per_s)


IMPORTER = Importer(
    title="trainer_state.json of the Hugging Face Trainer",
    marks=("trainer_state.json", "log_history"),
    recognises=_recognises_state,
    read_files=_read_states,
    rank=30,
)
