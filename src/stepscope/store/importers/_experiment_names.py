"""What the names of experiments tell: ``exp044_agnews_ddp_4gpu_optimized``. Hints, where no configuration says more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """What a name tells."""
    words = [word for word in _SPLIT.split(name) if word]
    ranks_text = _ranks_text(words)
    kept = words[1:] if len(words) > 1 and _KEY.fullmatch(words[0]) else words
    lengths = [int(found[1]) for word in kept if (found := _EPOCHS.fullmatch(word.lower()))]
    subject = [w for w in kept if not _EPOCHS.fullmatch(w.lower()) and not _PLACES.fullmatch(w.lower())]
    dataset, rest = _dataset(subject)
    return NameFacts(
        subject=" ".join([dataset, *rest] if dataset else subject),
        dataset=dataset,
        ddp="ddp" in (word.lower() for word in words),
        epochs=lengths[0] if len(lengths) == 1 and lengths[0] > 0 else None,
        ranks_text=ranks_text,
    )


def readable_dataset(name: str) -> str:
    """``IMDB`` for ``imdb_hash``, ``AG News`` for ``ag_news``; a name that is not known stays as it is."""
    dataset, _ = _dataset([word for word in _SPLIT.split(name) if word])
    return dataset or name


def short_ids(names: Sequence[str], places: Mapping[int, str]) -> list[str]:
    """One id a run: what stands before the first underscore where that is unique, else the name, else its place."""
    keys = [name.partition("_")[0] or name for name in names]
    key_counts, name_counts = Counter(keys), Counter(names)
    taken = {name for name, key in zip(names, keys, strict=True) if key_counts[key] > 1}

    def own(at: int, name: str, key: str) -> str:
        if name_counts[name] > 1:
            return places[at] or name
        return name if key_counts[key] > 1 or key in taken else key

    return [own(at, name, key) for at, (name, key) in enumerate(zip(names, keys, strict=True))]


def _dataset(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """(known data set that the words begin with, the words after it)."""
    for end in range(len(words), 0, -1):
        found = DATASETS.get("".join(words[:end]).lower())
        if found is not None:
            return found, list(words[end:])
    return None, list(words)


def _ranks_text(words: Sequence[str]) -> str | None:
    """``4gpu``, ``single gpu``; of several none."""
    found = [word for word in words if _RANKS.fullmatch(word.lower())]
    pairs = [f"{a} {b}" for a, b in pairwise(words) if _RANKS.fullmatch((a + b).lower())]
    several = {*found, *pairs}
    return several.pop() if len(several) == 1 else None
