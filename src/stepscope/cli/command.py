"""What a command file exports: a class whose fields are the options, and the module that takes an object of it.

A field is ``name: type = option(help, metavar)``, ``switch(help)`` or ``argument(help, metavar)``; ``tuple[T, ...]`` is
what may be given several times. ``read`` takes a line of known options with plain values by itself: importing typer takes
longer than reading a small trace. Whatever it does not understand (a mistake, ``--help``) is typer's to read.

Below that: what the text of an option means (lists, whole numbers, ranges, choices, durations).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown

T = TypeVar("T")


REQUIRED: Any = object()
"""Default of what must be given."""


class Said:
    """What a field says beside its type: its help, how it is typed, and what goes with it.

    names: ``-o``, or a long name that is not the field's own. least, most: bounds of a number. place: an argument, which
    has no name; after: all words after ``--``. only: fields that alone go with this one; without: that do not; needs: one
    without which this has no meaning; same_as: one that says the same.
    """

    def __init__(
        self,
        help_: str,
        metavar: str | None,
        names: tuple[str, ...],
        default: Any,
        *,
        place: bool = False,
        after: bool = False,
        bounds: Any = (None, None),
        only: str | None = None,
        without: str = "",
        needs: str = "",
        same_as: str = "",
    ) -> None:
        self.help, self.metavar, self.names, self.default, self.place = help_, metavar, names, default, place
        self.after = after
        self.least, self.most = bounds
        self.only, self.without, self.needs, self.same_as = only, without, needs, same_as

    def __set_name__(self, owner: type, name: str) -> None:
        long = [text for text in self.names if text.startswith("--")]
        self.name = long[0] if long else "--" + name.rstrip("_").replace("_", "-")
        self.names = self.names if long else (self.name, *self.names)

    @property
    def spelled(self) -> str:
        """How one types it: ``--fail-if``; the metavar of an argument."""
        return str(self.metavar) if self.place else self.name.partition("/")[0]

    def for_typer(self) -> Any:
        """Return typer's own object for it."""
        import typer

        shown = self.default is not REQUIRED and self.default not in (None, "", ())
        settings: dict[str, Any] = {"help": self.help, "metavar": self.metavar, "show_default": shown}
        if self.place:
            return typer.Argument(**settings)
        return typer.Option(*self.names, min=self.least, max=self.most, **settings)


def option(
    help: str,  # noqa: A002 - as one reads it in a command
    metavar: str | None = None,
    *names: str,
    default: Any = None,
    min: float | None = None,  # noqa: A002
    max: float | None = None,  # noqa: A002
    **with_others: Any,
) -> Any:
    """Return a field's default that says what the option is: ``--the-fields-name METAVAR``.

    names: ``-o``, ``--another-name``. with_others: ``only``, ``without``, ``needs`` as of ``Said``: names of fields, blanks
    between them.
    """
    return Said(help, metavar, names, default, bounds=(min, max), **with_others)


def switch(help: str, *names: str, **with_others: Any) -> Any:  # noqa: A002
    """Return the default of an option without a value, False where it is not given."""
    return Said(help, None, names, False, **with_others)


def argument(help: str, metavar: str, *, default: Any = REQUIRED, **with_others: Any) -> Any:  # noqa: A002
    """Return the default of what is typed without a name in front."""
    return Said(help, metavar, (), default, place=True, **with_others)


