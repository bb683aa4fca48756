"""From a device name to its entry, and to its matrix units; a name that is not known is never given a neighbour's peak."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from stepscope.core.errors import Unavailable
from stepscope.core.words import did_you_mean
from stepscope.machine.peaks.accelerators import ACCELERATORS
from stepscope.machine.peaks.rates import Accelerator, normalise

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
    exact = [entry for entry in ACCELERATORS if entry.matches(name) or _names_entry(name, entry)]
    if len(exact) == 1:
        return exact[0]
    if _VGPU.search(name):
        return Unavailable(f"{gpu_name!r} is a virtual GPU: its share of the card's peak is unknown")
    return Unavailable("; ".join(filter(None, _unknown_name_texts(gpu_name, name))))


def why_unknown(typed: str) -> str:
    """Say why a name that somebody typed is no entry, and what was probably meant."""
    entry, (_, hint) = find(typed), _unknown_name_texts(typed, normalise(typed))
    guess = None if hint else spelled_like(typed)
    reason = entry.reason if isinstance(entry, Unavailable) else ""
    return f"{reason}; did you mean {guess!r}?" if guess and guess != typed.lower() else reason


def family(name: str) -> tuple[Accelerator, ...]:
    """Entries whose name begins with the whole word ``name``: the members of "H100" or "RTX 4090"."""
    wanted = _name_words(normalise(name))
    return tuple(entry for entry in ACCELERATORS if wanted and _begins_with(_core_words(entry), wanted))


def spelled_like(name: str) -> str | None:
    """Guess what a typed name was meant to be: a key, or a family such as ``h100``; None: nothing is close.

    Letters that look like digits count as those. For people, never for a device's own name: A101 is not an A100.
    """
    typed = name.strip().lower().translate(_LOOK_ALIKE)
    families = [word for entry in ACCELERATORS for word in _core_words(entry)[:1] if _with_digits([word])]
    return did_you_mean(typed, dict.fromkeys((*families, *(entry.key for entry in ACCELERATORS))))


def _names_entry(name: str, entry: Accelerator) -> bool:
    """Return whether ``name`` is the entry's key or name, with or without family words such as GeForce."""
    if name.lower() == entry.key:
        return True
    return _without_noise(_name_words(name)) == _core_words(entry)


def _unknown_name_texts(asked: str, name: str) -> tuple[str, str]:
    """Return what is wrong with the name, and what may be meant (empty: nobody knows)."""
    members = family(name)
    if len(members) > 1:
        return f"{asked!r} can be {_any_of(members)}: their peaks differ, say which", ""
    problem = f"{asked!r} is not in the accelerator table"
    likeness = {entry.key: _misspelling_likelihood(name, entry) for entry in ACCELERATORS}
    best = max(likeness, key=lambda key: likeness[key])
    if likeness[best] >= CLOSE:
        return problem, f"did you mean {best!r}?"
    near = _near_accelerators(name)
    which = "name, another part" if len(near) == 1 else "names, each another part"
    parts = ", ".join(repr(e.key) for e in near)
    return problem, f"nearest {which} with a peak of its own: {parts}" if near else ""


def _misspelling_likelihood(name: str, entry: Accelerator) -> float:
    """How likely ``name`` is ``entry`` with blanks left out or letters wrong, 0 to 1.

    0 where a word with a number differs ("A101"), or there is a word more or less ("Laptop", "Ti"): that is another
    part, however alike the names look.
    """
    wanted = _without_noise(_name_words(name))
    return max(_words_likeness(wanted, words) for words in (_core_words(entry), _name_words(entry.key)))


def _words_likeness(wanted: list[str], words: list[str]) -> float:
    """Return how alike two lists of words are, 0 to 1; words with digits must be equal."""
    if "".join(wanted) == "".join(words):
        return 1.0
    if len(wanted) != len(words):
        return 0.0
    pairs = [pair for pair in zip(wanted, words, strict=True) if pair[0] != pair[1]]
    return min(0.0 if _with_digits([*pair]) else _similarity(*pair) for pair in pairs)


def _near_accelerators(name: str) -> tuple[Accelerator, ...]:
    """At most four entries: those of the same model number, else those with the most similar names."""
    words = _without_noise(_name_words(name))
    model = next(iter(_with_digits(words)), None)
    siblings = tuple(entry for entry in ACCELERATORS if model in _core_words(entry))
    alike = [
        (
            max(_similarity("".join(words), "".join(other)) for other in (_core_words(entry), _name_words(entry.key))),
            entry,
        )
        for entry in siblings or ACCELERATORS
    ]
    close = [(ratio, entry) for ratio, entry in alike if siblings or ratio >= CLOSE]
    close.sort(key=lambda item: item[0], reverse=True)
    return tuple(entry for _, entry in close[:MAX_NEAR])


