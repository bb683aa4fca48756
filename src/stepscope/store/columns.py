"""What the columns of a table and logged figures mean: by the names and units that people give them, or as ``--columns``
states (obeyed or refused, never ignored); and what number a text is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.words import did_you_mean, unknown
from stepscope.records.imported import Stated

_NUMBER = re.compile(r"([-+]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s,:].*)?")
MISSING = ("", "-", "–", "—", "n/a", "na", "none", "null", "?")
"""Texts of a cell whose value is unknown, in small letters."""


def number(text: str) -> tuple[float, str] | None:
    """(value, unit written behind it) of a cell; thousands may have commas. None: no finite number."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match[1].replace(",", ""))
    return (value, (match[2] or "").strip().lower()) if math.isfinite(value) else None


def bare(text: str) -> float | None:
    """Return a finite number without a unit, else None."""
    parsed = number(text)
    return None if parsed is None or parsed[1] else parsed[0]


def plain(name: str) -> str:
    """Turn ``Step Time`` into ``step_time``, by which names are compared."""
    return re.sub(r"[^a-z0-9/%µ]+", "_", name.strip().lower()).strip("_")


def absent_columns(names: Iterable[str], stated: Stated) -> list[str]:
    """The stated columns that are not among ``names``, spelled alike or not."""
    present = {plain(name) for name in names}
    return [name for name in stated.columns if plain(name) not in present]


def no_such_column(column: str, names: Iterable[str], *paths: Path) -> UsageError:
    """Return the error for a stated column that no file has. names: the columns of all ``paths``."""
    there = list(dict.fromkeys(names))
    guess = did_you_mean(column, there)
    where = f"{paths[0]} has" if len(paths) == 1 else f"none of {', '.join(map(str, paths))} has"
    return UsageError(
        f"--columns: {where} {'no' if len(paths) == 1 else 'a'} column {column!r}"
        + (f"; did you mean {guess!r}?" if guess else ""),
        why=f"there are: {', '.join(there)}",
        fix="name a column as the header has it",
    )


_PARTS = ("data", "computation", "forward", "backward", "communication", "optimizer", "other")

NAMES: Mapping[str, str] = {
    "world_size": "world_size gpus n_gpus ngpus ngpu gpu_s num_gpus num_gpu n_gpu gpu_count total_gpus number_of_gpus "
    "no_of_gpus cards num_cards ranks n_ranks nranks num_ranks workers n_workers devices n_devices num_devices processes "
    "n_procs nproc nprocs num_procs num_processes np accelerators n_accelerators",
    "step_ns": "step_time avg_step_time mean_step_time median_step_time time_per_step step step_duration iteration_time "
    "iter_time avg_iter_time time_per_iteration time_per_iter iteration iter batch_time time_per_batch "
    "time_metrics_end_to_end",
    "epoch_ns": "epoch_time avg_epoch_time mean_epoch_time avg_epoch time_per_epoch epoch epoch_duration per_epoch",
    "time_ns": "latency train_time time wall wall_time walltime wall_clock elapsed elapsed_time duration runtime t_par",
    **{f"part_{part}": f"part_{part}" for part in _PARTS},
    "part_data": "part_data time_metrics_data_loading",
    "samples_per_s": "samples_per_s throughput speed training_speed",
    "train_loss": "train_loss training_loss train_loss_epoch final_loss final_train_loss loss lm_loss "
    "loss_metrics_global_avg_loss",
    "validation_loss": "val_loss valid_loss validation_loss eval_loss test_loss val_loss_epoch lm_loss_validation",
    "train_accuracy": "train_acc train_accuracy training_accuracy train_acc_epoch",
    "validation_accuracy": "val_acc val_accuracy valid_acc validation_accuracy eval_acc eval_accuracy val_acc_epoch "
    "test_acc test_accuracy accuracy acc top1 top1_acc",
    "peak_memory": "peak_memory peak_mem max_memory max_mem max_peak_memory memory mem memory_per_gpu peak_memory_per_gpu "
    "gpu_memory gpu_mem max_cuda_memory cuda_memory peak_gpu_memory memory_allocated max_memory_allocated "
    "peak_memory_allocated vram peak_vram memory_max_reserved memory_max_active",
    "micro_batch": "micro_batch micro_batch_size mbs batch_size_per_gpu batch_per_gpu bs_per_gpu batch_size_per_rank "
    "batch_size_per_device per_gpu_batch_size per_device_batch_size per_device_train_batch_size local_batch "
    "local_batch_size",
    "global_batch": "global_batch global_batch_size gbs effective_batch effective_batch_size total_batch_size",
    "batch_size": "batch_size batch bs train_batch_size",
    "accumulation": "accumulation grad_accum grad_accum_steps gradient_accumulation gradient_accumulation_steps "
    "accumulation_steps accumulate_grad_batches",
    "sequence_length": "sequence_length seq_length seq_len context_length context max_seq_len",
    "precision": "precision compute_dtype data_type dtype mixed_precision",
    "strategy": "strategy mode method wrapper parallelism parallel_strategy distributed_strategy",
    "model": "model model_name arch architecture network",
    "dataset": "dataset dataset_name data",
    "dataset_size": "dataset_size num_train_samples train_samples n_train n_samples num_samples",
    "hardware": "hardware gpu_name gpu_model gpu_type device_name gpu accelerator machine cluster system",
    "backend": "backend",
    "device": "device",
    "parameters": "parameters num_parameters n_parameters params num_params n_params model_params",
    "steps": "steps num_steps n_steps iters iterations num_iters",
    "status": "status state",
    "run": "run run_name run_id name experiment_name job_id",
    "epoch": "epoch",
    "step": "step global_step current_steps iteration iter",
    "op": "op operation collective coll",
    "size": "size_bytes bytes size message_size msg_size payload size_per_rank",
    "bandwidth": "bandwidth bw busbw algbw bus_bw alg_bw bus_bandwidth throughput_bandwidth",
}
"""Role -> names, the first that a table has counts. A name may have its unit at its end or in brackets."""

