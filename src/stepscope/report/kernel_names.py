"""Kernel names short enough for a table: without argument lists, namespaces and what every name has in common."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

ELLIPSIS = "…"

_NOISE = frozenset(
    """Array array AlignedArray TrivialOffsetCalculator OffsetCalculator LoadWithCast LoadWithoutCast StoreWithCast
    StoreWithoutCast NullType TensorListMetadata TensorListScalarListMetadata FusedOptimizerTensorListMetadata
    """.split()  # noqa: SIM905
)
"""Template arguments that follow from the others."""

_WRAPPERS = frozenset({"gpu_kernel_impl", "gpu_kernel_impl_nocast", "Kernel", "Kernel2", "device_kernel"})
"""Templates that say nothing themselves: their first argument is the kernel."""

_TELLING = {"AUnaryFunctor": -1, "BUnaryFunctor": -1, "BinaryFunctor": -1, "func_wrapper_t": -1, "ReduceOp": 1}
"""Templates of which one argument says what they do, and the place of that argument."""

_ELEMENTWISE = re.compile(r"(\w*elementwise)_kernel")
_SUFFIX = re.compile(r"(?<=\w)(_kernel_cuda|_cuda_kernel|_kernel_impl|_kernel)(?=<|$)")

_TYPE = re.compile(r"[\w ]+")

_ATTEMPTS = 4
"""Rounds of telling alike names apart; each looks at the names that were still alike after the one before."""

_OPEN, _CLOSE = "<({[", ">)}]"
_OPERATOR = re.compile(r"operator\s*(\(\)|<<|>>|->|<=|>=|<|>)")
_PLAIN_NUMBER = re.compile(r"(\(\w+\))?-?\d+[uUlL]*|true|false")


def short_names(names: Iterable[str], *, limit: int = 44) -> dict[str, str]:
    """Return a short form of each name, at most ``limit`` characters, no two alike.

    Where two would be alike, the short form shows the part in which the names differ.
    """
    distinct = list(dict.fromkeys(names))
    shown = {name: _fitted_name(name, limit) for name in distinct}
    for _ in range(_ATTEMPTS):
        alike: dict[str, list[str]] = defaultdict(list)
        for name, short in shown.items():
            alike[short].append(name)
        groups = [group for group in alike.values() if len(group) > 1]
        for group in groups:
            shown |= _told_apart(group, limit)
        if not groups:
            break
    return _numbered_names(shown, limit)


def elided(text: str, limit: int) -> str:
    """Return ``text`` with its middle left out where it is longer than ``limit``."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def plain(name: str) -> str:
    """Return a kernel's name without return type, argument list and namespaces; template arguments that matter stay."""
    base, args = _name_and_arguments(name)
    return _name_with_arguments(base, args)


