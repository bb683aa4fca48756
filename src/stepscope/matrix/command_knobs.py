"""Knobs of the user's own command: ``--knob batch=--batch-size:16..256``, and the command with one of them turned. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import get_args

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import did_you_mean
from stepscope.records.tuning import CHANGES_MATHEMATICS, Knob

EXAMPLE = "--knob batch=--batch-size:16..256, --knob workers=--num-workers:0,2,4 or --knob compile=--compile"
PER_STEP = ("batch", "accumulation")
"""Knobs to which a step's number of samples is in proportion."""
KNOBS: tuple[str, ...] = get_args(Knob)

HOOK_KNOBS: Mapping[str, Knob] = {
    "bucket_cap_mb": "bucket", "static_graph": "static-graph", "gradient_as_bucket_view": "bucket-view",
    "num_workers": "workers", "no_sync": "no-sync", "comm_hook": "hook",
}  # fmt: skip
"""What the hook can change in a job, without an edit of its code."""

CODE: Mapping[str, str] = {
    "bucket_cap_mb": "DistributedDataParallel(..., bucket_cap_mb={})",
    "static_graph": "DistributedDataParallel(..., static_graph={})",
    "gradient_as_bucket_view": "DistributedDataParallel(..., gradient_as_bucket_view={})",
    "num_workers": "DataLoader(..., num_workers={})",
    "no_sync": "with model.no_sync():  # around all but the last of {} micro-steps",
    "comm_hook": """def bf16_hook(_, bucket):  # torch's bf16_compress_hook needs NCCL
    narrow = bucket.buffer().to(torch.bfloat16).div_(torch.distributed.get_world_size())
    sent = torch.distributed.all_reduce(narrow, async_op=True).get_future()
    return sent.then(lambda done: bucket.buffer().copy_(done.value()[0]))
model.register_comm_hook(None, bf16_hook)""",
}


@record
class CommandKnob:
    """An option of the command. values: to try, empty: a switch. now: the present one; None: not given."""

    knob: Knob
    option: str
    values: tuple[str, ...]
    now: str | None


def parse_knob(text: str, command: Sequence[str]) -> CommandKnob:
    """Read ``NAME=OPTION:LOW..HIGH`` (doubling), ``NAME=OPTION:A,B,C`` or ``NAME=OPTION`` (a switch). Raises UsageError."""
    name, equals, rest = text.partition("=")
    option, colon, values = rest.rpartition(":") if ":" in rest else (rest, "", "")
    if not equals or not option.startswith("-"):
        raise UsageError(f"--knob {text!r}: expected NAME=OPTION:VALUES", fix=f"for example {EXAMPLE}")
    if name not in KNOBS:
        guess = did_you_mean(name, KNOBS)
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise UsageError(f"--knob {name!r} is not a knob{hint} Known: {', '.join(KNOBS)}")
    now = present(command, option)
    knob: Knob = next(candidate for candidate in get_args(Knob) if candidate == name)
    if not colon:
        if now is not None:
            raise UsageError(
                f"--knob {text!r}: the command has {option} already", fix="give values to try after a colon"
            )
        return CommandKnob(knob=knob, option=option, values=("",), now=None)
    wanted = _knob_values(text, values)
    if knob in PER_STEP and (now is None or not now.isdecimal()):
        raise UsageError(
            f"--knob {text!r}: the command does not say its present {option}",
            why="samples of a step are in proportion to it, and speeds are compared per sample",
            fix=f"add {option} with its present value to the command",
        )
    return CommandKnob(knob=knob, option=option, values=tuple(v for v in wanted if v != now), now=now)


def _knob_values(text: str, values: str) -> tuple[str, ...]:
    """Return the values of a knob: a list, or FROM..TO by doubling. Raises UsageError for others."""
    span = re.fullmatch(r"(\d+)\.\.(\d+)", values)
    if span is None:
        listed = tuple(dict.fromkeys(v.strip() for v in values.split(",") if v.strip()))
        if not listed:
            raise UsageError(f"--knob {text!r} names no value", fix=f"for example {EXAMPLE}")
        return listed
    low, high = int(span[1]), int(span[2])
    if high < low or high > 10**9:
        raise UsageError(f"--knob {text!r}: {values} is not a range", fix=f"for example {EXAMPLE}")
    doubled, number = ["0"] if low == 0 else [], max(low, 1)
    while number < high:
        doubled.append(str(number))
        number *= 2
    return (*doubled, str(high))


def present(command: Sequence[str], option: str) -> str | None:
    """Return the value that the command gives the option last; empty text: a switch; None: it does not give it."""
    value = None
    for place, word in enumerate(command):
        if word == option:
            following = command[place + 1] if place + 1 < len(command) else "-"
            value = "" if following.startswith("-") and not re.fullmatch(r"-?\d[\d.eE+-]*", following) else following
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value


def with_option(command: Sequence[str], option: str, value: str) -> tuple[str, ...]:
    """Return the command with the option at ``value``: in its place, or at the end."""
    words = list(command)
    for place in reversed(range(len(words))):
        if words[place].startswith(f"{option}="):
            words[place] = f"{option}={value}"
            return tuple(words)
        if words[place] == option and value and present(command, option):
            words[place + 1] = value
            return tuple(words)
    return (*words, option, *([value] if value else []))


def changes_mathematics(knob: Knob) -> bool:
    return knob in CHANGES_MATHEMATICS or knob == "accumulation"


def command_of(command: Sequence[str], changes: Mapping[str, object]) -> tuple[str, ...]:
    """Return the command with the changes that are options of its own."""
    for option, value in changes.items():
        if option.startswith("-"):
            command = with_option(command, option, str(value))
    return tuple(command)


def hook_settings(changes: Mapping[str, object]) -> dict[str, object]:
    """Return the changes that the hook makes."""
    return {name: value for name, value in changes.items() if name in HOOK_KNOBS}


def work_of(command: Sequence[str], changed: Sequence[str], knobs: Sequence[CommandKnob]) -> float:
    """Return the samples of a step of ``changed`` over those of ``command``."""
    ratio = 1.0
    for knob in knobs:
        before, after = present(command, knob.option), present(changed, knob.option)
        if knob.knob in PER_STEP and before and after and before != after:
            ratio *= float(after) / float(before)
    return ratio


def command_diff(command: Sequence[str], changes: Mapping[str, object]) -> tuple[str, ...]:
    """Return the options of the command that change, and the lines of code that the hook stood in for."""
    import shlex

    changed = command_of(command, changes)
    lines = [] if tuple(command) == changed else [f"- {shlex.join(command)}", f"+ {shlex.join(changed)}"]
    code = (CODE[name].format(value) for name, value in hook_settings(changes).items())
    return (*lines, *(f"+ {line}" for text in code for line in text.splitlines()))
