"""The sections of a matrix file, checked for shape: which keys are where, not yet whether cells make sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stepscope.core.dataclass import record
from stepscope.core.words import did_you_mean, unknown
from stepscope.matrix.keys import (
    CELL_KEYS,
    GROUP_KEYS,
    LAUNCHER_VARIABLES,
    CommSection,
    LaunchSettings,
    MeasureOptions,
    validate,
)
from stepscope.store.yaml_loader import Document, Path, Problem

S = TypeVar("S", LaunchSettings, MeasureOptions, CommSection)

VERSION = 1
SECTIONS = (
    "version", "name", "description", "base", "axes", "include", "exclude", "equal_buckets", "comm", "launch",
    "measure",
)  # fmt: skip
_BATCH = "global_batch (samples per optimizer step over all ranks) or micro_batch (per rank and micro-step)"
_CALLED_ELSEWHERE = {
    _BATCH: "batch batch_size bs batchsize",
    "global_batch": "global_batch_size gbs train_batch_size total_batch_size effective_batch_size",
    "micro_batch": "micro_batch_size mbs per_device_train_batch_size train_micro_batch_size_per_gpu local_batch_size",
    "lr": "learning_rate base_lr",
    "accumulation": "grad_accum grad_accum_steps gradient_accumulation gradient_accumulation_steps accumulate_grad_batches",
    "world_size": "gpus ngpus n_gpus num_gpus ranks nranks n_ranks num_ranks nproc nprocs n_proc nproc_per_node world "
    "worldsize num_processes processes devices",
    "precision": "dtype amp bf16 fp16 mixed_precision",
    "clip": "grad_clip gradient_clip gradient_clip_val clip_grad max_grad_norm max_norm",
    "optimizer": "optim opt",
    "weight_decay": "wd",
    "lr_warmup": "warmup_steps num_warmup_steps lr_warmup_iters",
    "epochs": "epoch num_epochs n_epochs max_epochs num_train_epochs",
    "steps (a number, or auto)": "step num_steps n_steps max_steps max_iters train_iters iterations iters",
    "num_workers": "workers dataloader_num_workers n_workers",
    "dataset": "data",
    "strategy": "strategies parallel",
    "workload (and model.NAME for its options)": "arch net network_architecture model_name",
    "seed": "random_seed manual_seed",
    "loss": "criterion loss_fn",
    "launch.backend, a section beside base": "backend dist_backend",
    "launch.device, a section beside base": "device accelerator",
    "measure.timeout_s, a section beside base": "timeout",
    "measure.warmup, a section beside base": "warmup",
    "measure.rounds, a section beside base": "rounds repeats repetitions",
}
ELSEWHERE = {name: here for here, names in _CALLED_ELSEWHERE.items() for name in names.split()}
"""What other tools call a cell's keys -> what they are here."""

COMM = "comm"
"""The sweep of collectives beside the cells, and what ``--only`` calls it."""

EQUAL_BUCKETS = ("once", "each")


@record
class GivenValue:
    """One value that the file gives to one (dotted) cell key, and where."""

    key: str
    value: Any
    path: Path


@record
class Axis:
    """One axis: each point gives one key, or several when the axis' values are mappings (``model: [{...}, {...}]``)."""

    key: str
    path: Path
    points: tuple[tuple[GivenValue, ...], ...]


@record
class Include:
    """Cells added to the cross product: its own values over the base, crossed with its own axes if it has any.

    sections: what ``--only`` calls them.
    """

    path: Path
    values: tuple[GivenValue, ...]
    axes: tuple[Axis, ...]
    sections: tuple[str, ...] = ()


@record
class Exclude:
    """Cells taken away: those that have all of these values."""

    path: Path
    values: tuple[GivenValue, ...]


@record
class MatrixFile:
    """What a file says, section by section. broken_keys: cell keys of which some value was rejected for its shape; that they
    are missing is no news."""

    document: Document
    name: str | None
    description: str | None
    base: tuple[GivenValue, ...]
    axes: tuple[Axis, ...]
    include: tuple[Include, ...]
    exclude: tuple[Exclude, ...]
    equal_buckets: str
    comm: CommSection | None
    launch: LaunchSettings
    measure: MeasureOptions
    problems: tuple[Problem, ...]
    broken_keys: frozenset[str]


@dataclass(slots=True)
class _Reading:
    """The document being read, and the mistakes so far."""

    document: Document
    problems: list[Problem] = field(default_factory=list)
    broken_keys: set[str] = field(default_factory=set)

    def complain(self, path: Path, message: str, *, key: str | None = None) -> None:
        """Note a mistake; ``key`` is the cell key that lost its value by it."""
        self.problems.append(self.document.problem(path, message))
        if key is not None:
            self.broken_keys.add(key)


