"""The keys of a matrix file: names, types, ranges, defaults; and the sentences that refuse a value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import Field, ValidationError

from stepscope.core.dataclass import record
from stepscope.core.words import did_you_mean, unknown
from stepscope.records.cell import Checkpointing, LossName, MeasureSettings, OptimizerName, Precision
from stepscope.records.options import OptionsModel

PRECISIONS: tuple[str, ...] = get_args(Precision)
CHECKPOINTING: tuple[str, ...] = get_args(Checkpointing)
OPTIMIZERS: tuple[str, ...] = get_args(OptimizerName)
LOSSES: tuple[str, ...] = get_args(LossName)


class CellSettings(OptionsModel):
    """What one cell says apart from the options of its workload, dataset and strategy.

    A field's description is what an error calls the values it takes.
    """

    workload: str = Field(description="the name of a workload")
    dataset: str = Field(description="the name of a dataset")
    strategy: str = Field(description="the name of a strategy")
    world_size: int = Field(ge=1, description="a whole number of ranks, at least 1")
    mesh: Mapping[str, int] | None = Field(default=None, description="a mapping such as {dp: 2, tp: 2}")
    precision: Precision = Field(default="fp32", description="one of " + ", ".join(PRECISIONS))
    accumulation: int = Field(default=1, ge=1, description="a whole number of micro-steps, at least 1")
    global_batch: int | None = Field(default=None, ge=1, description="a whole number of samples, at least 1")
    micro_batch: int | None = Field(default=None, ge=1, description="a whole number of samples, at least 1")
    activation_checkpointing: Checkpointing = Field(default="none", description="one of " + ", ".join(CHECKPOINTING))
    optimizer: OptimizerName = Field(default="sgd", description="one of " + ", ".join(OPTIMIZERS))
    lr: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="a number of at least 0")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="a number from 0 to below 1")
    lr_warmup: int = Field(default=0, ge=0, description="a whole number of optimizer steps, at least 0")
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="a number of at least 0")
    clip: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="a gradient norm above 0 such as 1.0, or null for no clipping",
    )
    loss: LossName | None = Field(default=None, description="one of " + ", ".join(LOSSES))
    steps: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=None, description="a whole number of at least 1, or auto"
    )
    epochs: int | None = Field(default=None, ge=1, description="a whole number of at least 1 (only `steps` takes auto)")
    seed: int = Field(default=1, ge=0, lt=2**63, description="a whole number of at least 0")
    num_workers: int = Field(default=0, ge=0, description="a whole number of at least 0")
    pin_memory: bool = Field(default=False, description="true or false")
    persistent_workers: bool = Field(default=False, description="true or false")
    cudnn_benchmark: bool = Field(default=False, description="true or false")
    network: str | None = Field(default=None, description="the name of an emulated network, or null")
    inject: str | None = Field(default=None, description="planted faults such as slow_rank=2:30%, or null")


CELL_KEYS: tuple[str, ...] = tuple(CellSettings.model_fields)
REQUIRED_KEYS: tuple[str, ...] = tuple(k for k, f in CellSettings.model_fields.items() if f.is_required())

OPTION_GROUPS = {"model": "workload", "dataset_options": "dataset", "strategy_options": "strategy"}
"""Prefix of a dotted key, and the cell key whose value brings the schema of what follows the dot."""

GROUP_KEYS: tuple[str, ...] = (*OPTION_GROUPS, "env")

RIVALS: tuple[tuple[str, str], ...] = (("global_batch", "micro_batch"), ("steps", "epochs"))
"""Keys of which a cell gives exactly one."""


def rival_of(key: str) -> str | None:
    """Return the key that ``key`` excludes, or None."""
    return next((other for pair in RIVALS if key in pair for other in pair if other != key), None)


NS_PER_S = 1_000_000_000

LAUNCHER_VARIABLES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
})  # fmt: skip
"""Environment variables that the launcher sets for each rank: a matrix that set them would be overruled or break it."""


class LaunchSettings(OptionsModel):
    """Where and how worker processes start. Same values for every cell of the matrix."""

    backend: Literal["auto", "gloo", "nccl"] = Field(default="auto", description="auto, gloo or nccl")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto, cpu or cuda")
    threads_per_rank: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="a whole number of at least 1, or auto (usable cores / ranks)"
    )
    env: dict[str, str] = Field(default_factory=dict, description="a mapping of variable names to text")
    isolate: bool = Field(default=False, description="true or false")
    oversubscribe: bool = Field(default=True, description="true or false")


class CommSection(OptionsModel):
    """The sweep of collectives that a matrix brings, in the words of ``stepscope comm``."""

    ops: str = Field(default="all", description="names of collectives, or all")
    sizes: str = Field(default="1K:64M:4", description="sizes as nccl-tests writes them, such as 1K:64M:4")
    dtype: str = Field(default="fp32", description="types, such as fp32,bf16")
    pairs: bool = Field(default=False, description="true or false")
    matmul: bool = Field(default=False, description="true or false")
    overlap: bool = Field(default=False, description="true or false")
    budget_s: float = Field(default=2.0, gt=0, allow_inf_nan=False, description="a number of seconds above 0")


class MeasureOptions(OptionsModel):
    """How long and how carefully to measure; not part of a cell's identity."""

    warmup: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        default="auto", description="a whole number of steps, or auto"
    )
    rounds: int = Field(default=1, ge=1, description="a whole number of at least 1")
    budget_s: float = Field(default=60.0, gt=0, allow_inf_nan=False, description="a number of seconds above 0")
    ci: float = Field(default=0.02, gt=0, lt=1, description="a fraction between 0 and 1, such as 0.02")
    timeout_s: float = Field(default=900.0, gt=0, allow_inf_nan=False, description="a number of seconds above 0")
    profile: bool = Field(default=False, description="true or false")

    def settings(self) -> MeasureSettings:
        """The record that ranks read, in base units."""
        return MeasureSettings(
            warmup_steps=None if self.warmup == "auto" else self.warmup,
            rounds=self.rounds,
            budget_ns=round(self.budget_s * NS_PER_S),
            ci_fraction=self.ci,
            timeout_ns=round(self.timeout_s * NS_PER_S),
            profile=self.profile,
        )