REPEATS = (
    "repeat", "repeats", "repetition", "repetitions", "rep", "trial", "trials", "replicate", "replicates", "repeat_id",
    "trial_id", "repeat_index", "trial_index", "repeat_results", "trial_results",
)  # fmt: skip
"""Columns, and lists in JSON documents, that number the samples of one and the same run."""

_ROLE_OF: Mapping[str, tuple[str, ...]] = {
    name: tuple(role for role, names in NAMES.items() if name in names.split())
    for name in {name for names in NAMES.values() for name in names.split()}
}

TIMES = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "msec": 1e6, "millis": 1e6, "s": 1e9, "sec": 1e9, "secs": 1e9,
    "second": 1e9, "seconds": 1e9, "min": 60e9, "mins": 60e9, "minutes": 60e9, "h": 3600e9, "hours": 3600e9,
}  # fmt: skip
SIZES = {
    "b": 1.0, "bytes": 1.0, "kb": 2.0**10, "kib": 2.0**10, "mb": 2.0**20, "mib": 2.0**20, "gb": 2.0**30, "gib": 2.0**30,
}  # fmt: skip
"""Unit of memory -> bytes; torch and nvidia-smi print MiB and GiB and call them MB and GB."""
FIGURES = ("step_ns", "steps_per_s", "samples_per_s", "epoch_ns", "peak_memory")
"""Roles that make a table worth reading."""
CONFIGURED = ("world_size", "strategy", "micro_batch", "global_batch", "batch_size", "epoch")
"""Roles that only a run has, not a device or a model."""
RESULTS = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy")
KEYS = (
    "world_size",
    "strategy",
    "model",
    "hardware",
    "run",
    "micro_batch",
    "global_batch",
    "batch_size",
    "epoch",
    "op",
)
"""Roles that tell what a row is of."""
COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9}
UNITS: Mapping[str, Mapping[str, float | None]] = {
    **{role: {"": None, **TIMES} for role in NAMES if role.endswith("_ns") or role.startswith("part_")},
    "epoch_ns": {"": TIMES["s"], **TIMES},
    "peak_memory": {"": None, **SIZES},
    "size": {"": None, **SIZES},
    "samples_per_s": {"": None, "tps": None},
    "parameters": {"": 1.0, **COUNTS},
    "bandwidth": dict.fromkeys(("", "gbps", "gb/s", "gb_s", "gbit/s"), 1.0),
    **{role: {"": 1.0, "%": 0.01, "pct": 0.01, "percent": 0.01} for role in NAMES if role.endswith("accuracy")},
}
"""Role -> unit -> scale to base units; None: without one the figure may be anything. Other roles have no unit."""
_ITEMS = {
    "samples": "samples", "sample": "samples", "examples": "samples", "sequences": "sequences", "seqs": "sequences",
    "sentences": "sequences", "images": "images", "image": "images", "imgs": "images", "img": "images",
    "tokens": "tokens", "token": "tokens", "toks": "tokens", "tok": "tokens", "words": "tokens", "items": "items",
}  # fmt: skip
_RANK = "(?:gpu|rank|device|chip|accelerator|worker|process)"
_RATE = re.compile(
    rf"(?:^|_)({'|'.join(_ITEMS)})(?:_?(?:per|/)_?{_RANK})?_?(?:per|/)_?(?:s|sec|secs|second|seconds)"
    rf"(?:_?(?:per|/)_?{_RANK})?$"
)
_PER_RANK = re.compile(rf"(?:(?:^|_)per_?|/_?){_RANK}(?:$|_|/)")
_NOT_TRAINING = re.compile(
    r"(?:^|[_/])(?:eval|evaluation|val|valid|validation|test|testing|inference|infer|predict|prediction|generation|decode|"
    r"prefill)(?:$|[_/])"
)
"""Words in the names of rates of another loop than the training's: ``eval_samples_per_second``."""
_STEP_RATE = re.compile(r"(?:^|_)(?:steps|step|it|its|iter|iters|iterations|batches)_?(?:per|/)_?(?:s|sec|second)$")
_STEP_TIME = re.compile(r"(?:^|_)(s|sec|secs|seconds|ms)_?(?:per|/)_?(?:step|it|iter|iteration|batch)$")
_BRACKETS = re.compile(r"^(.*\S)\s*[(\[]([^()\[\]]*)[)\]]\s*$")
_GPU_COLUMN = re.compile(r"(?:^|_)\d+_?x?_?(?:gpus?|ranks?|workers?|devices?)$")
_PARENTS = ("train", "training", "perf", "performance", "metrics", "throughput", "charts", "time", "speed")
"""Groups whose name says nothing of what a figure is: ``perf/tokens_per_s`` is ``tokens_per_s``."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """role: see ``NAMES``, or ``steps_per_s``. scale: to base units; None: the name has no unit and its role needs one.

    item: what a rate counts. per_rank: a rate of one rank.
    """

    role: str
    scale: float | None = 1.0
    item: str | None = None
    per_rank: bool = False
    unit: str = ""


def spellings(name: str) -> list[str]:
    """List how a figure that a logger put into a group may be called: ``eval/loss`` is ``eval_loss``."""
    parent, _, last = name.rpartition("/")
    if last.lower() in TIMES:  # it/s
        return [name]
    spellings = [name, name.replace("/", "_")]
    if parent:
        spellings.append(f"{last}_{parent}".replace("/", "_"))
        spellings += [last] if parent.rpartition("/")[2].lower() in _PARENTS else []
    return spellings


def meanings_of(name: str) -> tuple[Meaning, ...]:
    """Return what a column's name can mean, the likeliest first; empty: not known."""
    text = name.strip().lower()
    bracket = _BRACKETS.match(text)
    base, unit = (plain(bracket[1]), plain(bracket[2])) if bracket else (plain(text), "")
    if rate := _rate_meaning(unit) or _rate_meaning(base):
        whole = f"{base}_{unit}"
        of_rank = rate.role == "samples_per_s" and _PER_RANK.search(whole) is not None
        return () if _NOT_TRAINING.search(whole) else (replace(rate, per_rank=of_rank),)
    meanings = list(_meanings_in_unit(base, unit))
    for tail in _unit_tails(base) if not unit else ():
        meanings += _meanings_in_unit(base.removesuffix(f"_{tail}"), tail)
    return tuple(meanings)


