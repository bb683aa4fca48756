"""What experiments tell of themselves: YAML configurations beside them, and hints in names such as
``exp044_agnews_ddp_4gpu_optimized`` where no configuration says more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.store.reader import count
from stepscope.store.yaml_loader import read_yaml

MAX_BYTES = 1 << 20
MAX_SETTINGS = 300
CONFIG_SUFFIXES = (".yaml", ".yml")
_OUTPUT = ("output_dir", "out_dir", "save_dir", "log_dir")
_TRUE = {"yes", "on", "true"}
_FALSE = {"no", "off", "false"}
_SEPARATORS = re.compile(r"[\\/]+")

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning_rate", "lr"),
    "epochs": ("epochs", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs"),
    "seed": ("seed", "random_seed"),
    "batch_size": ("batch_size", "train_batch_size"),
    "micro_batch": ("per_device_train_batch_size", "micro_batch", "micro_batch_size", "batch_size_per_gpu"),
    "global_batch": ("global_batch", "global_batch_size"),
    "accumulation": (
        "accumulation", "grad_accum_steps", "gradient_accumulation_steps", "accumulation_steps",
        "accumulate_grad_batches",
    ),
    "use_ddp": ("use_ddp", "ddp"),
    "world_size": ("world_size", "num_processes"),
    "backend": ("backend",),
    "precision": ("precision", "mixed_precision", "use_amp", "amp"),
    "dataset": ("dataset", "dataset_name"),
    "dataset_size": ("dataset_size", "num_train_samples", "n_train", "train_samples"),
    "num_workers": ("num_workers",),
    "pin_memory": ("pin_memory",),
    "weight_decay": ("weight_decay",),
}  # fmt: skip
"""Setting, named as in our matrix files -> keys that hold it, in any section."""


@record
class ExperimentConfig:
    """One configuration. name: as shown to the user. leaves: path of keys -> plain value."""

    name: str
    leaves: Mapping[tuple[str, ...], Any]

    def texts(self, keys: Iterable[str]) -> list[str]:
        wanted = set(keys)
        return [value for path, value in self.leaves.items() if path[-1] in wanted and isinstance(value, str)]

    def section(self, name: str) -> dict[str, Any]:
        """Return what stands in a section, by dotted name; a section that is one value has the empty name."""
        return {".".join(path[1:]): value for path, value in self.leaves.items() if path[0] == name}


@record
class ExperimentFacts:
    """What the configuration of an experiment says. settings: canonical ones, then the other leaves by dotted name.

    source: the file; None where no configuration names the experiment: then nothing is known.
    """

    source: str | None
    settings: Mapping[str, Any]
    model: Mapping[str, Any]
    notes: tuple[str, ...]

    def get(self, name: str) -> Any:
        return self.settings.get(name)

    def count(self, name: str) -> int | None:
        """Return a setting that is a whole number of 1 or more, else None."""
        return count(self.settings.get(name))

    def text(self, name: str) -> str | None:
        value = self.settings.get(name)
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool | None:
        value = self.settings.get(name)
        if isinstance(value, str):
            return True if value.lower() in _TRUE else False if value.lower() in _FALSE else None
        return value if isinstance(value, bool) else None


def config_files(path: Path, files: Sequence[Path]) -> tuple[Path, ...]:
    """List YAML files below ``path``, and those of a folder ``configs`` beside it or beside a folder that it lies in.

    The second is for one experiment of a project: ``experiments/exp020`` and ``configs/*.yaml``.
    """
    configs = [file for file in files if file.suffix.lower() in CONFIG_SUFFIXES]
    start = path if path.is_dir() else path.parent
    for folder in (start, *start.absolute().parents[:2]):
        if (folder / "configs").is_dir():
            beside = sorted(f for f in (folder / "configs").iterdir() if f.suffix.lower() in CONFIG_SUFFIXES)
            listed_files = {file.absolute() for file in configs}
            return (*configs, *(f for f in beside if f.is_file() and f.absolute() not in listed_files))
    return tuple(configs)


def read_configs(files: Iterable[Path]) -> tuple[tuple[ExperimentConfig, ...], tuple[str, ...]]:
    """Return (configurations, why some were not read). What YAML readers disagree about is kept as text."""
    configs, notes = [], []
    for file in files:
        try:
            if file.stat().st_size > MAX_BYTES:
                notes.append(f"{file}: not read: too large for a configuration")
                continue
            document = read_yaml(file)
        except (UsageError, OSError) as error:
            notes.append(f"{file}: not read: {getattr(error, 'line', error)}")
            continue
        if isinstance(document.value, dict):
            configs.append(ExperimentConfig(name=str(file), leaves=dict(_config_leaves(document.value, ()))))
            notes += [str(problem) for problem in document.problems if not problem.advice][:3]
    return tuple(configs), tuple(notes)


def facts_of(folder: Path, configs: Sequence[ExperimentConfig], *, unique: bool, alone: bool) -> ExperimentFacts:
    """Return what is configured for the experiment in ``folder``.

    A configuration names it by its output folder (by the last part alone where ``unique``: no other experiment has that
    name), by ``experiment_name``, or by lying in it. alone: no other experiment is looked at, then the only configuration
    beside it counts too where it names no folder.
    """
    naming = [c for c in configs if _ends_as_folder(c, folder, whole=True)]
    naming = naming or [c for c in configs if unique and _ends_as_folder(c, folder, whole=False)]
    naming = naming or [c for c in configs if folder.name in c.texts(("experiment_name",))]
    naming = naming or [c for c in configs if Path(c.name).parent == folder]
    if not naming and alone and len(configs) == 1 and not configs[0].texts(_OUTPUT):
        naming = list(configs)
    if not naming:
        return ExperimentFacts(source=None, settings={}, model={}, notes=())
    notes = []
    leaves = dict(naming[0].leaves)
    for other in naming[1:]:
        differing = [k for k in {**leaves, **other.leaves} if leaves.get(k) != other.leaves.get(k)]
        leaves = {key: value for key, value in leaves.items() if key not in differing}
        if differing:
            names = ", ".join(sorted(".".join(key) for key in differing)[:5])
            notes.append(f"{naming[0].name} and {other.name} both name this run and differ in {names}: left open")
    merged = ExperimentConfig(name=naming[0].name, leaves=leaves)
    settings, unclear = _config_settings(merged)
    return ExperimentFacts(
        source=merged.name, settings=settings, model=merged.section("model"), notes=(*notes, *unclear)
    )


def _config_settings(config: ExperimentConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a configuration, each where all its places agree, and notes on those that do not."""
    settings: dict[str, Any] = {}
    used: set[tuple[str, ...]] = set()
    notes = []
    for name, keys in SETTINGS.items():
        matches = {p: v for p, v in config.leaves.items() if p[-1] in keys and v is not None}
        values = list(matches.values())
        if values and all(value == values[0] for value in values):
            settings[name] = values[0]
            used |= set(matches)
        elif values:
            places = ", ".join(f"{'.'.join(path)} {value}" for path, value in matches.items())
            notes.append(f"{config.name}: {name} has several values and is left open: {places}")
    optimizer = config.section("optimizer")
    kind = next((key for key in ("type", "name", "") if isinstance(optimizer.get(key), str)), None)
    if kind is not None:
        settings["optimizer"] = optimizer[kind]
        used.add(("optimizer", kind) if kind else ("optimizer",))
    for path, value in config.leaves.items():
        if len(settings) >= MAX_SETTINGS:
            break
        if path not in used:
            settings.setdefault(".".join(path), value)
    return settings, notes


def _ends_as_folder(config: ExperimentConfig, folder: Path, *, whole: bool) -> bool:
    """Whether an output folder of the configuration ends as ``folder`` does; ``whole``: with all of its names."""
    for text in config.texts(_OUTPUT):
        parts = [p for p in PurePosixPath(_SEPARATORS.sub("/", text.strip())).parts if p not in (".", "..")]
        wanted = parts if whole else parts[-1:]
        if wanted and list(folder.absolute().parts[-len(wanted) :]) == wanted:
            return True
    return False


def _config_leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, plain value) of a configuration; a list counts as one value."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _config_leaves(entry, (*path, key))
    elif isinstance(value, list):
        yield path, tuple(entry for entry in value if not isinstance(entry, dict | list))
    elif path:
        yield path, value


DATASETS = {
    "imdb": "IMDB",
    "agnews": "AG News",
    "mnist": "MNIST",
    "fashionmnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
    "amazonpolarity": "Amazon Polarity",
    "wikitext": "WikiText",
    "openwebtext": "OpenWebText",
}
"""Names without separators -> as papers write them."""

_KEY = re.compile(r"[A-Za-z]*\d+")
_RANKS = re.compile(r"(\d+)(gpus?|ranks?|procs?|workers?)|(single|one)(gpu)")
_EPOCHS = re.compile(r"(\d+)(?:ep|epochs?)")
_PLACES = re.compile(r"(?:\d*(?:single|multi|one|ddp|gpus?|nodes?|ranks?|procs?|workers?|nccl|gloo)\d*)+")
_SPLIT = re.compile(r"[_\W]+")


@record
class NameFacts:
    """subject: data and variant, without key, ranks and length. dataset: where a known one begins the subject.

    ddp: whether the name says so. epochs: planned. ranks_text: what it says of ranks (``4gpu``): shown, never believed.
    """

    subject: str
    dataset: str | None
    ddp: bool
    epochs: int | None
    ranks_text: str | None


def name_facts(name: str) -> NameFacts:
    """Return what the name of an experiment tells."""
    words = [word for word in _SPLIT.split(name) if word]
    ranks_text = _ranks_text(words)
    kept = words[1:] if len(words) > 1 and _KEY.fullmatch(words[0]) else words
    lengths = [int(match[1]) for word in kept if (match := _EPOCHS.fullmatch(word.lower()))]
    subject = [w for w in kept if not _EPOCHS.fullmatch(w.lower()) and not _PLACES.fullmatch(w.lower())]
    dataset, rest = _dataset_and_rest(subject)
    return NameFacts(
        subject=" ".join([dataset, *rest] if dataset else subject),
        dataset=dataset,
        ddp="ddp" in (word.lower() for word in words),
        epochs=lengths[0] if len(lengths) == 1 and lengths[0] > 0 else None,
        ranks_text=ranks_text,
    )


def readable_dataset(name: str) -> str:
    """Return ``IMDB`` for ``imdb_hash``, ``AG News`` for ``ag_news``; a name that is not known stays as it is."""
    dataset, _ = _dataset_and_rest([word for word in _SPLIT.split(name) if word])
    return dataset or name


def short_ids(names: Sequence[str], places: Mapping[int, str]) -> list[str]:
    """Return one id a run: what stands before the first underscore where that is unique, else the name, else its place."""
    keys = [name.partition("_")[0] or name for name in names]
    key_counts, name_counts = Counter(keys), Counter(names)
    taken = {name for name, key in zip(names, keys, strict=True) if key_counts[key] > 1}

    return [
        (places[at] or name) if name_counts[name] > 1 else name if key_counts[key] > 1 or key in taken else key
        for at, (name, key) in enumerate(zip(names, keys, strict=True))
    ]


def _dataset_and_rest(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return (known data set that the words begin with, the words after it)."""
    for end in range(len(words), 0, -1):
        dataset = DATASETS.get("".join(words[:end]).lower())
        if dataset is not None:
            return dataset, list(words[end:])
    return None, list(words)


def _ranks_text(words: Sequence[str]) -> str | None:
    """Return what a name says of ranks: ``4gpu``, ``single gpu``; None where it says nothing, or several things."""
    single = [word for word in words if _RANKS.fullmatch(word.lower())]
    pairs = [f"{a} {b}" for a, b in pairwise(words) if _RANKS.fullmatch((a + b).lower())]
    several = {*single, *pairs}
    return several.pop() if len(several) == 1 else None
