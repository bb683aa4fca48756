"""From a device name to its entry; a name that is not known is never given a neighbour's peak."""

from __future__ import annotations

import re
from functools import cache

from stepscope.core.errors import Unavailable
from stepscope.core.words import did_you_mean
from stepscope.machine.peaks import amd, nvidia_datacenter, nvidia_workstation
from stepscope.machine.peaks._common import Accelerator, normalise

ACCELERATORS: tuple[Accelerator, ...] = (
    *nvidia_datacenter.ENTRIES,
    *nvidia_workstation.ENTRIES,
    *amd.ENTRIES,
)

CLOSE = 0.6
"""Least similarity (0 to 1) of two names that is worth a mention."""

MAX_NEAR = 4

_LOOK_ALIKE = str.maketrans("oil", "011")

_SLICE = re.compile(r"\bMIG\s+\d+[cg]\.")
_VGPU = re.compile(r"^GRID\b|-\d+[ABCQ]$|\bvGPU\b", re.IGNORECASE)


@cache
def find(gpu_name: str) -> Accelerator | Unavailable:
    """The accelerator that torch or NVML calls ``gpu_name`` (or whose key or table name it is).

    The whole name must match. Unavailable says why not and what was probably meant: an unknown name, a name that
    leaves several parts open ("H100"), a slice of a GPU, a virtual GPU.
    """
    name = normalise(gpu_name)
    if not name:
        return Unavailable("the device has no name")
    if _SLICE.search(name):
        return Unavailable(f"{gpu_name!r} is a MIG slice: it has a part of the whole GPU's peak")
    exact = [entry for entry in ACCELERATORS if entry.matches(name) or _same(name, entry)]
    if len(exact) == 1:
        return exact[0]
    if _VGPU.search(name):
        return Unavailable(f"{gpu_name!r} is a virtual GPU: its share of the card's peak is unknown")
    return Unavailable(_unknown(gpu_name, name))


def family(name: str) -> tuple[Accelerator, ...]:
    """Entries whose name begins with the whole word ``name``: the members of "H100" or "RTX 4090"."""
    wanted = _words(normalise(name))
    return tuple(entry for entry in ACCELERATORS if wanted and _begins(_core_words(entry), wanted))


def spelled_like(name: str) -> str | None:
    """What a name that somebody typed was probably meant to be: a key, or a family such as ``h100``; None: nothing close.

    Letters that look like digits count as those. For people, never for a device's own name: A101 is not an A100.
    """
    typed = name.strip().lower().translate(_LOOK_ALIKE)
    families = [word for entry in ACCELERATORS for word in _core_words(entry)[:1] if _with_digits([word])]
    return did_you_mean(typed, dict.fromkeys((*families, *(entry.key for entry in ACCELERATORS))))


def _same(name: str, entry: Accelerator) -> bool:
    """The table's key or name, family words such as GeForce left out or not."""
    if name.lower() == entry.key:
        return True
    return _without_noise(_words(name)) == _core_words(entry)


def _unknown(asked: str, name: str) -> str:
    members = family(name)
    if len(members) > 1:
        return f"{asked!r} can be {_any_of(members)}: their peaks differ, say which"
    said = f"{asked!r} is not in the accelerator table"
    likeness = {entry.key: _misspelt(name, entry) for entry in ACCELERATORS}
    best = max(likeness, key=lambda key: likeness[key])
    if likeness[best] >= CLOSE:
        return f"{said}; did you mean {best!r}?"
    near = _near(name)
    if not near:
        return said
    which = "name, another part" if len(near) == 1 else "names, each another part"
    return f"{said}; nearest {which} with a peak of its own: {', '.join(repr(e.key) for e in near)}"


def _misspelt(name: str, entry: Accelerator) -> float:
    """How likely ``name`` is ``entry`` with blanks left out or letters wrong, 0 to 1.

    0 where a word with a number differs ("A101"), or there is a word more or less ("Laptop", "Ti"): that is another
    part, however alike the names look.
    """
    wanted = _without_noise(_words(name))
    return max(_likeness(wanted, words) for words in (_core_words(entry), _words(entry.key)))


def _likeness(wanted: list[str], words: list[str]) -> float:
    if "".join(wanted) == "".join(words):
        return 1.0
    if len(wanted) != len(words):
        return 0.0
    pairs = [pair for pair in zip(wanted, words, strict=True) if pair[0] != pair[1]]
    return min(0.0 if _with_digits([*pair]) else _ratio(*pair) for pair in pairs)


def _near(name: str) -> tuple[Accelerator, ...]:
    """At most four entries: those of the same model number, else those with the most similar names."""
    words = _without_noise(_words(name))
    model = next(iter(_with_digits(words)), None)
    siblings = tuple(entry for entry in ACCELERATORS if model in _core_words(entry))
    alike = [
        (
            max(_ratio("".join(words), "".join(other)) for other in (_core_words(entry), _words(entry.key))),
            entry,
        )
        for entry in siblings or ACCELERATORS
    ]
    close = [(ratio, entry) for ratio, entry in alike if siblings or ratio >= CLOSE]
    close.sort(key=lambda item: item[0], reverse=True)
    return tuple(entry for _, entry in close[:MAX_NEAR])


def _ratio(a: str, b: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, a, b).ratio()


def _with_digits(words: list[str]) -> list[str]:
    return [word for word in words if any(character.isdigit() for character in word)]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _without_noise(words: list[str]) -> list[str]:
    return [word for word in words if word not in ("tesla", "geforce", "instinct", "gpu")] or words


def _core_words(entry: Accelerator) -> list[str]:
    return _without_noise(_words(entry.name))


def _begins(words: list[str], wanted: list[str]) -> bool:
    wanted = _without_noise(wanted)
    return words[: len(wanted)] == wanted


def _any_of(entries: tuple[Accelerator, ...]) -> str:
    names = [repr(entry.key) for entry in entries]
    return f"{', '.join(names[:-1])} or {names[-1]}"
