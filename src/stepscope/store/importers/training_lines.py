"""Logs of training loops that print a line a step, or a few lines: one table, an entry a framework.

An entry is the pattern of a step's line, with groups as ``store/step_log.py`` has them; ``part_data_s`` and its like are
parts of the step (``records/parts.py``). A framework whose lines do not number their steps has no group ``step``: they are
counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

from stepscope.core.errors import DataError
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.imported import Imported
from stepscope.records.nouns import Measured
from stepscope.store.epoch_table import own_times
from stepscope.store.importer import Candidate
from stepscope.store.log_lines import SUFFIXES, without_prefix
from stepscope.store.step_log import LoggedJob, Printed, read_jobs
from stepscope.store.training_runs import LoggedStep, each_file

_READS = (*SUFFIXES, ".json", ".jsonl")
_N = r"[\d.]{1,20}(?:e-\d\d)?"
_STEP_S, _DATA_S = rf"(?P<step_time_s>{_N})", rf"(?P<part_data_s>{_N})"
_STEP_MS, _DATA_MS = rf"(?P<step_time_ms>{_N}) ?ms", rf"(?P<part_data_ms>{_N}) ?ms"
_EPOCH = r"\[(?P<epoch>\d{1,7})\]\[ *(?P<step>\d{1,9})/(?P<steps>\d{1,9})\]"
_OF_EPOCH = r"(?P<epoch>\d{1,6})(?:/\d{1,6})?"
_OF_STEPS = r"(?P<step>\d{1,9})/(?P<steps>\d{1,9})"
_MEAN_STEP, _MEAN_DATA = rf"\( *(?P<mean_step_s>{_N})", rf"\( *(?P<mean_data_s>{_N})"
_DEEPSPEED = rf"(?:forward|fwd)(?:_microstep)?: (?P<part_forward_ms>{_N}) \| (?:backward|bwd)(?:_microstep)?: {_N} \| "

_OF_GPU = rf"(?P<tokens_per_s_per_gpu>{_N})"
_LOSS = rf"\bloss:? +(?P<loss>{_N})"
_JSON_TIMES = rf"(?=.*\"time\": {_STEP_S})(?=.*\"data_time\": {_DATA_S})"
_RATE = rf"\[[\d:]+<[\d:?]+,\s*(?:(?P<step_time_s>{_N})s/it|(?P<steps_per_s>{_N})it/s)"
_COARSE_S = 9
_CLOCK = {"wall_days": 86_400, "wall_h": 3_600, "wall_min": 60, "wall_s": 1}
_WALL = rf"(?P<train_wall_s>{_N}).*?\bwall\W{{1,4}}(?P<wall_s>{_N})"
_NO_TEST = r"^(?!.*\b(?i:val|valid|validation|test|eval)\b)"
_PART_NAMES = r"\b(?i:data|data[ _](?:loading[ _])?time|load(?:ing)?[ _]time|dataload(?:er|ing)[ _]time)"
_STEP_NAMES = r"\b(?i:(?:batch|iter|iteration|step)[ _]time|(?<![a-z] )time)"

_OTHER_LOOPS = (
    r"[^|]*\b(?i:val|valid|validat\w*|eval\w*|test\w*|sanity|predict\w*|load\w*|map|filter|generat\w*|download\w*|"
    r"fetch\w*|tokeniz\w*)\b"
)
"""What stands before the bars of loops that are no training."""
_SUMMARY, _BAR = "HF summary", "a progress bar"
_LOOP_PARTS = {
    "forward": "fwd|forward", "backward": "bwd|backward", "optimizer": "opt|optim|optimizer",
    "communication": "comm|all[-_ ]?reduce",
}  # fmt: skip

FRAMEWORKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("OpenMMLab", rf"Epoch(?:\(train\))? *{_EPOCH}.*?\btime: {_STEP_S},? +data_time: {_DATA_S}(?:.*?{_LOSS})?", ()),
    ("OpenMMLab", rf"Iter(?:\(train\))? *\[ *(?P<step>\d{{1,9}})/(?P<total_steps>\d{{1,9}})\].*?\btime: {_STEP_S},? +"
     rf"data_time: {_DATA_S}", ()),
    ("OpenMMLab", rf"^{{\"(?:mode\": \"train|(?:base_)?lr)\"{_JSON_TIMES}", ()),
    ("detectron2", rf"^{{(?=.*\"iteration\": (?P<step>\d{{1,9}})){_JSON_TIMES}", ()),
    ("the ImageNet example", rf"Epoch: {_EPOCH}\s+Time +{_STEP_S}(?: {_MEAN_STEP})?.*?\bData +{_DATA_S}(?: {_MEAN_DATA})?"
     r".*?\bLoss +(?P<loss>\S{1,20})", ()),
    ("MetricLogger", rf"Epoch: \[{_OF_EPOCH}\] +\[ *{_OF_STEPS}\] +eta: .*?{_LOSS}.*?\btime: {_STEP_S} +"
     rf"data: {_DATA_S}", ()),
    ("timm", rf"Train: (?P<epoch>\d{{1,6}}) \[ *{_OF_STEPS}.*?\bLoss: +(?P<loss>{_N}).*?\bTime: +{_STEP_S}s"
     rf"(?:.*? {_MEAN_STEP}s)?.*?\bData: +{_DATA_S}(?: {_MEAN_DATA}\))?", ()),
    ("Swin Transformer", rf"Train: \[{_OF_EPOCH}\]\[{_OF_STEPS}\].*?\btime {_STEP_S} .*?{_LOSS}", ()),
    ("detectron2", rf"\biter: (?:\d+/)?(?P<step>\d{{1,9}})  total_loss: (?P<loss>\S{{1,20}}).*?\btime: {_STEP_S}  .*?"
     rf"\bdata_time: {_DATA_S}", ()),
    ("maskrcnn-benchmark", rf"\biter: (?P<step>\d{{1,9}})  .*?{_LOSS}.*?\btime: {_STEP_S} \({_N}\)  data: {_DATA_S}",
     ()),
    ("open_clip", rf"Train Epoch: (?P<epoch>\d+) \[\s*(?P<step>\d{{1,15}})/(?P<steps>\d+) .*?\bData \(t\):? {_DATA_S}"
     rf"\s+Batch \(t\):? {_STEP_S}(?:, (?P<samples_per_s>{_N})/s)?", ()),
    ("fairseq", rf"\bnum_updates\W{{1,4}}(?P<step>\d{{1,9}}).*?\btrain_wall\W{{1,4}}{_WALL}", ()),
    ("fairseq", rf"\bnum_updates=(?P<step>\d{{1,9}}).*?, wall=(?P<wall_s>{_N}), train_wall=(?P<all_training_s>{_N})", ()),
    ("ESPnet", rf"epoch:train:\d+-\d+batch: iter_time={_DATA_S}, forward_time=(?P<part_forward_s>{_N}),.*?"
     rf"backward_time=(?P<part_backward_s>{_N}),.*?optim_step_time=(?P<part_optimizer_s>{_N}),.*?train_time={_STEP_S}", ()),
    ("YOLOX", rf"epoch: {_OF_EPOCH}, iter: {_OF_STEPS}, .*?iter_time: {_STEP_S}s, data_time: {_DATA_S}s", ()),
    ("Paddle", rf"^(?=.*\b(?:reader|data)_cost[:=] ?{_DATA_S})(?=.*\bbatch_cost[:=] ?{_STEP_S})", ()),
    ("Paddle", rf"avg_reader_cost[:=] ?{_DATA_S}.*?avg_batch_cost[:=] ?{_STEP_S}", ()),
    ("SlowFast", rf"\"_type\": \"train_iter.*?\"dt\": {_STEP_S}, \"dt_data\": {_DATA_S}", ()),
    ("nanoGPT", rf"^iter (?P<step>\d{{1,9}}): loss (?P<loss>\S{{1,20}}), time (?P<step_time_ms>{_N})ms"
     rf"(?:, mfu (?P<mfu>-?{_N})%)?",
     (r"nproc[_-]per[_-]node[= ](?P<world_size>\d{1,4})\b",)),
    ("nanochat", rf"^step:? +(?P<step>\d{{1,9}})(?:/(?P<total_steps>\d{{1,9}}))?\b.*?{_LOSS}.*?\bdt: {_STEP_MS}"
     rf"(?:.*?\btok/sec: (?P<tokens_per_s>[\d.,]{{1,20}}))?(?:.*?\bmfu: (?P<mfu>-?{_N}))?", ()),
    ("llm.c", rf"^step +(?P<step>\d{{1,9}})/(?P<total_steps>\d{{1,9}}) \| {_LOSS}.*?\| {_STEP_MS} \|(?: (?P<mfu>-?{_N})% "
     r"bf16 MFU \|)? (?P<tokens_per_s>[\d.,]{1,20}) tok/s", ()),
    ("modded-nanogpt", rf"^step:(?P<step>\d{{1,9}})/(?P<total_steps>\d{{1,9}}) .*?\bstep_avg:{_STEP_MS}", ()),
    ("litgpt", rf"\biter (?P<step>\d{{1,9}})\b.*?\bloss(?: train)?:? (?P<loss>{_N}).*?\btime: {_STEP_MS}", ()),
    ("nanotron", rf"iteration: (?P<step>\d{{1,9}}) / (?P<total_steps>\d{{1,9}}) \|.*?\b(?:elapsed_)?time_per_iteration_ms: "
     rf"(?:(?P<step_time_s>{_N})K|(?P<step_time_ms>{_N}))\b.*?(?:lm_loss: (?P<loss>{_N}))?", ()),
    ("NeMo", rf"\bglobal_step: (?P<step>\d{{1,9}}) \|.*?train_loss: (?P<loss>{_N}) \| train_step_timing in s: {_STEP_S}",
     (r"global_batch_size: (?P<global_batch>\d{1,9})",)),
    ("DeepSpeed", _DEEPSPEED + rf"(?:backward|bwd)_inner(?:_microstep)?: (?P<part_backward_ms>{_N}) \| (?:backward|bwd)"
     rf"_allreduce(?:_microstep)?: (?P<part_communication_ms>{_N}) \| step(?:_microstep)?: (?P<part_optimizer_ms>{_N})", ()),
    ("GPT-NeoX", rf"time \(ms\) \| train_batch: (?P<step_time_ms>{_N}) \|.*?\bforward: (?P<part_forward_ms>{_N}).*?"
     rf"\bcomms: (?P<part_communication_ms>{_N})", ()),
    ("NeMo-RL", rf"Total step time: {_STEP_S}s", (rf"Floating Point Utilization: (?P<stated_mfu>{_N})%",)),
    ("verl", rf"\bstep:(?P<step>\d{{1,9}}) - .*?\btiming_s/step:{_STEP_S}", ()),
    ("Composer", rf"(?<!device/)batches_per_sec: (?P<steps_per_s>{_N})",
     (r"\[batch=\d+/(?P<total_steps>\d{1,9})\]", rf"throughput/device/mfu: (?P<mfu_share>{_N})")),
    ("OLMo", rf"throughput/device/batches_per_second=(?P<steps_per_s>{_N})", ()),
    ("InsightFace", rf"Speed (?P<samples_per_s>{_N}) samples/sec +Loss (?P<loss>{_N}).*?Global Step: *(?P<step>\d{{1,9}})",
     ()),
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
    ("Ultralytics", rf"^ *{_OF_EPOCH} +[\d.]+G .*: *100%.*?\b\d{{1,9}}/(?P<steps>\d{{1,9}})\b.*?\b(?P<epoch_m>\d{{1,4}}):"
     r"(?P<epoch_s>\d\d)(?:<|$)", ()),
    (_BAR, rf"^(?!\s*\d+/\d+\s+[\d.]+G\s|.*\bmAP|{_OTHER_LOOPS}).*?\b\d{{1,3}}% ?(?:\|[^|]*\||\S*) *(?P<step>\d{{1,9}})/"
     rf"(?P<bar_steps>\d{{1,9}}) {_RATE}(?!.*num_updates=)", ()),
    ("Keras", r"\b\d{1,9}/(?P<steps>\d{1,9}) (?:\[=+\] -|(?:━)+) \d+\w* "
     rf"(?:(?P<step_time_ms>{_N})ms|(?P<step_time_s>{_N})s)/step(?:.*?\bloss: (?P<loss>{_N}))?", ()),
    ("apex", rf"Epoch: {_EPOCH}\s+Time +{_STEP_S} .*?\bSpeed +(?P<images_per_s>{_N})", ()),
    ("MXNet", rf"Epoch\[{_OF_EPOCH}\] Batch \[?(?P<step>\d{{1,9}})(?:-\d+)?\]?\s+Speed: (?P<samples_per_s>{_N}) ", ()),
    ("MaxText", rf"completed step: (?P<step>\d{{1,9}}), seconds: {_STEP_S}, .*?Tokens/s/device: {_OF_GPU}", ()),
    ("torchtune", rf"^Step (?P<step>\d{{1,9}}) \| loss:(?P<loss>{_N}) .*?tokens_per_second_per_gpu:{_OF_GPU}", ()),
    ("picotron", rf"\bStep: (?P<step>\d{{1,9}}) +\| Loss: +(?P<loss>{_N}) .*?\bMFU: (?P<mfu>{_N})%", ()),
    (_SUMMARY, rf"(?:train_samples_per_second\W{{1,4}}(?P<samples_per_s>{_N}), ?\W)?"
     rf"\btrain_steps_per_second\W{{1,9}}(?P<steps_per_s>{_N})", ()),
)  # fmt: skip
"""Name, pattern of a step's line, patterns of facts. The first that fits most lines of a file's beginning is its form."""

_ANY, _EPOCHS = "a training loop", "a loop of epochs"
_HMS = r"(?:(?:(?P<epoch_h>\d{1,3}):)?(?P<epoch_m>\d{1,4}):(?P<epoch_s>\d\d(?:\.\d{1,9})?)"
OTHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    *((_ANY, rf"{_NO_TEST}(?=.*(?:{_STEP_NAMES}|\b(?i:total|t_step))\W{{1,3}}{step})"
       rf"(?=.*(?:{_PART_NAMES}|\bt_data)\W{{1,3}}{data})"
       + "".join(rf"(?=.*\b(?i:{names})(?:[ _]time)?\W{{1,3}}(?P<part_{part}_{unit}>{_N}) ?{unit if unit == 'ms' else ''}|)"
                 for part, names in _LOOP_PARTS.items()), ())
      for step, data, unit in ((_STEP_MS, _DATA_MS, "ms"), (rf"{_STEP_S}(?! ?ms|:)", rf"{_DATA_S}(?! ?ms|:)", "s"))),
    *((_ANY, rf"{_NO_TEST}(?=.*\b(?i:step|iter|iteration)\W{{0,3}}(?P<step>\d{{1,9}})\b)"
       rf"(?=.*\b(?i:(?:step|iter|iteration)[ _]time)\W{{1,3}}{step})(?=.*\b(?i:mfu)\W{{1,3}}(?P<mfu>{_N}) ?%|)", ())
      for step in (_STEP_MS, rf"{_STEP_S} ?s\b")),
    (_EPOCHS, r"^(?!.*\b(?i:step|iter|iteration|batch)\b\W{0,3}\d)(?!.*\]\s*\[)(?!.*\d%\|)"
     r".*?\b(?i:epoch)\b\W{0,3}(?P<epoch>\d{1,6})\b"
     rf".*?(?:\b(?i:epoch[ _]time|time(?: taken)?|took|duration|elapsed(?: time)?)\b)\W{{1,3}}{_HMS}|"
     rf"(?:(?P<epoch_min>\d{{1,4}}) ?m(?:in)? ?)?(?P<epoch_sec>{_N}) ?s(?:ec|econds)?\b)", ()),
    (_EPOCHS, rf"(?:\bEpoch time): (?P<epoch_sec>{_N}) s\b", ()),
    (_EPOCHS, r"^ *(?P<epoch>\d{1,6}) +(?:\d+\.\d+ +)+(?P<epoch_m>\d{1,4}):(?P<epoch_s>\d\d) *$", ()),
)  # fmt: skip
"""Lines of any program that name the time of a step and of loading its data, where no framework's form fits."""


