"""What a command file exports: a class whose fields are the options, and the module that takes an object of it.

A field is written as typer writes a parameter: ``name: Annotated[type, typer.Option(...)] = default``, or
``typer.Argument``. ``tuple[T, ...]`` is what may be given several times.

``Option`` and ``Argument`` of this module in place of typer's let a command start without typer, whose import takes
longer than reading a small trace. ``read`` takes a line of
known options with plain values by itself; whatever it does not understand (a mistake, ``--help``) is typer's to read.

Below that: what the text of an option means (lists, whole numbers, ranges, choices, durations).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown

T = TypeVar("T")


class Argument:
    """What ``typer.Argument`` says, without typer."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings

    def for_typer(self) -> Any:
        """typer's own object of it."""
        import typer

        return typer.Argument(**self.settings)


class Option(Argument):
    """What ``typer.Option`` says, without typer."""

    def for_typer(self) -> Any:
        """typer's own object of it."""
        import typer

        return typer.Option(*self.names, **self.settings)


def read(kind: type[T], words: Sequence[str]) -> T | None:
    """The options in ``words``; None where typer has to look: for what is unknown, missing, odd or asks for help.

    Only for kinds whose every field has an ``Option`` or ``Argument`` of this module.
    """
    if "--help" in words or "-h" in words:
        return None
    hints = {name: get_args(hint)[:2] for name, hint in get_type_hints(kind, include_extras=True).items()}
    if not all(isinstance(said, Argument) for _, said in hints.values()):
        return None
    options = {_name(name, said): name for name, (_, said) in hints.items() if isinstance(said, Option)}
    places = [name for name, (_, said) in hints.items() if not isinstance(said, Option)]
    values: dict[str, Any] = {}
    coming = iter(words)
    for word in coming:
        spelled, equals, text = word.partition("=") if word.startswith("-") else ("", "=", word)
        name = options.get(spelled) if spelled else next(iter(places), None)
        if name is None:
            return None
        annotation, said = hints[name]
        several = get_origin(annotation) is tuple
        if name in values and not several:
            return None
        if annotation is bool:
            if equals:
                return None
            values[name] = True
            continue
        if not equals:
            text = next(coming, "-")
            if text.startswith("-"):
                return None
        value = _READERS[get_args(annotation)[0] if get_args(annotation) else annotation](text)
        least = said.settings.get("min")
        if value is None or (least is not None and value < least):
            return None
        values[name] = (*values.get(name, ()), value) if several else value
    given = values.keys() | {name for name in hints if hasattr(kind, name)}
    return kind(**values) if given >= hints.keys() else None


_FLOAT = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _real(text: str) -> float | None:
    return float(text) if _FLOAT.fullmatch(text) else None


_READERS: dict[type, Callable[[str], Any]] = {str: str, int: _whole, float: _real, Path: Path}


def _name(name: str, said: Option) -> str:
    return said.names[0] if said.names else "--" + name.replace("_", "-")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """Base of a command's options. Made by keyword; frozen.

    Not a dataclass: those write and compile code as they are made, which ``--help`` would pay for every command.
    """

    def __init__(self, **given: Any) -> None:
        fields = _fields(type(self))
        if strange := given.keys() - fields:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(strange))}")
        if missing := [name for name in fields if name not in given and not hasattr(type(self), name)]:
            raise TypeError(f"{type(self).__name__} needs {', '.join(missing)}")
        vars(self).update({name: given.get(name, getattr(type(self), name, None)) for name in fields})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"options are frozen: {name}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. Its file is imported whenever help is shown, ``where`` only when it runs.

    options: their docstring is the help. where: ``module`` or ``module:function`` (without it ``run``) that takes the
    options and returns the exit code (None: 0); or a function of the options that names it. panel: heading in ``--help``.
    runs_a_command: from the first word on that is no option, the line is the user's own command.
    """

    options: type[Options]
    where: str | Callable[[Any], str]
    panel: str = "Commands"
    runs_a_command: bool = False

    def run(self, options: Options) -> int | None:
        where = self.where if isinstance(self.where, str) else self.where(options)
        module, _, function = where.partition(":")
        code: int | None = getattr(importlib.import_module(module), function or "run")(options)
        return code

    def typer_function(self) -> Callable[..., int | None]:
        """What typer registers: the options as its parameters."""

        def called(**given: Any) -> int | None:
            several = {name: tuple(given[name] or ()) for name in repeated}
            return self.run(self.options(**given | several))

        hints = {name: _typed(hint) for name, hint in get_type_hints(self.options, include_extras=True).items()}
        repeated = frozenset(name for name in _fields(self.options) if _item(hints[name]) is not None)
        parameters = [self._parameter(name, hints[name]) for name in _fields(self.options)]
        called.__doc__ = self.options.__doc__
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    def _parameter(self, name: str, hint: Any) -> inspect.Parameter:
        default = getattr(self.options, name, inspect.Parameter.empty)
        item = _item(hint)
        if item is not None:  # typer knows lists only
            of_list: Any = list[item] if default is inspect.Parameter.empty else list[item] | None  # type: ignore[valid-type]
            hint = Annotated[(of_list, *hint.__metadata__)]
            default = default or None
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def given(options: Options) -> tuple[str, ...]:
    """Names of the options that are not at their default."""
    kind, default = type(options), object()
    return tuple(name for name in _fields(kind) if getattr(options, name) != getattr(kind, name, default))


def spelled(kind: type[Options], field: str) -> str:
    """An option as one types it: ``--fail-if``; the metavar of an argument."""
    said = get_args(get_type_hints(kind, include_extras=True)[field])[1]
    # typer keeps the first name where a parameter's default stands outside of Annotated.
    names = said.names if isinstance(said, Argument) else (said.default, *(said.param_decls or ()))
    long = [name for name in names if isinstance(name, str) and name.startswith("--")]
    if long:
        return long[0].partition("/")[0]
    is_option = isinstance(said, Option) if isinstance(said, Argument) else type(said).__name__ == "OptionInfo"
    metavar = said.settings.get("metavar") if isinstance(said, Argument) else said.metavar
    return f"--{field.replace('_', '-')}" if is_option else metavar or field.upper()


def require_only(options: Options, mode: str, obeyed: Collection[str]) -> None:
    """Raises UsageError that names the options given which ``mode`` does not obey: none is ignored."""
    foreign = [spelled(type(options), name) for name in given(options) if name not in obeyed]
    if foreign:
        raise UsageError(f"{mode} does not go with {', '.join(foreign)}")


def _fields(options: type[Options]) -> tuple[str, ...]:
    """Names in the order of help: those of a base class first."""
    names = (name for each in reversed(options.__mro__) for name in vars(each).get("__annotations__", {}))
    return tuple(dict.fromkeys(names))


def _typed(hint: Any) -> Any:
    """The hint in typer's own words."""
    inner, said = get_args(hint)[:2]
    return Annotated[inner, said.for_typer()] if isinstance(said, Option | Argument) else hint