M = TypeVar("M", bound=OptionsModel)


@record
class Complaint:
    """One rejected key of a schema; ``key`` is empty when the complaint is about several keys together."""

    key: str
    message: str


def validate(schema: type[M], values: Mapping[str, Any], *, kind: str) -> M | tuple[Complaint, ...]:
    """Return ``values`` as an instance of ``schema``, or every complaint about them.

    kind: what a key is called when it is unknown (``option of strategy 'ddp'``). Values are read as JSON would be, so
    that a list fills a tuple; otherwise types are strict, but for whole numbers written as 8.0.
    """
    try:
        return schema.model_validate_json(json.dumps({key: _whole_numbers(value) for key, value in values.items()}))
    except ValidationError as error:
        return tuple(_validation_complaints(error, schema, values, kind))


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole_numbers(element) for element in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _validation_complaints(
    error: ValidationError, schema: type[OptionsModel], values: Mapping[str, Any], kind: str
) -> Iterator[Complaint]:
    """Yield one complaint for each key that is wrong."""
    seen: set[str] = set()
    for detail in error.errors(include_url=False):
        key = str(detail["loc"][0]) if detail["loc"] else ""
        if key in seen:  # a union complains once for each of its members
            continue
        seen.add(key)
        if detail["type"] == "extra_forbidden":
            yield Complaint(key=key, message=unknown(kind, key, schema.model_fields))
        elif detail["type"] == "missing":
            yield Complaint(key=key, message=f"missing: {_expected_words(schema, key) or 'a value'}")
        else:
            value = values.get(key)
            yield Complaint(key=key, message=_rejected_text(schema, key, value, detail["msg"]))


def no_option(owners: str, option: str, options: Iterable[str]) -> str:
    """Return ``strategy 'ddp' has no option 'bucket_cap_md'; did you mean 'bucket_cap_mb'? It has: ...``."""
    names = sorted(options)
    guess = did_you_mean(option, names)
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"{owners} has no option {option!r}{hint} It has: {', '.join(names) if names else '(none)'}"


def _rejected_text(schema: type[OptionsModel], key: str, value: Any, message: str) -> str:
    """Say why a value was rejected, and what is meant or taken instead."""
    expected = _expected_words(schema, key)
    if key == "" or (message.startswith("Value error, ") and not expected):
        return message.removeprefix("Value error, ")
    guess = did_you_mean(value, _literal_choices(schema, key)) if isinstance(value, str) else None
    hint = f"; did you mean {guess!r}?" if guess else ""
    if expected:
        return f"expected {expected}, found {_shown_value(value)}{hint}"
    reason = message[0].lower() + message[1:]
    return f"{reason.removeprefix('value error, ')}, found {_shown_value(value)}{hint}"


def _shown_value(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected_words(schema: type[OptionsModel], key: str) -> str | None:
    """Return what the field's own description calls its values, where the schema is one of this room."""
    field = schema.model_fields.get(key)
    if field is None or not schema.__module__.startswith("stepscope.matrix."):
        return None
    return field.description


def _literal_choices(schema: type[OptionsModel], key: str) -> tuple[str, ...]:
    """Return the words that a ``Literal`` field takes."""
    field = schema.model_fields.get(key)
    return tuple(_literal_words(field.annotation)) if field is not None else ()


def _literal_words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (word for word in get_args(annotation) if isinstance(word, str))
        return
    for argument in get_args(annotation):
        yield from _literal_words(argument)
