"""Logs of training loops that print a line a step, or a few lines: one table, an entry a framework.

An entry is the pattern of a step's line, with groups as ``store/step_log.py`` has them; ``part_data_s`` and its like are
parts of the step (``records/parts.py``). A framework whose lines do not number their steps has no group ``step``: they are
counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.importer import Candidate
from stepscope.store.log_lines import SUFFIXES, without_prefix
from stepscope.store.step_log import Job, Printed, read_jobs
from stepscope.store.training_runs import LoggedStep, each_file

_READS = (*SUFFIXES, ".json", ".jsonl")
_N = r"[\d.]{1,20}"
_STEP_S, _DATA_S = rf"(?P<step_time_s>{_N})", rf"(?P<part_data_s>{_N})"
_EPOCH = r"\[(?P<epoch>\d{1,7})\]\[ *(?P<step>\d{1,9})/(?P<steps>\d{1,9})\]"
_DEEPSPEED = rf"forward(?:_microstep)?: (?P<part_forward_ms>{_N}) \| backward(?:_microstep)?: {_N} \| "

_LOSS = rf"\bloss:? +(?P<loss>{_N})"
_JSON_TIMES = rf"(?=.*\"time\": {_STEP_S})(?=.*\"data_time\": {_DATA_S})"
_RATE = rf"\[[\d:]+<[\d:?]+,\s*(?:(?P<step_time_s>{_N})s/it|(?P<steps_per_s>{_N})it/s)"
_COARSE_S = 9
_CLOCK = {"wall_days": 86_400, "wall_h": 3_600, "wall_min": 60, "wall_s": 1}
_WALL = rf"(?P<train_wall_s>{_N}).*?\bwall\W{{1,4}}(?P<wall_s>{_N})"

FRAMEWORKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("OpenMMLab", rf"Epoch(?:\(train\))? *{_EPOCH}.*?\btime: {_STEP_S},? +data_time: {_DATA_S}(?:.*?{_LOSS})?", ()),
    ("OpenMMLab", rf"Iter(?:\(train\))? *\[ *(?P<step>\d{{1,9}})/(?P<total_steps>\d{{1,9}})\].*?\btime: {_STEP_S},? +"
     rf"data_time: {_DATA_S}", ()),
    ("OpenMMLab", rf"^{{\"mode\": \"train\"{_JSON_TIMES}", ()),
    ("detectron2", rf"^{{(?=.*\"iteration\": (?P<step>\d{{1,9}})){_JSON_TIMES}", ()),
    ("the ImageNet example",
     rf"Epoch: {_EPOCH}\s+Time +{_STEP_S}.*?\bData +{_DATA_S}.*?\bLoss +(?P<loss>\S{{1,20}})", ()),
    ("timm", rf"Train: (?P<epoch>\d{{1,6}}) \[ *(?P<step>\d{{1,9}})/(?P<steps>\d{{1,9}}).*?\bLoss: +(?P<loss>{_N}).*?"
     rf"\bTime: +{_STEP_S}s.*?\bData: +{_DATA_S}", ()),
    ("detectron2", rf"\biter: (?P<step>\d{{1,9}})  total_loss: (?P<loss>\S{{1,20}}).*?\btime: {_STEP_S}  .*?"
     rf"\bdata_time: {_DATA_S}", ()),
    ("maskrcnn-benchmark", rf"\biter: (?P<step>\d{{1,9}})  .*?{_LOSS}.*?\btime: {_STEP_S} \({_N}\)  data: {_DATA_S}",
     ()),
    ("open_clip", rf"Train Epoch: \d+ \[\s*(?P<step>\d{{1,15}})/\d+ .*?\bData \(t\): {_DATA_S} Batch \(t\): {_STEP_S}"
     rf"(?:, (?P<samples_per_s>{_N})/s)?", ()),
    ("fairseq", rf"\bnum_updates\W{{1,4}}(?P<step>\d{{1,9}}).*?\btrain_wall\W{{1,4}}{_WALL}", ()),
    ("nanoGPT", rf"^iter (?P<step>\d{{1,9}}): loss (?P<loss>\S{{1,20}}), time (?P<step_time_ms>{_N})ms"
     rf"(?:, mfu (?P<mfu>-?{_N})%)?",
     (r"nproc[_-]per[_-]node[= ](?P<world_size>\d{1,4})\b",)),
    ("nanotron", rf"iteration: (?P<step>\d{{1,9}}) / (?P<total_steps>\d{{1,9}}) \|.*?elapsed_time_per_iteration_ms: "
     rf"(?:(?P<step_time_s>{_N})K|(?P<step_time_ms>{_N}))\b.*?(?:lm_loss: (?P<loss>{_N}))?", ()),
    ("NeMo", rf"\bglobal_step: (?P<step>\d{{1,9}}) \|.*?train_loss: (?P<loss>{_N}) \| train_step_timing in s: {_STEP_S}",
     (r"global_batch_size: (?P<global_batch>\d{1,9})",)),
    ("DeepSpeed", _DEEPSPEED + rf"backward_inner(?:_microstep)?: (?P<part_backward_ms>{_N}) \| backward_allreduce"
     rf"(?:_microstep)?: (?P<part_communication_ms>{_N}) \| step(?:_microstep)?: (?P<part_optimizer_ms>{_N})", ()),
    ("GPT-NeoX", rf"time \(ms\) \| train_batch: (?P<step_time_ms>{_N}) \|.*?\bforward: (?P<part_forward_ms>{_N}).*?"
     rf"\bcomms: (?P<part_communication_ms>{_N})", ()),
    ("NeMo-RL", rf"Total step time: {_STEP_S}s", (rf"Floating Point Utilization: (?P<stated_mfu>{_N})%",)),
    ("Composer", rf"(?<!device/)batches_per_sec: (?P<steps_per_s>{_N})",
     (r"\[batch=\d+/(?P<total_steps>\d{1,9})\]",)),
    ("LLaMA-Factory", r"\"current_steps\": (?P<step>\d{1,9}), \"total_steps\": (?P<total_steps>\d{1,9})"
     rf"(?:.*?\"loss\": (?P<loss>{_N}))?.*?\"elapsed_time\": \"(?:(?P<wall_days>\d{{1,4}}) days?, )?(?P<wall_h>\d{{1,4}}):"
     r"(?P<wall_min>\d\d):(?P<wall_s>\d\d)", ()),
    ("ms-swift", rf"(?:'loss': '?(?P<loss>{_N}).*?)?(?:global_step/max_steps|iteration)\W{{2,5}}(?P<step>\d{{1,9}})/"
     r"(?P<total_steps>\d{1,9})\W.*?elapsed_time\W{2,5}(?:(?P<wall_days>\d{1,4})d )?(?:(?P<wall_h>\d\d?)h )?"
     r"(?:(?P<wall_min>\d\d?)m )?(?P<wall_s>\d\d?)s", ()),
    ("torchtitan", r"^{(?=.*\"step\": (?P<step>\d{1,12}))"
     rf"(?=.*\"time_metrics/end_to_end\(s\)\": {_STEP_S})(?=.*\"time_metrics/data_loading\(s\)\": {_DATA_S})"
     rf"(?=.*\"mfu\(%\)\": (?P<mfu>{_N}))?", ()),
    ("NeMo", rf"\|\s*(?P<step>\d{{1,9}})/(?P<total_steps>\d{{1,9}}) \[[^\]]*?reduced_train_loss=(?P<loss>{_N})[^\]]*?"
     rf"train_step_timing in s={_STEP_S}", ()),
    ("Lightning", rf"^Epoch (?P<epoch>\d{{1,6}}):[^|]*\|[^|]*\|\s*(?P<step>\d{{1,9}})/(?P<steps>\d{{1,9}}) {_RATE}", ()),
    ("the Hugging Face Trainer", rf"\|\s*(?P<step>\d{{1,9}})/(?P<total_steps>\d{{1,9}}) {_RATE}", ()),
)  # fmt: skip
"""Name, pattern of a step's line, patterns of facts. The first that fits most lines of a file's beginning is its form."""


class _Job(Job):
    """A job of which the name of the framework is known."""

    framework: str = ""

    def run_fields(self) -> dict[str, Any]:
        stated = self.facts.pop("stated_mfu", None)
        fields = super().run_fields()
        fields["mfu"] = fields["mfu"] if stated is None else float(stated) / 100
        return fields

    def run(self, path: Path, run_id: str, unread: Sequence[str]) -> Imported:
        if any("wall_s" in point.values for point in self.points):
            self.points = _differences(self.points)
        return super().run(path, run_id, unread)

    def group(self, path: Path) -> str:
        return self.facts.get("model") or f"{path.stem} ({self.framework})"


def _differences(points: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Return the steps between logged ones: their clock counts from the start, ``train_wall_s`` from the line before.

    Of a clock of whole seconds, steps are taken together until more than ``_COARSE_S`` have passed.
    """
    steps: list[LoggedStep] = []
    before = points[0]
    for point in points[1:]:
        count, wall_s = point.step - before.step, _clock_s(point) - _clock_s(before)
        if count > 0 and wall_s > (_COARSE_S if "wall_min" in point.values else 0):
            values = {"step_time_s": wall_s / count}
            if (training_s := point.values.get("train_wall_s")) is not None:
                values["part_computation_s"] = min(training_s, wall_s) / count
            steps.append(LoggedStep(point.step, values=values))
            before = point
    return steps