def _unit_tails(base: str) -> Iterable[str]:
    """Yield what may be a unit at the end of a name: ``ms`` of ``step_ms``, ``gb_s`` of ``busbw_gb_s``."""
    words = base.split("_")
    return ("_".join(words[-count:]) for count in (1, 2) if len(words) > count)


def _meanings_in_unit(base: str, unit: str) -> Iterable[Meaning]:
    for role in _ROLE_OF.get(base, ()):
        units = UNITS.get(role, {"": 1.0})
        if unit in units:
            own = 1.0 if base == "bytes" else None if base == "epoch" and role == "epoch_ns" else units[unit]
            yield Meaning(role, units[unit] if unit else own, unit=unit)


def _rate_meaning(text: str) -> Meaning | None:
    """Return what a name of a rate, or of a step's time, means; None: it is neither."""
    if match := _RATE.search(text):
        return Meaning("samples_per_s", item=_ITEMS[match[1]])
    if _STEP_RATE.search(text):
        return Meaning("steps_per_s")
    if match := _STEP_TIME.search(text):
        return Meaning("step_ns", TIMES[match[1]], unit=match[1])
    return None


@dataclass(frozen=True, slots=True)
class Columns:
    """names: the header. by_role: role -> (index, meaning). unclear: index -> why a column that looks like a figure is not
    read. others: indices without a meaning.
    """

    names: tuple[str, ...]
    by_role: Mapping[str, tuple[int, Meaning]]
    unclear: Mapping[int, str]
    others: tuple[int, ...]

    def has(self, *roles: str) -> bool:
        return any(role in self.by_role for role in roles)