def read_sections(document: Document) -> MatrixFile:
    """Read the sections of ``document``; mistakes are collected in ``problems``, never raised."""
    reading = _Reading(document)
    top = _mapping_value(reading, document.value, (), "a mapping with version, base, axes, ...")
    for key in top:
        if key not in SECTIONS:
            reading.complain((key,), _unknown_section(key))
    _check_version(reading, top)
    return MatrixFile(
        document=document,
        name=_text_value(reading, top, "name"),
        description=_text_value(reading, top, "description"),
        base=_cell_values(reading, top.get("base"), ("base",)),
        axes=_cell_axes(reading, top.get("axes"), ("axes",)),
        include=tuple(_include_item(reading, item, path) for path, item in _section_items(reading, top, "include")),
        exclude=_exclude_items(reading, top),
        equal_buckets=_equal_buckets(reading, top),
        comm=None if top.get(COMM) is None else _settings_section(reading, CommSection, top[COMM], COMM),
        launch=_launch_settings(reading, top.get("launch")),
        measure=_settings_section(reading, MeasureOptions, top.get("measure"), "measure"),
        problems=tuple(reading.problems),
        broken_keys=frozenset(reading.broken_keys),
    )


def _unknown_section(key: str) -> str:
    if key in CELL_KEYS or key in GROUP_KEYS or is_group_key(key):
        return f"a cell's key belongs under base, axes, include or exclude: move it to base.{key}"
    return unknown("section", key, SECTIONS)


def is_group_key(key: str) -> bool:
    """True for ``model.size``, ``strategy_options.flat``, ``env.NCCL_ALGO``: a group, a dot and a name."""
    group, dot, name = key.partition(".")
    return bool(dot and name) and group in GROUP_KEYS


def unknown_cell_key(key: str) -> str:
    """Say what is wrong with a key that no cell has."""
    if (name := key.lower().replace("-", "_")) in ELSEWHERE:
        return f"unknown key {key!r}: stepscope calls it {ELSEWHERE[name]}"
    group, dot, name = key.partition(".")
    if dot:
        return (
            unknown("group of keys", group, GROUP_KEYS) if name else f"{key!r} ends in a dot: name the option after it"
        )
    return unknown("key", key, (*CELL_KEYS, *GROUP_KEYS))


def _check_version(reading: _Reading, top: Mapping[str, Any]) -> None:
    """Complain of a version that is missing or unknown."""
    version = top.get("version")
    if version is None:
        reading.complain((), f"version is missing: write version: {VERSION}")
    elif isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        reading.complain(
            ("version",), f"{version} was written for a newer stepscope (this one reads {VERSION}): upgrade stepscope"
        )
    elif version is not None and (version != VERSION or isinstance(version, (bool, float))):
        reading.complain(("version",), f"expected {VERSION}, found {version!r}")


def _text_value(reading: _Reading, top: Mapping[str, Any], key: str) -> str | None:
    value = top.get(key)
    if value is None or isinstance(value, str):
        return value
    reading.complain((key,), f"expected text, found {value!r}: quote it")
    return None


def _equal_buckets(reading: _Reading, top: Mapping[str, Any]) -> str:
    value = top.get("equal_buckets", "once")
    if value in EQUAL_BUCKETS:
        return str(value)
    reading.complain(("equal_buckets",), f"expected once or each, found {value!r}")
    return "once"