_ROUNDED, _UNSURE, _DIFFER = 0.001, 0.1, 0.1
"""Two means of three decimals are so unsure, s; what of a step they may be; shares of data that differ."""
_MEANS = (
    "{run}: times are of all steps, from the means in brackets; of the {count} printed steps alone, data is {share}"
)
_UNITS = {"epoch_h": 3600.0, "epoch_m": 60.0, "epoch_min": 60.0, "epoch_s": 1.0, "epoch_sec": 1.0}
_LEAST = 4
"""Lines from which on a time that only grows is a clock."""


_OF_EPOCHS = (_EPOCHS, "Ultralytics")


@dataclass(kw_only=True)
class _Job(LoggedJob):
    """A job of which the name of the framework is known."""

    framework: str = ""

    def again(self, number: int, *more: str) -> Self:
        return super().again(number, "framework", *more)

    def _step(self, number: int, rank: int | None, step: int, values: dict[str, float]) -> Self | None:
        """Put one logged step into its job; where an epoch or a bar begins, as it is numbered there."""
        if self.points and step < self.last:
            before = self.points[-1].values
            if "bar_steps" in values or values.get("epoch", 0.0) > before.get("epoch", math.inf):
                self.points.append(LoggedStep(step, values=values))
                self.lines.append(number)
                return None
        return super()._step(number, rank, step, values)

    def _number_on(self) -> None:
        """Number steps on over epochs; of bars, take those of the longest loop."""
        most = max((point.values.get("bar_steps", 0.0) for point in self.points), default=0.0)
        kept = [
            (point, line)
            for point, line in zip(self.points, self.lines, strict=True)
            if point.values.pop("bar_steps", 0.0) == most
        ]
        self.points, self.lines = [point for point, _ in kept], [line for _, line in kept]
        printed, before = [point.step for point in self.points], 0
        for point, last in zip(self.points[1:], printed, strict=False):
            before += last if point.step < last else 0
            point.step += before

    def run_fields(self) -> dict[str, Any]:
        """Return the fields of the run; MFU as a fraction where the lines state it."""
        stated, share = self.facts.pop("stated_mfu", None), self.facts.pop("mfu_share", None)
        fields = super().run_fields()
        if stated is not None or share is not None:
            fields["mfu"] = float(share or "0") or float(stated or "0") / 100 or None
        if self.framework in _OF_EPOCHS:
            fields |= {"scaling": "strong", "epoch_estimated": False}
        if self.framework == _SUMMARY:  # one figure for the whole training, not for one step
            fields["step_ns"] = Measured(value=1e9 / self.points[-1].values["steps_per_s"])
        return fields

    def run(self, path: Path, run_id: str, unread: Sequence[str]) -> Imported:
        """Return the run. Raises DataError where a time counts from the start."""
        self._number_on()
        remarks = self._epochs(path) if self.framework in _OF_EPOCHS else []
        if any("wall_s" in point.values for point in self.points):
            self.points = _points_by_difference(self.points)
        times = [point.values.get("step_time_s", 0.0) for point in self.points]
        if self.framework == _ANY and len(times) > _LEAST and all(a < b for a, b in pairwise(times)):
            raise DataError(
                f"{path}: the time grows from line to line",
                why="it may count from the start of the training instead of being the time of a step",
                fix="print the time of a step",
            )
        means = _points_between(self.points, self.length)
        data_s = sum(point.values.get("part_data_s", 0.0) for point in self.points)
        remark = _MEANS.format(run=run_id, count=len(times), share=format_percent(data_s / (sum(times) or 1.0)))
        self.points = means or self.points
        return replace(super().run(path, run_id, unread), remarks=(*remarks, *[remark] * bool(means)))

    def _epochs(self, path: Path) -> list[str]:
        """Make times of epochs of what is printed, and say what they are."""
        times: list[float | None] = []
        for at, point in enumerate(self.points):
            times.append(sum(point.values.pop(name, 0.0) * unit for name, unit in _UNITS.items()) * 1e9)
            point.values.setdefault("epoch", float(at))
        numbers = [round(point.values["epoch"]) for point in self.points]
        own, note = own_times("time", numbers, times) or (times, "")
        for point, time in zip(self.points, own, strict=True):
            if time is not None:
                point.values["epoch_time_ns"] = time
        printed = [time for time in own if time is not None]
        usual, count = format_duration(median(printed[1:] or printed)), counted(len(printed), "printed time")
        return [f"{path.name}: {note or f'an epoch takes {usual}, median of {count}'}"]

    def group(self, path: Path) -> str:
        return self.facts.get("model") or f"{path.stem} ({self.framework})"


