"""The options of ``stepscope comm`` as text, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from stepscope.config.sections import LaunchSettings
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.core.units import parse_duration_ns
from stepscope.matrix.comm_plan import (
    CommRequest,
    dtype_name,
    op_names,
    parse_env,
    parse_mode,
)
from stepscope.matrix.comm_sizes import parse_sizes
from stepscope.records.comm import CommKind, CommMeasure, Pacing

MOST_RANKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CommOptions:
    """Fields as the options of the command line, unparsed; its defaults."""

    ops: str = "all_reduce"
    sizes: str = "1K:64M:4"
    dtype: str = "fp32"
    reduce_op: str = "sum"
    ranks: str | None = None
    backend: str = "auto"
    device: str = "auto"
    mode: str = "blocking"
    in_place: str = "auto"
    pattern: str = "ring"
    root: int = 0
    pacing: str = "auto"
    warmup: str = "auto"
    iters: str = "auto"
    ci: float = 0.02
    budget: str = "5s"
    timeout: str = "120s"
    check: bool = True
    pairs: bool = False
    matmul: bool = False
    overlap: bool = False
    env: tuple[str, ...] = ()
    emulate_network: str | None = None
    nccl_debug: str | None = None
    threads: str = "auto"

    def request(self) -> CommRequest:
        """What to measure. Raises UsageError for the first option that makes no sense."""
        extra: tuple[tuple[CommKind, bool], ...] = (
            ("pairs", self.pairs),
            ("matmul", self.matmul),
            ("overlap", self.overlap),
        )
        nothing = self.ops.strip() == "none"
        if nothing and not any(wanted for _, wanted in extra):
            raise UsageError(
                "--ops none alone measures nothing",
                fix="add --pairs, --matmul or --overlap; --ops all has every collective",
            )
        for text in _listed(self.dtype):
            dtype_name(text)
        threads = _count("--threads", self.threads, least=1)
        return CommRequest(
            ops=() if nothing else op_names(self.ops),
            sizes_bytes=parse_sizes(self.sizes),
            dtypes=_listed(self.dtype),
            reduce_ops=_listed(self.reduce_op),
            places=_choice(
                "--in-place",
                self.in_place,
                {"auto": None, "no": (False,), "yes": (True,), "both": (False, True)},
            ),
            modes=tuple(dict.fromkeys(parse_mode(text) for text in _listed(self.mode))),
            patterns=_listed(self.pattern),
            root=self.root,
            pacing=_choice(
                "--pacing",
                self.pacing,
                cast(
                    dict[str, Pacing | None],
                    {"auto": None, "barrier": "barrier", "back-to-back": "back_to_back"},
                ),
            ),
            env=parse_env(self.env),
            network=self.emulate_network,
            threads_per_rank="auto" if threads is None else threads,
            extra=tuple(kind for kind, wanted in extra if wanted),
        )

    def launch(self) -> LaunchSettings:
        backend = _choice("--backend", self.backend, {name: name for name in ("auto", "gloo", "nccl")})
        device = _choice("--device", self.device, {name: name for name in ("auto", "cpu", "cuda")})
        return LaunchSettings(
            backend=cast(Literal["auto", "gloo", "nccl"], backend),
            device=cast(Literal["auto", "cpu", "cuda"], device),
        )

    def worlds(self) -> tuple[int, ...] | None:
        """World sizes asked for; None: whatever the machine has."""
        if self.ranks is None:
            return None
        worlds = []
        for text in _listed(self.ranks):
            if not text.isdigit() or not 1 <= int(text) <= MOST_RANKS:
                raise UsageError(f"--ranks {text!r} is not a number of ranks", fix="write --ranks 2,4,8")
            worlds.append(int(text))
        return tuple(dict.fromkeys(worlds))

    def measure(self) -> CommMeasure:
        return CommMeasure(
            warmup=_count("--warmup", self.warmup, least=0),
            iterations=_count("--iters", self.iters, least=1),
            ci_fraction=self.ci,
            budget_ns=_duration("--budget", self.budget),
            timeout_ns=_duration("--timeout", self.timeout),
            check=self.check,
            nccl_debug=None if self.nccl_debug is None else self.nccl_debug.replace("all", "").strip(),
        )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _choice(option: str, text: str, choices: dict[str, Any]) -> Any:
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise UsageError(unknown(f"value of {option}", text, choices)) from None


def _count(option: str, text: str, *, least: int) -> int | None:
    """The number; None for auto."""
    if text.strip() == "auto":
        return None
    if not text.strip().isdigit() or int(text) < least:
        raise UsageError(f"{option} {text!r} is neither auto nor a whole number of at least {least}")
    return int(text)


def _duration(option: str, text: str) -> int:
    try:
        duration = parse_duration_ns(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.what}", fix=error.fix) from None
    if duration <= 0:
        raise UsageError(f"{option} {text!r} is no time at all", fix="write 5s, 250ms or 2min")
    return duration