def _clock_s(point: LoggedStep) -> float:
    return sum(point.values.get(name, 0.0) * scale for name, scale in _CLOCK.items())


@cache
def _forms() -> tuple[tuple[str, Printed], ...]:
    return tuple(
        (name, Printed(step=re.compile(step.encode()), facts=tuple(re.compile(fact.encode()) for fact in facts)))
        for name, step, facts in FRAMEWORKS
    )


def _form_of(candidate: Candidate) -> tuple[str, Printed] | None:
    """Return the form that fits most lines of the file's beginning, one at least; None: none does."""
    lines = [without_prefix(piece)[1] for line in candidate.head.split(b"\n") for piece in line.split(b"\r")]
    counts = {at: sum(form.step.search(line) is not None for line in lines) for at, (_, form) in enumerate(_forms())}
    best = max(counts, key=counts.__getitem__)
    return _forms()[best] if counts[best] else None


def _begin(line: int, *, name: str, printed: Printed) -> _Job:
    job = _Job(line=line, printed=printed)
    job.framework = name
    return job


def _read(path: Path) -> tuple[Imported, ...]:
    form = _form_of(Candidate(path))
    if form is None:
        raise DataError(f"{path}: no line of a training step")
    return read_jobs(path, partial(_begin, name=form[0], printed=form[1]))


IMPORTER = each_file(
    "training_lines",
    recognises=lambda file: file.path.suffix.lower() in _READS and _form_of(file) is not None,
    read=_read,
    reads=_READS,
    signed=True,
    title="log of a training loop (OpenMMLab, ImageNet example, timm, detectron2, open_clip, fairseq, nanoGPT, nanotron, "
    "NeMo, Composer, DeepSpeed's and GPT-NeoX's breakdown, Hugging Face Trainer)",
    rank=58,
)
