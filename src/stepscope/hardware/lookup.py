"""From a device name to its entry; a name that is not known is never given a neighbour's peak."""

from __future__ import annotations

import difflib
import re

from stepscope.core.errors import Unavailable
from stepscope.hardware import amd, nvidia_datacenter, nvidia_workstation
from stepscope.hardware._common import Accelerator, normalise

ACCELERATORS: tuple[Accelerator, ...] = (
    *nvidia_datacenter.ENTRIES,
    *nvidia_workstation.ENTRIES,
    *amd.ENTRIES,
)

_SLICE = re.compile(r"\bMIG\s+\d+[cg]\.")
_VGPU = re.compile(r"^GRID\b|-\d+[ABCQ]$|\bvGPU\b", re.IGNORECASE)


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
        return Unavailable(f"{gpu_name!r} is a virtual GPU: what it gets of the card's peak is not known")
    return Unavailable(_unknown(gpu_name, name))


def family(name: str) -> tuple[Accelerator, ...]:
    """Entries whose name begins with the whole word ``name``: the members of "H100" or "RTX 4090"."""
    wanted = _words(normalise(name))
    return tuple(entry for entry in ACCELERATORS if wanted and _begins(_core_words(entry), wanted))


def _same(name: str, entry: Accelerator) -> bool:
    """The table's key or name, family words such as GeForce left out or not."""
    if name.lower() == entry.key:
        return True
    return _without_noise(_words(name)) == _core_words(entry)


def _unknown(asked: str, name: str) -> str:
    members = family(name)
    if len(members) > 1:
        return f"{asked!r} can be {_any_of(members)}: their peaks differ, say which"
    if members:
        return f"{asked!r} is not in the accelerator table; did you mean {members[0].key!r}?"
    guess = _closest(name)
    hint = f"; did you mean {guess.key!r}? Its peak is not assumed" if guess is not None else ""
    return f"{asked!r} is not in the accelerator table{hint}"


def _closest(name: str) -> Accelerator | None:
    """The entry of the same model number with the most similar name, else of all; None when nothing is close."""
    words = _without_noise(_words(name))
    model = next((word for word in words if any(character.isdigit() for character in word)), None)
    siblings = tuple(entry for entry in ACCELERATORS if model in _core_words(entry))
    candidates = siblings or ACCELERATORS
    by_text = {"".join(_core_words(entry)): entry for entry in candidates}
    by_text |= {"".join(_words(entry.key)): entry for entry in candidates}
    close = difflib.get_close_matches("".join(words), by_text, n=1, cutoff=0.1 if siblings else 0.6)
    return by_text[close[0]] if close else None


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
