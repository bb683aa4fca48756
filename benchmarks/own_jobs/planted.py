"""The planted jobs: how each is started, what is true of it, what may be said of it and what cannot apply."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Literal

from stepscope.core.dataclass import dataclass
from stepscope.records.finding import VerdictKind

JOBS = Path(__file__).parent / "jobs"
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")),)

NO_DEVICE = (r"pin_memory", r"on the device", r"\bGPUs?\b", r"\bNCCL\b")
"""Advice that no job on CPU over gloo can follow."""
LATER = (r"--wait", r"train for more steps", r"start the window earlier", r"made a step")
"""Advice for a window that was missed: no help to a job that ended early or failed."""
HIDING = (r"overlap(ping)? (could|can) hide", r"bucket_cap_mb", r"find_unused_parameters", r"static_graph")
"""Advice for DDP's reducer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A job with a known truth.

    script, arguments: stem of its file in jobs/, and what it is given. torchrun: ranks that it starts; 0: plain python.
    shape: how it trains. verdicts: kinds that are right as the first; ranks: those that the first verdict has to name.
    of: what the stake is a share of. every: of wall, steps from one planted event to the next, each before the end of its
    step. without: arguments that take the fault out (--alternate: of every second block of steps), each one honest way to
    say what it costs (the truth reaches from the least to the most of them). Neither: no stake is graded.
    may_cost, may_say: further kinds among the costs, and rules among warnings and problems, that are true of this job.
    must_not_say: patterns of what cannot apply. needs: modules of frameworks. options: of `stepscope profile`.
    """

    name: str
    shape: str
    verdicts: tuple[VerdictKind, ...]
    script: str = ""
    arguments: tuple[str, ...] = ()
    torchrun: int = 2
    ranks: tuple[int, ...] = ()
    of: Literal["step", "wall"] = "step"
    every: int = 0
    without: tuple[str, ...] = ()
    may_cost: tuple[VerdictKind, ...] = ()
    may_say: tuple[str, ...] = ()
    must_not_say: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    timeout_s: float = 240.0

    def command(self, *arguments: str) -> list[str]:
        """As a user types it."""
        start = (
            [*TORCHRUN, "--standalone", "--nproc-per-node", str(self.torchrun)] if self.torchrun else [sys.executable]
        )
        return [*start, str(JOBS / f"{self.script or self.name}.py"), *self.arguments, *arguments]

    @property
    def clean(self) -> bool:
        """Nothing is planted."""
        return self.name.startswith("clean")

    def missing(self, frameworks: Path | None) -> str | None:
        """Why it cannot run here. frameworks: folder of further modules, installed with pip's --target."""
        for module in self.needs:
            if importlib.util.find_spec(module) is None and not (frameworks and (frameworks / module).is_dir()):
                return f"{module} is not installed (OWN_JOBS_FRAMEWORKS names a folder that has it)"
        return None


def frameworks_folder() -> Path | None:
    """Frameworks that are no dependency of ours lie here, where somebody has put them."""
    named = os.environ.get("OWN_JOBS_FRAMEWORKS")
    return Path(named) if named else None


BASE: tuple[VerdictKind, ...] = ("compute-bound", "computation-or-python", "undecided")
LATE: tuple[VerdictKind, ...] = ("straggler", "uneven-work")
STRAGGLER = ("straggler", "exposed-communication", "communication-bound")
FAILED = LATER + NO_DEVICE