def _points_by_difference(points: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Return the steps between logged ones: their clock counts from the start, ``train_wall_s`` from the line before.

    Of a clock of whole seconds, steps are taken together until more than ``_COARSE_S`` have passed.
    """
    steps: list[LoggedStep] = []
    before = points[0]
    for point in points[1:]:
        count, wall_s = point.step - before.step, _clock_s(point) - _clock_s(before)
        if count > 0 and wall_s > (_COARSE_S if "wall_min" in point.values else 0):
            values = {"step_time_s": wall_s / count}
            all_training_s = point.values.get("all_training_s", 0.0) - before.values.get("all_training_s", 0.0)
            if training_s := point.values.get("train_wall_s", all_training_s):
                values["part_computation_s"] = min(training_s, wall_s) / count
            steps.append(LoggedStep(point.step, values=values))
            before = point
    return steps


def _points_between(points: Sequence[LoggedStep], length: int) -> list[LoggedStep]:
    """Return the means of all steps between logged ones, from those since the epoch's start that stand in brackets: where
    they tell another share of data than the printed steps; else nothing."""
    steps, printed_s, printed_data_s = [], 0.0, 0.0
    for before, point in pairwise(points):
        count, done = point.step - before.step, point.step % (length or 1) + 1
        if (
            count <= 0
            or count >= done
            or not before.values.keys() & point.values.keys() >= {"mean_step_s", "mean_data_s"}
        ):
            continue
        step_s, data_s = (
            (done * point.values[name] - (done - count) * before.values[name]) / count
            for name in ("mean_step_s", "mean_data_s")
        )
        if _ROUNDED * done / count < step_s * _UNSURE and data_s < step_s:
            values = {"step_time_s": step_s, "part_data_s": max(0.0, data_s)}
            steps.append(LoggedStep(point.step, values=values))
            printed_s += point.values["step_time_s"]
            printed_data_s += point.values["part_data_s"]
    mean_s, data_s = (sum(point.values[name] for point in steps) for name in ("step_time_s", "part_data_s"))
    differ = steps and abs(data_s / mean_s - printed_data_s / printed_s) > _DIFFER
    return steps if differ else []


def _clock_s(point: LoggedStep) -> float:
    return sum(point.values.get(name, 0.0) * scale for name, scale in _CLOCK.items())


@cache
def _line_forms() -> tuple[tuple[str, Printed], ...]:
    return tuple(
        (name, Printed(step=re.compile(step.encode()), facts=tuple(re.compile(fact.encode()) for fact in facts)))
        for name, step, facts in (*FRAMEWORKS, *OTHERS)
    )


def _form_of(candidate: Candidate) -> tuple[str, Printed] | None:
    """Return the form that fits most lines of the file's beginning; None: none does. Of no named framework: two lines."""
    lines = [without_prefix(piece)[1] for line in candidate.head.split(b"\n") for piece in line.split(b"\r")]
    counts = {
        at: sum(form.step.search(line) is not None for line in lines) for at, (_, form) in enumerate(_line_forms())
    }
    named = {at: count for at, count in counts.items() if count and at < len(FRAMEWORKS)}
    alike = named or {at: count for at, count in counts.items() if count > 1}
    return _line_forms()[max(alike, key=alike.__getitem__)] if alike else None


def _begun_job(line: int, *, name: str, printed: Printed) -> _Job:
    return _Job(line=line, printed=printed, framework=name)


def _read_training_lines(path: Path) -> tuple[Imported, ...]:
    form = _form_of(Candidate(path))
    if form is None:
        raise DataError(f"{path}: no line of a training step")
    return read_jobs(path, partial(_begun_job, name=form[0], printed=form[1]))


IMPORTER = each_file(
    "training_lines",
    recognises=lambda file: file.path.suffix.lower() in _READS and _form_of(file) is not None,
    read=_read_training_lines,
    reads=_READS,
    signed=True,
    title="log of a training loop (OpenMMLab, ImageNet example, MetricLogger, timm, detectron2, YOLOX, open_clip, fairseq, "
    "ESPnet, Paddle, SlowFast, nanoGPT and its like, litgpt, nanotron, NeMo, Composer, DeepSpeed and GPT-NeoX, "
    "progress bars of the Hugging Face Trainer and others; any line that names the time of a step and of its loading)",
    rank=58,
)