def _similarity(a: str, b: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, a, b).ratio()


def _with_digits(words: list[str]) -> list[str]:
    return [word for word in words if any(character.isdigit() for character in word)]


def _name_words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _without_noise(words: list[str]) -> list[str]:
    return [word for word in words if word not in ("tesla", "geforce", "instinct", "gpu")] or words


def _core_words(entry: Accelerator) -> list[str]:
    return _without_noise(_name_words(entry.name))


def _begins_with(words: list[str], wanted: list[str]) -> bool:
    wanted = _without_noise(wanted)
    return words[: len(wanted)] == wanted


def _any_of(entries: tuple[Accelerator, ...]) -> str:
    names = [repr(entry.key) for entry in entries]
    return f"{', '.join(names[:-1])} or {names[-1]}"


_TF32_NAMES = re.compile(
    r"\b(A(2|10|16|30|40|100|800)|L(4|20|40)S?|H(20|100|200|800)|GH200|GB?(200|300)|B(100|200|300)|RTX (30|40|50)\d\d"
    r"|RTX A\d000|RTX \d000 Ada)\b"
)
"""NVIDIA Ampere and later, as torch and NVML name them: their tensor cores take TF32 (NVIDIA Ampere whitepaper, 2020)."""

_TENSOR_NAMES = re.compile(r"\b(V100S?|TITAN V|T4|RTX 20\d\d|Quadro RTX \d000|TITAN RTX)\b|MI(100|2\d\dX?|3\d\dX?)\b")
"""Volta and Turing, and AMD's parts with matrix cores."""

MATRIX_RATIO = 4
"""FP16 at this many times the FP32 peak or more is done by matrix units: 8 on V100 and MI100, 4 on GeForce 20; 2 on a P100,
whose vector units do both."""

_TF32_KERNELS = re.compile(r"ampere|hopper|blackwell|sm(80|86|89|90|100|120)|cutlass_(80|90|100)|nvjet", re.IGNORECASE)
_TENSOR_KERNELS = re.compile(r"volta|turing|sm7\d|cutlass_7\d|_MI\d+x\d+", re.IGNORECASE)


def has_tf32(device_name: str | None, kernels: Iterable[str]) -> bool | None:
    """Whether FP32 products may run on its tensor cores as TF32; None where nothing tells. AMD parts: False.

    cuBLAS names kernels after the oldest GPU that they are made for: ``ampere_sgemm`` proves TF32, ``volta_sgemm`` nothing.
    """
    if device_name is not None:
        entry = find(device_name)
        if not isinstance(entry, Unavailable):
            return entry.vendor == "NVIDIA" and not isinstance(entry.peak("tf32"), Unavailable)
        if _TF32_NAMES.search(device_name):
            return True
        if _TENSOR_NAMES.search(device_name):
            return False
    return True if any(_TF32_KERNELS.search(name) for name in kernels) else None


def has_matrix_units(device_name: str | None, kernels: Iterable[str]) -> bool | None:
    """Whether it has tensor cores (AMD: matrix cores); None where nothing tells."""
    if device_name is not None:
        entry = find(device_name)
        if not isinstance(entry, Unavailable):
            half = entry.peak_flops_per_s.get("fp16", 0.0)
            return "tf32" in entry.peak_flops_per_s or half >= MATRIX_RATIO * entry.peak_flops_per_s["fp32"]
        if _TF32_NAMES.search(device_name) or _TENSOR_NAMES.search(device_name):
            return True
    seen = any(_TF32_KERNELS.search(name) or _TENSOR_KERNELS.search(name) for name in kernels)
    return True if seen else None


def peak_ratio(device_name: str | None, slow: str, fast: str) -> float | None:
    """Peak of one dtype over another's on this device, such as fp32 over tf32: 0.125 on an A100. None: unknown."""
    if device_name is None:
        return None
    entry = find(device_name)
    if isinstance(entry, Unavailable):
        return None
    low, high = entry.peak(slow), entry.peak(fast)
    return None if isinstance(low, Unavailable) or isinstance(high, Unavailable) else low / high
