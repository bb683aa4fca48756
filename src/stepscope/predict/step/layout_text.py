"""A layout as one types it: ``dp=8,tp=2,zero=1,mbs=4``."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.core.words import counted
from stepscope.predict.step.layout import PRECISIONS, Layout, Recompute, Schedule, deduce_dp
from stepscope.predict.step.model import ModelShape

DEFAULT_SEQ_LEN = 4096
MICRO_BATCHES_PER_STAGE = 4

_NUMBERS = {
    "dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "vpp": "vpp", "zero": "zero", "shard": "shard_group",
    "mbs": "micro_batch", "gbs": "global_batch", "seq": "seq_len",
}  # fmt: skip
_SWITCHES = {"sp": "sequence_parallel", "reshard": "reshard", "overlap": "overlap", "flash": "flash"}
_CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "precision": ("precision", PRECISIONS),
    "recompute": ("recompute", Recompute.__args__),  # type: ignore[attr-defined]
    "schedule": ("schedule", Schedule.__args__),  # type: ignore[attr-defined]
    "optimizer": ("optimizer", ("adam", "sgd")),
    "sync": ("sync_each", ("step", "each")),
}
_NOT_MODELLED = {
    "lora": "LoRA is not modelled: frozen weights have no gradients, and no published run grades that",
    "fp4": "FP4 is not modelled: too few published runs grade it",
    "nvfp4": "FP4 is not modelled: too few published runs grade it",
    "mxfp4": "FP4 is not modelled: too few published runs grade it",
}
KEYS = (*_NUMBERS, "acc", *_SWITCHES, *_CHOICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLayout:
    """A layout for any number of GPUs: dp is deduced where it was not given. given: the fields that were. acc: micro-batches
    of a step and rank; None: global_batch was given. assumed: what was not said, as notes."""

    layout: Layout
    given: frozenset[str]
    acc: int | None
    assumed: tuple[str, ...]

    def on(self, gpus: int) -> Layout:
        """The layout on so many GPUs. Raises UsageError where they are no multiple of the rest."""
        layout = self.layout if "dp" in self.given else deduce_dp(self.layout, gpus)
        if self.acc is None:
            return layout
        return replace(layout, global_batch=layout.dp * layout.micro_batch * self.acc)


def parse_layout(texts: tuple[str, ...], model: ModelShape) -> AskedLayout:
    """Keys: those of ``KEYS``; acc: micro-batches per step and rank. Raises UsageError with did-you-mean."""
    given: dict[str, Any] = {}
    for part in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        key, equals, value = (each.strip().lower() for each in part.partition("="))
        for word in (key, value):
            if word in _NOT_MODELLED:
                raise UsageError(_NOT_MODELLED[word], fix="predict bf16 or fp8 of all weights")
        if key not in KEYS:
            raise UsageError(unknown("--layout key", key, KEYS), fix=f"keys: {', '.join(KEYS)}")
        if key in given:
            raise UsageError(f"--layout {key} is given twice", fix="give it once")
        given[key] = _value(key, value if equals else "")
    if "gbs" in given and "acc" in given:
        raise UsageError(
            "--layout gbs and acc both given", why="the global batch is dp x mbs x acc", fix="give one of them"
        )
    names = {**_NUMBERS, **_SWITCHES, **{key: field for key, (field, _) in _CHOICES.items()}}
    said = frozenset(names.get(key, key) for key in given)
    assumed: list[str] = []
    if "seq" not in given:
        given["seq"] = min(DEFAULT_SEQ_LEN, model.positions or DEFAULT_SEQ_LEN)
        assumed.append(f"seq not given: sequences of {given['seq']} tokens")
    if "mbs" not in given:
        assumed.append("mbs not given: micro-batches of 1 sequence")
    acc = given.pop("acc", None)
    if acc is None and "gbs" not in given:
        pp = given.get("pp", 1)
        acc = 1 if pp == 1 else MICRO_BATCHES_PER_STAGE * pp
        why = "" if pp == 1 else f" ({MICRO_BATCHES_PER_STAGE} x pp)"
        assumed.append(f"neither gbs nor acc given: {counted(acc, 'micro-batch')} per step and rank{why}")
    if given.get("vpp", 1) > 1 and "schedule" not in given:
        given["schedule"] = "interleaved"
    layout = Layout(**{names.get(key, key): value for key, value in given.items()})
    return AskedLayout(layout=layout, given=said, acc=acc, assumed=tuple(assumed))


def _value(key: str, text: str) -> Any:
    if key in _NUMBERS or key == "acc":
        if not text.isdecimal():
            raise UsageError(f"--layout {key}={text}", fix=f"give a whole number: {key}=2")
        return int(text)
    if key in _SWITCHES:
        if text not in ("on", "off"):
            raise UsageError(f"--layout {key}={text}", fix=f"give {key}=on or {key}=off")
        return text == "on"
    choices = _CHOICES[key][1]
    if text not in choices:
        raise UsageError(unknown(f"--layout {key}", text, choices))
    return text == "each" if key == "sync" else text


def layout_text(layout: Layout, *, batch: bool = True) -> str:
    """What :func:`parse_layout` reads: what differs from the defaults, dp always."""
    default = {field.name: field.default for field in fields(Layout)}
    parts = [f"dp={layout.dp}"]
    for key, name in _NUMBERS.items():
        value = getattr(layout, name)
        if key not in ("dp", "gbs", "seq", "mbs") and value != default[name]:
            parts.append(f"{key}={value}")
    parts += [f"mbs={layout.micro_batch}"] if batch else []
    parts += [f"recompute={layout.recompute}"] if layout.recompute != "none" else []
    return ",".join(parts)