def _item(hint: Any) -> Any:
    """T of ``Annotated[tuple[T, ...], ...]``; None for other types."""
    inner = get_args(hint)[0]
    if get_origin(inner) is tuple:
        item, ellipsis = get_args(inner)
        assert ellipsis is ...
        return item
    return None


EXIT_CODES = {
    "0": "every cell of the matrix that can run here has a result. Cells that are `unsupported` or `skipped` do not count",
    "1": "a bug in stepscope; the traceback is printed",
    "2": "a mistake in the request: matrix, option, name, missing or damaged data, a run folder that belongs to something "
    "else. Nothing was started",
    "3": "this machine lacks what the command needs (a GPU, a backend, room or permission to write), or no cell of the "
    "matrix can run on it",
    "4": "some cells have a result, others failed (`error`, `killed`, `timeout`, `oom`, `host_oom`, `interrupted`)",
    "5": "cells failed, and none has a result",
    "6": "a condition of `--fail-if` holds, or `--strict` found a failed check",
    "128 + n": "stopped by signal n (130 Ctrl-C, 143 SIGTERM): what was measured is saved, the same command with the same "
    "`-o` resumes",
}
"""By exit code, when a command ends with it; docs/reference/bench.md shows them."""


V = TypeVar("V")
_MOST = 1_000_000


def listed(text: str | None) -> tuple[str, ...]:
    """The words between commas, each once; none for None."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def whole_numbers(option: str, text: str, *, most: int) -> tuple[int, ...]:
    """``1,2,8`` as numbers from 1 to ``most``, each once, in their order."""
    found = listed(text)
    if not found:
        raise UsageError(f"{option} is empty")
    for part in found:
        if not part.isdecimal() or not 1 <= int(part) <= most:
            raise UsageError(f"{option} {part!r}: expected whole numbers from 1 to {most:,}, such as {option} 2,4,8")
    return tuple(dict.fromkeys(int(part) for part in found))


def whole_or_auto(option: str, text: str, *, least: int) -> int | None:
    """A number of at least ``least``; None for auto."""
    if text.strip() == "auto":
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise UsageError(f"{option} {text!r} is neither auto nor a whole number of at least {least}")
    return int(text)


def parse_ranges(text: str | None, option: str) -> frozenset[int] | None:
    """The numbers of ``3``, ``0,4`` or ``10-14``; None when nothing was given."""
    if text is None:
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise UsageError(f"{option} {text!r}: expected numbers such as 3, 0,4 or 10-14")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first > _MOST:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is not a range")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def choice(option: str, text: str, choices: Mapping[str, V]) -> V:
    """What the word stands for."""
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise UsageError(unknown(f"value of {option}", text, choices)) from None


def duration_ns(option: str, text: str) -> int:
    """``5s``, ``250ms`` or ``2min``, above 0."""
    from stepscope.core.units import parse_duration_ns

    try:
        duration = parse_duration_ns(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.what}", fix=error.fix) from None
    if duration <= 0:
        raise UsageError(f"{option} {text!r} is not a duration above 0", fix="write 5s, 250ms or 2min")
    return duration