def columns_of(names: Sequence[str], stated: Mapping[str, str] | None = None) -> Columns:
    """Find the meaning of every column. stated: column -> the name to read it under, ``-`` to leave it out."""
    wanted = {plain(name): target for name, target in (stated or {}).items()}
    possible: dict[int, tuple[Meaning, ...]] = {}
    for index, name in enumerate(names):
        target = wanted.get(plain(name))
        if target != "-":
            readings = map(meanings_of, spellings(name) if target is None else [target])
            possible[index] = next(filter(None, readings), ())
    per_epoch = any(meaning.role == "epoch" for meanings in possible.values() for meaning in meanings)
    by_role: dict[str, tuple[int, Meaning]] = {}
    for index in sorted(possible, key=lambda i: (plain(names[i]) not in wanted, _role_priority(possible[i], names[i]))):
        for meaning in possible[index]:
            if meaning.role == "time_ns" and meaning.scale is None and per_epoch:
                meaning = replace(meaning, scale=TIMES["s"])
            if meaning.role not in by_role and meaning.scale is not None:
                by_role[meaning.role] = (index, meaning)
                break
    used = {index for index, _ in by_role.values()}
    unclear = {
        index: f"{names[index]}: unit unknown"
        for index, meanings in possible.items()
        if meanings and index not in used and all(meaning.scale is None for meaning in meanings)
    }
    return Columns(tuple(names), by_role, unclear, tuple(i for i in possible if i not in used and i not in unclear))


def _role_priority(meanings: Sequence[Meaning], name: str) -> int:
    """Return how early a name stands among those of its role."""
    if not meanings:
        return 0
    names = NAMES.get(meanings[0].role, "").split()
    base = plain(_BRACKETS.sub(r"\1", name.strip().lower()))
    spelled = (base, *(base.removesuffix(f"_{tail}") for tail in _unit_tails(base)))
    return next((names.index(spelling) for spelling in spelled if spelling in names), len(names))


def is_gpu_count(name: str) -> bool:
    """Return whether a column is for one number of ranks, as in a wide table: ``4 GPUs``, ``throughput_4gpu``."""
    return _GPU_COLUMN.search(plain(name)) is not None


_MEANINGS = (
    "step_time_ms",
    "step_time_s",
    "epoch_time_s",
    "tokens_per_s",
    "images_per_s",
    "peak_memory_gib",
    "time_us",
)


def require_meanings(stated: Stated) -> None:
    """Raise UsageError where it is not known what a stated meaning is."""
    for name, meaning in stated.columns.items():
        if meaning != "-" and all(candidate.scale is None for candidate in meanings_of(meaning)):
            first_names = [first for names in NAMES.values() for first in names.split()[:1]]
            raise UsageError(unknown("meaning", meaning, [*first_names, *_MEANINGS]), fix=f"--columns {name}=MEANING")