def _mapping_value(reading: _Reading, value: Any, path: Path, expected: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if value is not None:
        reading.complain(path, f"expected {expected}, found a {kind_of(value)}")
    return {}


def kind_of(value: Any) -> str:
    """Return what a YAML value is called in a message."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list) else "mapping"


def _section_items(reading: _Reading, top: Mapping[str, Any], section: str) -> list[tuple[Path, dict[str, Any]]]:
    """Return (path, mapping) of each item of a section; others are complained of."""
    value = top.get(section)
    if value is None:
        return []
    if not isinstance(value, list):
        reading.complain((section,), f"expected a list of mappings, found a {kind_of(value)}")
        return []
    mappings = []
    for index, item in enumerate(value):
        path: Path = (section, index)
        if isinstance(item, dict) and item:
            mappings.append((path, item))
        else:
            reading.complain(path, "expected a mapping with at least one key")
    return mappings


def _cell_values(reading: _Reading, value: Any, path: Path) -> tuple[GivenValue, ...]:
    """Read a mapping of cell keys, groups written nested (``model: {size: base}``) or dotted (``model.size: base``)."""
    values: dict[str, GivenValue] = {}
    for key, item in _mapping_value(reading, value, path, "a mapping of cell keys").items():
        for given in _flat_values(reading, key, item, (*path, key)):
            if given.key in values:
                reading.complain(given.path, f"{given.key} is given twice here, once nested and once dotted")
            elif _is_plain(reading, given):
                values[given.key] = given
    return tuple(values.values())


def _flat_values(reading: _Reading, key: str, value: Any, path: Path) -> list[GivenValue]:
    """Return the values under a key, groups taken apart; unknown keys are complained of."""
    if key in CELL_KEYS or is_group_key(key):
        return [GivenValue(key=key, value=value, path=path)]
    if key in GROUP_KEYS:
        inner = _mapping_value(reading, value, path, f"a mapping of {key}")
        return [GivenValue(key=f"{key}.{name}", value=item, path=(*path, name)) for name, item in inner.items()]
    reading.complain(path, unknown_cell_key(key), key=_meant_key(key))
    return []


def _meant_key(key: str) -> str | None:
    """Return the cell key that an unknown one was probably meant for, so that nobody asks for it a second time."""
    return ELSEWHERE[key].partition(" ")[0] if key in ELSEWHERE else did_you_mean(key, CELL_KEYS)


def _is_plain(reading: _Reading, given: GivenValue) -> bool:
    """Whether the value's shape fits its key: a scalar, or for options also a list."""
    if given.key.startswith("env."):
        return _check_variable(reading, given.key.removeprefix("env."), given.value, given.path)
    if isinstance(given.value, list) and given.key in CELL_KEYS and given.path[0] != "exclude":
        reading.complain(
            given.path, f"one value expected, found a list: to compare several, put it under axes.{given.key}"
        )
        return False
    if isinstance(given.value, dict) and given.key != "mesh":
        reading.complain(given.path, "one value expected, found a mapping", key=given.key)
        return False
    return True


def _check_variable(reading: _Reading, name: str, value: Any, path: Path) -> bool:
    """Whether a variable may be set; complain where not."""
    if name in LAUNCHER_VARIABLES:
        other = "launch.threads_per_rank" if name.endswith("_THREADS") else "world_size"
        reading.complain(path, f"{name} is set by the launcher for each rank: use {other}")
        return False
    if value is None or (isinstance(value, (str, int)) and not isinstance(value, bool)):
        return True
    reading.complain(path, f"an environment variable is text: quote {value!r}")
    return False


def _cell_axes(reading: _Reading, value: Any, path: Path) -> tuple[Axis, ...]:
    """Return the axes, each a key or a group with its points; others are complained of."""
    axes = []
    for key, points in _mapping_value(reading, value, path, "a mapping of cell keys to lists").items():
        axis_path = (*path, key)
        if key not in CELL_KEYS and key not in GROUP_KEYS and not is_group_key(key):
            reading.complain(axis_path, unknown_cell_key(key))
        elif not isinstance(points, list) or not points:
            reading.complain(axis_path, "an axis is a list of at least one value: write [...]", key=key)
        else:
            axes.append(Axis(key=key, path=axis_path, points=_axis_points(reading, key, points, axis_path)))
    return tuple(axes)


def _axis_points(reading: _Reading, key: str, values: list[Any], path: Path) -> tuple[tuple[GivenValue, ...], ...]:
    points = []
    for index, value in enumerate(values):
        point = tuple(g for g in _flat_values(reading, key, value, (*path, index)) if _is_plain(reading, g))
        points.append(point)
    return tuple(points)


def _include_item(reading: _Reading, item: dict[str, Any], path: Path) -> Include:
    """Return one item of include: its own values, and axes."""
    own = {key: value for key, value in item.items() if key not in ("axes", "section")}
    return Include(
        path=path,
        values=_cell_values(reading, own, path),
        axes=_cell_axes(reading, item.get("axes"), (*path, "axes")),
        sections=_section_names(reading, item.get("section"), (*path, "section")),
    )


def _section_names(reading: _Reading, value: Any, path: Path) -> tuple[str, ...]:
    """Return the names that ``section`` gives, one or a list."""
    names = value if isinstance(value, list) else [] if value is None else [value]
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            reading.complain(path, f"a section is named by a word of letters, digits and _, found {name!r}")
        elif name == COMM:
            reading.complain(path, f"{COMM} is the sweep of collectives: name the cells' section otherwise")
    return tuple(name for name in names if isinstance(name, str))


def _exclude_items(reading: _Reading, top: Mapping[str, Any]) -> tuple[Exclude, ...]:
    """Return the items without a mistake: with a value missing, the rest of an item would take away more than was meant."""
    sound = []
    for path, item in _section_items(reading, top, "exclude"):
        before = len(reading.problems)
        values = _cell_values(reading, item, path)
        if len(reading.problems) == before and values:
            sound.append(Exclude(path=path, values=values))
    return tuple(sound)


def _launch_settings(reading: _Reading, value: Any) -> LaunchSettings:
    """Return the section launch; variables that the launcher sets are complained of."""
    section = dict(_mapping_value(reading, value, ("launch",), "a mapping"))
    variables = section.get("env")
    if isinstance(variables, dict):
        section["env"] = {
            name: str(text)
            for name, text in variables.items()
            if _check_variable(reading, name, text, ("launch", "env", name)) and text is not None
        }
    launch = _settings_section(reading, LaunchSettings, section, "launch")
    if launch.device == "cpu" and launch.backend == "nccl":
        reading.complain(("launch", "backend"), "nccl needs GPUs, and launch.device is cpu: write gloo or auto")
    return launch


def _settings_section(reading: _Reading, schema: type[S], value: Any, name: str) -> S:
    """Return a section by its schema; its default where it is wrong, with complaints."""
    values = {k: v for k, v in _mapping_value(reading, value, (name,), "a mapping").items() if v is not None}
    result = validate(schema, values, kind=f"key of {name}")
    if not isinstance(result, tuple):
        return result
    for complaint in result:
        reading.complain((name, complaint.key) if complaint.key else (name,), complaint.message)
    return schema()