def _fitted_name(name: str, limit: int) -> str:
    base, args = _name_and_arguments(name)
    for kept in (args, [a for a in args if not _PLAIN_NUMBER.fullmatch(a)]):
        if len(text := _name_with_arguments(base, kept)) <= limit:
            return text
    named = [a for a in args if not _PLAIN_NUMBER.fullmatch(a)]
    if not named:
        return elided(base, limit)
    inside = f"<{', '.join(named)}>"
    if all(_TYPE.fullmatch(a) for a in named):  # plain types tell less than the name before them
        room = limit - len(base) - 3
        return f"{base}<{inside[1 : 1 + room]}{ELLIPSIS}>" if room >= 0 else elided(base, limit)
    room = max(len(base) if len(base) <= limit // 2 else limit // 3, limit - len(inside))
    short = base if len(base) <= room else base[: room - 1] + ELLIPSIS
    return short + "<" + elided(inside[1:-1], limit - len(short) - 2) + ">"


def _told_apart(group: Sequence[str], limit: int) -> dict[str, str]:
    """Return short forms of names whose short forms are alike: their beginning, then from the first difference on."""
    full = {name: plain(name) for name in group}
    if len(set(full.values())) < len(group):
        full = {name: _bare_name(name) for name in group}
    texts = list(full.values())
    start = next((i for i, chars in enumerate(zip(*texts, strict=False)) if len(set(chars)) > 1), min(map(len, texts)))
    while start and texts[0][start - 1].isalnum():
        start -= 1
    shown = {}
    for name, text in full.items():
        room = limit - min(start, limit // 3)
        tail = text[start:] if len(text) - start <= room else text[start : start + room - 1] + ELLIPSIS
        left = limit - len(tail)
        shown[name] = (text[:start] if start <= left else text[: left - 1] + ELLIPSIS) + tail
    return shown


def _bare_name(name: str) -> str:
    return re.sub(r"\b[A-Za-z_]\w*::", "", name.replace("(anonymous namespace)::", "").removeprefix("void "))


def _numbered_names(shown: dict[str, str], limit: int) -> dict[str, str]:
    """Put, as the last resort, ``~2`` behind the second of two that are still alike."""
    used: set[str] = set()
    numbered = {}
    for name, short in shown.items():
        again, free = 1, short
        while free in used:
            again += 1
            mark = f"~{again}"
            free = short[: limit - len(mark)] + mark
        used.add(free)
        numbered[name] = free
    return numbered


def _name_with_arguments(base: str, args: Sequence[str]) -> str:
    return f"{base}<{', '.join(args)}>" if args else base


def _name_and_arguments(name: str) -> tuple[str, list[str]]:
    """Return the function's own name and its template arguments, simplified."""
    text = name.strip().removesuffix(".kd")
    if text.startswith("_ZN"):
        return _mangled_parts(text)
    text = text.replace("(anonymous namespace)::", "").replace("<unnamed>::", "").removeprefix("void ")
    base, args = _simplified_parts(text, depth=0)
    if match := _ELEMENTWISE.fullmatch(base):
        return match[1], [_SUFFIX.sub("", a) for a in args]
    return base, args


def _simplified_parts(text: str, *, depth: int) -> tuple[str, list[str]]:
    text = text.strip()
    pieces = _split_outside(text, "::")
    lambdas = [p for p in pieces if p.startswith(("{lambda", "'lambda"))]
    if lambdas:
        named = [p for p in pieces if p and not p.startswith(("{", "'", "operator"))] or [text]
        owner = next(
            (p for p in named if _first_place(p, "(") > 0 and _matching_bracket(p, p.find("(")) < len(p)), named[-1]
        )
        base, args = _template_parts(owner, depth=depth)
        types = next((t for p in reversed(lambdas) if (t := _lambda_arguments(p))), [])
        if base in _WRAPPERS and args:
            return args[0], []
        return base, list(dict.fromkeys([*args, *(_short_type(t, depth) for t in types)]))
    named = [p for p in pieces if p and not p.startswith("operator")] or [text]
    base, args = _template_parts(named[-1], depth=depth)
    if base in _WRAPPERS and len(args) == 1:
        return args[0], []
    return base, args


def _template_parts(piece: str, *, depth: int) -> tuple[str, list[str]]:
    opened = _first_place(piece, "<(")
    # A space before a parenthesis is no call: "Memcpy DtoD (Device -> Device)".
    base = piece if opened < 0 or piece[opened - 1 : opened] == " " else piece[:opened]
    if opened <= 0 or piece[opened] == "(" or base == piece:
        return base.strip(), []
    inside = piece[opened + 1 : _matching_bracket(piece, opened)]
    given = _split_outside(inside, ",")
    if depth and base in _TELLING and len(given) > 1:
        return _simplified_parts(given[_TELLING[base]], depth=depth)
    args: list[str] = []
    for argument in given:
        short = _short_type(argument, depth)
        if short and short.partition("<")[0] not in _NOISE and (not args or args[-1] != short):
            args.append(short)
    return base.strip(), args


def _short_type(text: str, depth: int) -> str:
    text = text.replace("const", "").strip(" *&")
    if _PLAIN_NUMBER.fullmatch(text):
        return text
    base, args = _simplified_parts(text, depth=depth + 1)
    words = [a for a in args if not _PLAIN_NUMBER.fullmatch(a)]
    if depth >= 1:  # inside an argument only functors go on, their types do not
        words = [w for w in words if "Functor" in w or "Ops" in w] or words[:1]
    return _name_with_arguments(base, words)


def _lambda_arguments(piece: str) -> list[str]:
    """Read ``{lambda(float, float)#1}`` as float, float."""
    opened = piece.find("(")
    return [a for a in _split_outside(piece[opened + 1 : _matching_bracket(piece, opened)], ",") if a.strip()]


def _split_outside(text: str, by: str) -> list[str]:
    """Split ``text`` at every ``by`` outside brackets."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if match := _OPERATOR.match(text, at):
            at = match.end()
            continue
        if text.startswith("->", at):
            at += 2
            continue
        char = text[at]
        depth += (char in _OPEN) - (char in _CLOSE)
        if depth == 0 and text.startswith(by, at):
            parts.append(text[start:at])
            at += len(by)
            start = at
            continue
        at += 1
    return [p.strip() for p in [*parts, text[start:]]]


def _first_place(text: str, chars: str) -> int:
    return min((at for c in chars if (at := text.find(c)) >= 0), default=-1)


def _matching_bracket(text: str, opened: int) -> int:
    """Return the index of the bracket that closes the one at ``opened``; the end of the text where none does."""
    depth = 0
    for at in range(max(opened, 0), len(text)):
        if text[at] == ">" and text[at - 1] == "-":
            continue
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        if depth == 0:
            return at
    return len(text)


def _mangled_parts(text: str) -> tuple[str, list[str]]:
    """Return the names in a mangled symbol: the function's, then those (and the numbers) of its template arguments.

    Lengths stand before names in the Itanium C++ ABI; no more of it is read.
    """
    path: list[str] = []
    at = 3
    while match := re.compile(r"\d+").match(text, at):
        at = match.end() + int(match[0])
        path.append(text[match.end() : at])
    if not path:
        return text, []
    args: list[str] = []
    for word in _name_parts(text, at):
        if not args or args[-1] != word:
            args.append(word)
    if path[-1] in _WRAPPERS and args:
        return args[0], args[1:]
    return path[-1], args


def _name_parts(text: str, at: int) -> Iterable[str]:
    """Yield the innermost names of nested ones and literal numbers, in order."""
    while at < len(text):
        if match := re.compile(r"L[a-z](\d+)E").match(text, at):
            yield match[1]
            at = match.end()
        elif match := re.compile(r"\d+").match(text, at):
            end = match.end() + int(match[0])
            if end > len(text):
                return
            if not text[end : end + 1].isdigit() and not text[match.end() : end].startswith("_GLOBAL_"):
                yield text[match.end() : end]
            at = end
        else:
            at += 1
