"""From pydantic's complaints to sentences that name the value, what was expected, and the nearest right word."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError

from stepscope.config.options import OptionsModel
from stepscope.core.suggest import did_you_mean, unknown

M = TypeVar("M", bound=OptionsModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One rejected key of a schema; ``key`` is empty when the complaint is about several keys together."""

    key: str
    message: str


def validate(schema: type[M], values: Mapping[str, Any], *, kind: str) -> M | tuple[Complaint, ...]:
    """``values`` as an instance of ``schema``, or every complaint about them.

    kind: what a key is called when it is unknown (``option of strategy 'ddp'``). Values are read as JSON would be, so
    that a list fills a tuple; otherwise types are strict, but for whole numbers written as 8.0.
    """
    try:
        return schema.model_validate_json(json.dumps({key: _whole(value) for key, value in values.items()}))
    except ValidationError as error:
        return tuple(_complaints(error, schema, values, kind))


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _complaints(
    error: ValidationError, schema: type[OptionsModel], values: Mapping[str, Any], kind: str
) -> Iterator[Complaint]:
    seen: set[str] = set()
    for detail in error.errors(include_url=False):
        key = str(detail["loc"][0]) if detail["loc"] else ""
        if key in seen:  # a union complains once for each of its members
            continue
        seen.add(key)
        if detail["type"] == "extra_forbidden":
            yield Complaint(key=key, message=unknown(kind, key, schema.model_fields))
        elif detail["type"] == "missing":
            yield Complaint(key=key, message=f"missing: {_expected(schema, key) or 'a value'}")
        else:
            found = values.get(key)
            yield Complaint(key=key, message=_rejected(schema, key, found, detail["msg"]))


def no_option(owners: str, option: str, known: Iterable[str]) -> str:
    """``strategy 'ddp' has no option 'bucket_cap_md'; did you mean 'bucket_cap_mb'? It has: ...``."""
    names = sorted(known)
    guess = did_you_mean(option, names)
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"{owners} has no option {option!r}{hint} It has: {', '.join(names) if names else '(none)'}"


def _rejected(schema: type[OptionsModel], key: str, found: Any, message: str) -> str:
    expected = _expected(schema, key)
    if key == "" or (message.startswith("Value error, ") and not expected):
        return message.removeprefix("Value error, ")
    guess = did_you_mean(found, _words(schema, key)) if isinstance(found, str) else None
    hint = f"; did you mean {guess!r}?" if guess else ""
    if expected:
        return f"expected {expected}, found {_shown(found)}{hint}"
    reason = message[0].lower() + message[1:]
    return f"{reason.removeprefix('value error, ')}, found {_shown(found)}{hint}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(schema: type[OptionsModel], key: str) -> str | None:
    """What the field's own description calls its values, where the schema is one of config's."""
    field = schema.model_fields.get(key)
    if field is None or not schema.__module__.startswith("stepscope.config."):
        return None
    return field.description


def _words(schema: type[OptionsModel], key: str) -> tuple[str, ...]:
    """The words that a ``Literal`` field takes."""
    field = schema.model_fields.get(key)
    return tuple(_literals(field.annotation)) if field is not None else ()


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (word for word in get_args(annotation) if isinstance(word, str))
        return
    for argument in get_args(annotation):
        yield from _literals(argument)
