"""What the options of ``stepscope comm`` mean: from text to sweeps, launch and measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from stepscope.cli.command import given, spelled
from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.config.sections import LaunchSettings
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.core.units import parse_duration_ns
from stepscope.matrix.comm_plan import CommRequest, dtype_name, op_names, parse_env, parse_mode
from stepscope.matrix.comm_sizes import parse_sizes
from stepscope.records.comm import CommKind, CommMeasure, Pacing

if TYPE_CHECKING:
    from stepscope.cli.commands.comm import Comm

MOST_RANKS = 4096


def request(options: Comm) -> CommRequest:
    """What to measure. Raises UsageError for the first option that makes no sense."""
    extra: tuple[tuple[CommKind, bool], ...] = (
        ("pairs", options.pairs),
        ("matmul", options.matmul),
        ("overlap", options.overlap),
    )
    nothing = options.ops.strip() == "none"
    if nothing and not any(wanted for _, wanted in extra):
        raise UsageError(
            "--ops none alone measures nothing",
            fix="add --pairs, --matmul or --overlap; --ops all has every collective",
        )
    for text in _listed(options.dtype):
        dtype_name(text)
    threads = _count("--threads", options.threads, least=1)
    ops = () if nothing else op_names(options.ops)
    _refuse_without_use(options, ops)
    return CommRequest(
        ops=ops,
        sizes_bytes=parse_sizes(options.sizes),
        dtypes=_listed(options.dtype),
        reduce_ops=_listed(options.reduce_op),
        places=_choice(
            "--in-place",
            options.in_place,
            {"auto": None, "no": (False,), "yes": (True,), "both": (False, True)},
        ),
        modes=tuple(dict.fromkeys(parse_mode(text) for text in _listed(options.mode))),
        patterns=_listed(options.pattern),
        root=options.root,
        pacing=_choice(
            "--pacing",
            options.pacing,
            cast(
                dict[str, Pacing | None],
                {"auto": None, "barrier": "barrier", "back-to-back": "back_to_back"},
            ),
        ),
        env=parse_env(options.env),
        network=options.emulate_network,
        threads_per_rank="auto" if threads is None else threads,
        extra=tuple(kind for kind, wanted in extra if wanted),
    )


def _refuse_without_use(options: Comm, ops: tuple[str, ...]) -> None:
    """Raises UsageError for an option that no collective asked for has a use of."""
    specs = [COLLECTIVES.load(op) for op in ops]
    named = ", ".join(ops) or "none"
    uses = {
        "root": (any(spec.rooted for spec in specs), f"none of {named} has a root"),
        "pattern": (any(spec.patterns for spec in specs), f"only send_recv has patterns, not {named}"),
        "reduce_op": (any(spec.reduces for spec in specs), f"none of {named} reduces"),
        "ci": (options.iters.strip() == "auto", "--iters says how many calls are timed"),
        **{name: (bool(ops), "--ops none calls no collective") for name in ("mode", "in_place", "overlap")},
    }
    for name in given(options):
        used, why = uses.get(name, (True, ""))
        if not used:
            raise UsageError(f"{spelled(type(options), name)} has no effect: {why}")


def launch(options: Comm) -> LaunchSettings:
    backend = _choice("--backend", options.backend, {name: name for name in ("auto", "gloo", "nccl")})
    device = _choice("--device", options.device, {name: name for name in ("auto", "cpu", "cuda")})
    return LaunchSettings(
        backend=cast(Literal["auto", "gloo", "nccl"], backend),
        device=cast(Literal["auto", "cpu", "cuda"], device),
    )


def worlds(options: Comm) -> tuple[int, ...] | None:
    """World sizes asked for; None: whatever the machine has."""
    if options.ranks is None:
        return None
    worlds = []
    for text in _listed(options.ranks):
        if not text.isdigit() or not 1 <= int(text) <= MOST_RANKS:
            raise UsageError(f"--ranks {text!r} is not a number of ranks", fix="write --ranks 2,4,8")
        worlds.append(int(text))
    return tuple(dict.fromkeys(worlds))


def measure(options: Comm) -> CommMeasure:
    return CommMeasure(
        warmup=_count("--warmup", options.warmup, least=0),
        iterations=_count("--iters", options.iters, least=1),
        ci_fraction=options.ci,
        budget_ns=_duration("--budget", options.budget),
        timeout_ns=_duration("--timeout", options.timeout),
        check=options.check,
        nccl_debug=None if options.nccl_debug is None else options.nccl_debug.replace("all", "").strip(),
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
        raise UsageError(f"{option} {text!r} is not a duration above 0", fix="write 5s, 250ms or 2min")
    return duration