PLANTED: tuple[Planted, ...] = (
    # Waiting for data.
    Planted(
        name="slow_loader", shape="single", torchrun=0, verdicts=("input-bound",), without=("--alternate",),
        may_say=("data-loading", "long-gap"),
    ),
    Planted(
        name="few_workers", shape="DDP", verdicts=("input-bound",), without=("--clean", "--alternate"),
        may_say=("data-loading", "long-gap"), must_not_say=(r"num_workers=1\b",),
    ),
    Planted(
        name="generator_loader", shape="single", torchrun=0, verdicts=("before-forward",), without=("--alternate",),
        may_say=("data-loading", "long-gap", "python-overhead"), must_not_say=(r"num_workers=\d", r"persistent_workers"),
    ),
    Planted(
        name="python_before", shape="single", torchrun=0, verdicts=("before-forward",), without=("--alternate",),
        may_say=("python-overhead", "long-gap"), must_not_say=(r"num_workers=\d",),
    ),
    # Forward passes that train nothing, and workers of an epoch.
    Planted(name="rollouts", shape="single, RL", torchrun=0, verdicts=("inference",), must_not_say=(r"evaluate",)),
    Planted(
        name="rollouts_each", script="rollouts", arguments=("--each",), shape="single, RL", torchrun=0,
        verdicts=("inference",), must_not_say=(r"evaluate", r"DataLoader"),
    ),
    Planted(
        name="teacher", shape="single, distillation", torchrun=0, verdicts=("inference",),
        must_not_say=(r"evaluate", r"DataLoader"),
    ),
    Planted(
        name="epoch_workers", shape="single", torchrun=0, verdicts=("worker-start",), of="wall",
        may_cost=("input-bound",), may_say=("data-loading", "long-gap"), must_not_say=(r"num_workers=\d",),
    ),
    # A late rank.
    Planted(name="late_rank", shape="DDP", verdicts=LATE, ranks=(1,), without=("--alternate",), may_say=STRAGGLER),
    Planted(name="slow_rank_of_2", shape="DDP", verdicts=LATE, ranks=(1,), without=("--alternate",), may_say=STRAGGLER),
    Planted(
        name="slow_rank_of_4", shape="DDP, 4 ranks", torchrun=4, verdicts=LATE, ranks=(2,), without=("--alternate",),
        may_say=(*STRAGGLER, "oversubscription"),
    ),
    Planted(name="slow_backward", shape="DDP", verdicts=LATE, ranks=(0,), without=("--alternate",), may_say=STRAGGLER),
    Planted(name="uneven_lengths", shape="DDP", verdicts=LATE, ranks=(1,), without=("--alternate",), may_say=STRAGGLER),
    # Nothing planted.
    Planted(name="clean_single", shape="single", torchrun=0, verdicts=BASE),
    Planted(name="clean_ddp", shape="DDP", verdicts=BASE),
    Planted(name="clean_ddp_4", shape="DDP, 4 ranks", torchrun=4, verdicts=BASE, may_say=("oversubscription",)),
    Planted(name="clean_fixed", script="late_rank", arguments=("--clean",), shape="DDP", verdicts=BASE),
    Planted(
        name="clean_fsdp2", shape="FSDP2", verdicts=(*BASE, "communication-bound"), may_say=("exposed-communication",),
        must_not_say=HIDING,
    ),
    Planted(
        name="clean_tp", shape="tensor parallel", verdicts=(*BASE, "communication-bound", "host-bound"),
        may_say=("exposed-communication", "python-overhead"), must_not_say=(*HIDING, r"on one host"),
    ),
    Planted(
        name="clean_sp", shape="sequence parallel", verdicts=(*BASE, "communication-bound", "host-bound"),
        may_say=("exposed-communication", "python-overhead"), must_not_say=(*HIDING, r"on one host"),
    ),
    Planted(
        name="clean_compile", shape="torch.compile", torchrun=0, verdicts=(*BASE, "compilation", "set-up"),
        must_not_say=(r"torch\.compile\(", r"compile the model"),
    ),
    Planted(
        name="clean_hf_trainer", shape="HF Trainer, DDP", verdicts=BASE, needs=("transformers", "accelerate"),
        must_not_say=(r"Trainer\(strategy", r"lightning"),
    ),
    Planted(
        name="clean_lightning", shape="Lightning, DDP", verdicts=BASE, needs=("lightning",),
        must_not_say=(r"TrainingArguments", r"--\w*torch_compile", r"dataloader_num_workers"),
    ),
    Planted(name="clean_gan", script="gan", shape="two optimizers", torchrun=0, verdicts=BASE),
    # Events between steps.
    Planted(name="evaluation", shape="DDP", verdicts=("evaluation",), of="wall", every=25),
    Planted(name="checkpoint", shape="DDP", verdicts=("checkpointing",), of="wall", every=20),
    Planted(name="garbage", shape="DDP", verdicts=("garbage-collection",), ranks=(1,), of="wall", every=15),
    # Communication.
    Planted(
        name="fsdp2_small_units", shape="FSDP2", verdicts=("communication-bound",), without=("--clean", "--alone"),
        may_cost=("host-bound",),
        may_say=("fsdp-small-units", "fsdp-regathers", "exposed-communication", "communication-bound"),
        must_not_say=(r"bucket_cap_mb", r"no_sync"),
    ),
    Planted(
        name="naive_reduction", shape="own all-reduce", verdicts=("communication-bound",), without=("--clean", "--alone"),
        may_say=("naive-synchronisation", "exposed-communication", "communication-bound"),
        must_not_say=(r"tensor[- ]parallel", r"bucket_cap_mb"),
    ),
    Planted(
        name="tiny_allreduces", shape="DDP", verdicts=("communication-bound",), without=("--alternate",),
        may_say=("exposed-communication", "small-kernels", "communication-bound", "bucket-size", "naive-synchronisation"),
        must_not_say=(r"tensor[- ]parallel",),
    ),
    Planted(
        name="no_no_sync", shape="DDP, accumulation", verdicts=("communication-bound",), without=("--alternate", "--alone"),
        may_say=("gradient-sync-each-micro-step", "exposed-communication", "communication-bound", "exposed-tail-bucket"),
    ),
    Planted(
        name="pipeline", shape="pipeline, 2 stages", verdicts=("pipeline-bubble",), without=("--alone",),
        may_say=("pipeline-bubble", "pipeline-imbalance"), must_not_say=(*HIDING, r"overlap"),
    ),
    # Host and memory.
    Planted(
        name="python_bound", shape="single", torchrun=0, verdicts=("host-bound",), may_cost=("garbage-collection",),
        may_say=("python-overhead", "small-kernels", "launch-bound"),
    ),
    Planted(
        name="big_optimizer", shape="single", torchrun=0, verdicts=("optimizer-bound", "memory-bound"), without=("--clean",),
        may_cost=("optimizer-bound", "memory-bound"), may_say=("optimizer-heavy", "memory-bandwidth-bound"),
    ),
    # Ends.
    Planted(name="crash", shape="DDP", verdicts=("crash",), ranks=(1,), must_not_say=FAILED),
    Planted(name="exit_1", shape="DDP", verdicts=("crash",), ranks=(0,), must_not_say=FAILED),
    Planted(
        name="hang", shape="DDP", verdicts=("hang",), ranks=(1,), must_not_say=FAILED, options=("--hang-after", "15"),
        may_say=("hang",),
    ),
    Planted(name="killed", shape="DDP", verdicts=("killed",), ranks=(1,), must_not_say=FAILED),
    Planted(name="import_error", shape="2 ranks", verdicts=("crash",), must_not_say=(*FAILED, r"optimizer", r"window")),
    Planted(name="three_steps", shape="single", torchrun=0, verdicts=BASE, may_cost=("set-up",), must_not_say=LATER),
    # Jobs that are hard to record.
    Planted(
        name="own_profiler", shape="single", torchrun=0, verdicts=("input-bound",), without=("--alternate",),
        may_say=("data-loading", "long-gap"), must_not_say=LATER,
    ),
    Planted(
        name="forgot_ddp", shape="2 ranks, no group", verdicts=("independent-processes",),
        must_not_say=(r"no_sync", r"the capture covers"),
        may_say=("no-communication",),
    ),
    Planted(
        name="two_trainings", shape="2 processes", torchrun=0, verdicts=("independent-processes",),
        may_say=("no-communication",),
    ),
)  # fmt: skip
"""Every job, in the order of the table."""