def after_dashes(kind: type, words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words before ``--``, and those after it under the field that takes them; all, where none does."""
    name = next((name for name, field in _fields(kind).items() if field.after), None)
    if name is None or "--" not in words:
        return list(words), {}
    at = list(words).index("--")
    return list(words[:at]), {name: list(words[at + 1 :])}


def read(kind: type[T], words: Sequence[str]) -> T | None:
    """Return the options in ``words``; None where typer has to look: for what is unknown, missing, odd or asks for help."""
    words, after = after_dashes(kind, words)
    values: dict[str, Any] = {**after}
    if "--help" in words or "-h" in words:
        return None
    fields, types = _fields(kind), get_type_hints(kind)
    options = {spelled: name for name, field in fields.items() if not field.place for spelled in field.names}
    place = next((name for name, field in fields.items() if field.place and not field.after), None)
    coming = iter(words)
    for word in coming:
        spelled, equals, text = word.partition("=") if word.startswith("-") else ("", "=", word)
        name = options.get(spelled) if spelled else place
        if name is None:
            return None
        annotation, declared = types[name], fields[name]
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
        inner = annotation if get_origin(annotation) is list else (*get_args(annotation), annotation)[0]
        reader = _READERS.get(inner)
        value = None if reader is None else reader(text)
        if (
            value is None
            or (declared.least is not None and value < declared.least)
            or (declared.most and value > declared.most)
        ):
            return None
        values[name] = (*values.get(name, ()), value) if several else value
    return kind(**values) if values.keys() >= {name for name in fields if fields[name].default is REQUIRED} else None


_FLOAT = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _real(text: str) -> float | None:
    return float(text) if _FLOAT.fullmatch(text) else None


_READERS: dict[type, Callable[[str], Any]] = {str: str, int: _whole, float: _real, Path: Path}


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """Base of a command's options. Made by keyword; frozen.

    Not a dataclass: those write and compile code as they are made, which ``--help`` would pay for every command.
    """

    def __init__(self, **given: Any) -> None:
        fields = _fields(type(self))
        if strange := given.keys() - fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(strange))}")
        if missing := [name for name, field in fields.items() if name not in given and field.default is REQUIRED]:
            raise TypeError(f"{type(self).__name__} needs {', '.join(missing)}")
        vars(self).update({name: given.get(name, field.default) for name, field in fields.items()})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"options are frozen: {name}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@record
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
        refuse_misfits(options)
        where = self.where if isinstance(self.where, str) else self.where(options)
        module, _, function = where.partition(":")
        code: int | None = getattr(importlib.import_module(module), function or "run")(options)
        return code

    def typer_function(self) -> Callable[..., int | None]:
        """Return what typer registers: the options as its parameters."""

        def called(**given: Any) -> int | None:
            several = {name: tuple(given[name] or ()) for name in repeated}
            return self.run(self.options(**given | several))

        fields, types = _fields(self.options), get_type_hints(self.options)
        repeated = frozenset(name for name in fields if get_origin(types[name]) is tuple)
        parameters = []
        for name, field in fields.items():
            kind, default = types[name], inspect.Parameter.empty if field.default is REQUIRED else field.default
            if name in repeated:  # typer knows lists only
                item = get_args(kind)[0]
                kind = list[item] if field.default is REQUIRED else list[item] | None  # type: ignore[valid-type]
                default = default or None
            parameters.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, field.for_typer()]
                )
            )
        called.__doc__ = self.options.__doc__
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called


def given(options: Options) -> tuple[str, ...]:
    """Return the names of the options that are not at their default."""
    return tuple(name for name, field in _fields(type(options)).items() if getattr(options, name) != field.default)


def spelled(kind: type[Options], field: str) -> str:
    """Return an option as one types it: ``--fail-if``; the metavar of an argument."""
    return _fields(kind)[field].spelled


def require_only(options: Options, mode: str, obeyed: Collection[str]) -> None:
    """Raises UsageError that names the options given which ``mode`` does not obey: none is ignored."""
    foreign = [spelled(type(options), name) for name in given(options) if name not in obeyed]
    if foreign:
        raise UsageError(f"{mode} does not go with {', '.join(foreign)}")


def refuse_misfits(options: Options) -> None:
    """Raises UsageError that names the options given that do not go with another one."""
    fields, names = _fields(type(options)), given(options)
    for name in names:
        field = fields.get(fields[name].same_as, fields[name])
        if field.only is not None or field.without:
            off = getattr(options, name) is False  # --no-monitor
            mode = field.name.partition("/")[2] if off else field.spelled
            obeyed = fields.keys() - field.without.split() if field.only is None else {name, *field.only.split()}
            require_only(options, mode, obeyed)
    for needed in dict.fromkeys(fields[name].needs for name in names):
        if needed and needed not in names:
            mode = f"{type(options).__name__.lower()} without {fields[needed].spelled}"
            require_only(options, mode, [name for name in names if fields[name].needs != needed])


def _fields(kind: type) -> dict[str, Said]:
    """Return the fields by name in the order of help: those of a base class first."""
    own = ({name: var for name, var in vars(base).items() if isinstance(var, Said)} for base in reversed(kind.__mro__))
    return {name: field for declared in own for name, field in declared.items()}


EXIT_CODES = {
    "0": "every cell of the matrix that can run here has a result. Cells that are `unsupported` or `skipped` do not count",
    "1": "a bug in stepscope; the traceback is printed",
    "2": "a mistake in the request: matrix, option, name, missing or damaged data, a run folder that belongs to something "
    "else. Nothing was started",
    "3": "this machine lacks what the command needs (a GPU, a backend, memory, room or permission to write; for a chart of "
    "`report`: all else is written), or no cell of the matrix can run on it",
    "4": "some cells have a result, others failed (`error`, `killed`, `timeout`, `oom`, `host_oom`, `interrupted`)",
    "5": "cells failed, and none has a result",
    "6": "a condition of `--fail-if` holds, or `--strict` found a failed check",
    "128 + n": "stopped by signal n (130 Ctrl-C, 143 SIGTERM): what was measured is saved, the same command with the same "
    "`-o` resumes",
}
"""When a command ends with each exit code; docs/reference/bench.md shows them."""


V = TypeVar("V")
_MOST = 1_000_000


def listed(text: str | None) -> tuple[str, ...]:
    """Return the words between commas, each once; none for None."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def whole_numbers(option: str, text: str, *, most: int) -> tuple[int, ...]:
    """Read ``1,2,8`` as numbers from 1 to ``most``, each once, in their order. Raises UsageError."""
    words = listed(text)
    if not words:
        raise UsageError(f"{option} is empty")
    for part in words:
        if not part.isdecimal() or not 1 <= int(part) <= most:
            raise UsageError(f"{option} {part!r}: expected whole numbers from 1 to {most:,}, such as {option} 2,4,8")
    return tuple(dict.fromkeys(int(part) for part in words))


def whole_or_auto(option: str, text: str, *, least: int) -> int | None:
    """Read a number of at least ``least``; None for auto. Raises UsageError."""
    if text.strip() == "auto":
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise UsageError(f"{option} {text!r} is neither auto nor a whole number of at least {least}")
    return int(text)


def parse_ranges(text: str | None, option: str) -> frozenset[int] | None:
    """Return the numbers of ``3``, ``0,4`` or ``10-14``; None when nothing was given. Raises UsageError."""
    if text is None:
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise UsageError(f"{option} {text!r}: expected numbers such as 3, 0,4 or 10-14")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > _MOST:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is not a range")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def choice(option: str, text: str, choices: Mapping[str, V]) -> V:
    """Return what the word stands for. Raises UsageError."""
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise UsageError(unknown(f"value of {option}", text, choices)) from None


def duration_ns(option: str, text: str) -> int:
    """Read ``5s``, ``250ms`` or ``2min``, above 0, in ns. Raises UsageError."""
    from stepscope.core.units import parse_duration_ns

    try:
        duration = parse_duration_ns(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.what}", fix=error.fix) from None
    if duration <= 0:
        raise UsageError(f"{option} {text!r} is not a duration above 0", fix="write 5s, 250ms or 2min")
    return duration
