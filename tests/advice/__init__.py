"""For every change that a verdict or a rule on traces can advise a CPU job: a small job, and the advice applied to it.

``TRIALS`` has the trials by key of ``diagnose.advised.ADVICE``; ``NOT_HERE`` the keys that no CPU can try, each by the
condition that keeps them from jobs on one host of CPUs. ``tests/unit/diagnose/test_advice_applied.py`` holds both against
the code, ``benchmarks/advice.py`` measures.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.diagnose.advised import ADVICE, Condition

JOBS = Path(__file__).parent / "jobs"

Edit = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """job: a script of ``JOBS``. planted: edits that give it what is advised against; edits, environ, ranks: the advice.

    name: tells trials of one key apart. timed: whether the advice is meant to make a step faster. quick: seconds; others are
    long. torchrun: the advice is to start it so.
    """

    key: str
    job: str
    name: str = ""
    planted: tuple[Edit, ...] = ()
    edits: tuple[Edit, ...] = ()
    before: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 2
    ranks_after: int | None = None
    timed: bool = True
    quick: bool = False
    torchrun: bool = False

    @property
    def id(self) -> str:
        return f"{self.key}: {self.name}" if self.name else self.key

    def script(self, *, applied: bool) -> str:
        """Its text, without the advice or with it. Raises ValueError for an edit of what is not there."""
        text = (JOBS / f"{self.job}.py").read_text()
        for old, new in (*self.planted, *(self.edits if applied else ())):
            if old not in text:
                raise ValueError(f"{self.id}: {self.job}.py has no {old!r}")
            text = text.replace(old, new)
        return text

    def commands(self, folder: Path, *, applied: bool) -> list[tuple[list[str], dict[str, str]]]:
        """Of the processes of the job in ``folder``, which gets its script: words and environment."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(JOBS / "clock.py", folder)
        text = self.script(applied=applied)
        (folder / "job.py").write_text(text if self.torchrun else _joined_by_file(text, folder))
        ranks = (self.ranks_after or self.ranks) if applied else self.ranks
        kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        kept |= {"OMP_NUM_THREADS": "1", **self.before, **(self.environ if applied else {})}
        words = [sys.executable, "-u", str(folder / "job.py")]
        if self.torchrun and applied:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            return [([sys.executable, *launcher, words[-1]], kept)]
        of_rank = [{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        return [(words, kept if self.torchrun else kept | each) for each in of_rank]


LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

_JOINS = 'dist.init_process_group("gloo")'


def _joined_by_file(text: str, folder: Path) -> str:
    """The script with a rendezvous that no other job can meet: a port that is free now may be another's next."""
    variables = "rank=int(os.environ['RANK']), world_size=int(os.environ['WORLD_SIZE'])"
    joins = f'import os; dist.init_process_group("gloo", init_method="file://{folder}/ranks", {variables})'
    return text.replace(_JOINS, joins)


def told(output: str) -> dict[str, Any]:
    """What rank 0 said at the end: ms, loss, steps. Raises ValueError where it did not, or its loss is not finite."""
    lines = [line for line in output.splitlines() if line.startswith('{"ms"')]
    if not lines:
        raise ValueError(f"the job told no time: {output[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    if not math.isfinite(found["loss"]):
        raise ValueError(f"its loss is {found['loss']}")
    return found


_DECODES = (
    "    time.sleep(0.001)\n",
    "    value = 0\n    for each in range(12_000):\n        value += each\n",
)
_WORKERS = ("DataLoader(Samples(), batch_size=BATCH)", "DataLoader(Samples(), batch_size=BATCH, num_workers=1)")
_SAVES = (
    "    clock.step(loss)\n",
    "    if step % EVERY == 0:\n"
    "        torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, folder + '/state.pt')\n"
    "    clock.step(loss)\n",
)
_FOLDER = ("clock = Clock", "folder = tempfile.mkdtemp()\nclock = Clock")
_LARGE = ("WIDTH, DEPTH, BATCH = 128, 12, 16", "WIDTH, DEPTH, BATCH = 768, 6, 64")
_GARBAGE = (
    ("clock = Clock", "objects = [[each] for each in range(400_000)]\nclock = Clock"),
    ("    loss.backward()\n", "    loss.backward()\n    passing = [[each] for each in range(30_000)]\n"),
)
_COMPILED = ("optimizer = torch.optim", "model = torch.compile(model)\noptimizer = torch.optim")

TRIALS: Sequence[Trial] = (
    # data
    Trial(
        key="loader workers", job="loader", quick=True,
        edits=((_WORKERS[0], "DataLoader(Samples(), batch_size=BATCH, num_workers=2, persistent_workers=True)"),),
    ),
    Trial(
        key="keep workers", job="loader",
        planted=(_WORKERS,), edits=(("num_workers=1)", "num_workers=1, persistent_workers=True)"),),
    ),
    Trial(
        key="cheaper loading", job="loader", quick=True,
        planted=(_DECODES,),
        edits=(("def decode", "@functools.cache\ndef decode"), ("import time\n", "import functools\nimport time\n")),
    ),
    Trial(
        key="loader", job="by_hand",
        edits=(
            ("for number in range(STEPS):\n    batch = prepare(number)\n",
             "for batch in DataLoader(Batches(), batch_size=None, num_workers=2):\n"),
        ),
    ),
    Trial(
        key="shares of the data", job="loader",
        planted=(("clock.step(loss)", "clock.step(loss, 2 if hasattr(loader.sampler, 'num_replicas') else 1)"),),
        edits=((_WORKERS[0], "DataLoader(Samples(), batch_size=BATCH, sampler=DistributedSampler(Samples()))"),),
    ),
    # communication of replicas
    Trial(
        key="wrap in ddp", job="naive", quick=True,
        edits=(
            ("model = nn.Sequential(*layers)", "model = DDP(nn.Sequential(*layers))"),
            ("    for parameter in model.parameters():\n        dist.all_reduce(parameter.grad)\n"
             "        parameter.grad /= world\n", ""),
        ),
    ),
    Trial(
        key="async reductions", job="naive",
        edits=(
            ("    for parameter in model.parameters():\n        dist.all_reduce(parameter.grad)\n"
             "        parameter.grad /= world\n",
             "    sent = [dist.all_reduce(each.grad, async_op=True) for each in model.parameters()]\n"
             "    for each in sent:\n        each.wait()\n"
             "    for parameter in model.parameters():\n        parameter.grad /= world\n"),
        ),
    ),
    Trial(
        key="larger messages", job="naive",
        edits=(
            ("    for parameter in model.parameters():\n        dist.all_reduce(parameter.grad)\n"
             "        parameter.grad /= world\n",
             "    flat = nn.utils.parameters_to_vector([each.grad for each in model.parameters()]) / world\n"
             "    dist.all_reduce(flat)\n"
             "    for parameter, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):\n"
             "        parameter.grad.copy_(part.view_as(parameter))\n"),
        ),
    ),
    Trial(
        key="accumulate", job="ddp", name="DDP", quick=True,
        planted=(("MICRO_STEPS = 256, 8, 16, 1", "MICRO_STEPS = 768, 6, 4, 4"),),
        edits=(
            ("        loss = model(torch.randn(BATCH, WIDTH)).square().mean()\n        loss.backward()\n",
             "        with contextlib.nullcontext() if _micro == MICRO_STEPS - 1 else model.no_sync():\n"
             "            loss = model(torch.randn(BATCH, WIDTH)).square().mean()\n            loss.backward()\n"),
            ("import torch\nimport", "import contextlib\n\nimport torch\nimport"),
        ),
    ),
    Trial(
        key="accumulate", job="sharded", name="FSDP2",
        planted=(("TOKENS, MICRO_STEPS = 64, 8, 2000, 1", "TOKENS, MICRO_STEPS = 64, 8, 2000, 3"),),
        edits=(
            ("        loss = model(",
             "        model.set_requires_gradient_sync(_micro == MICRO_STEPS - 1)\n        loss = model("),
        ),
    ),
    Trial(
        key="bucket size", job="ddp",
        planted=(("WIDTH, DEPTH, BATCH, MICRO_STEPS = 256, 8, 16, 1", "WIDTH, DEPTH, BATCH, MICRO_STEPS = 768, 6, 64, 1"),),
        edits=(("nn.Sequential(*layers))", "nn.Sequential(*layers), bucket_cap_mb=4)"),),
    ),
    Trial(key="larger micro-batch", job="ddp", edits=(("256, 8, 16, 1", "256, 8, 32, 1"),)),
    # sharded models
    Trial(
        key="larger units", job="sharded",
        edits=(
            ("for block in model.blocks:\n    fully_shard(block)\n",
             "for first in range(0, DEPTH, 4):\n    fully_shard([*model.blocks[first : first + 4]])\n"),
        ),
    ),
    Trial(
        key="keep gathered", job="sharded",
        edits=(("fully_shard(block)", "fully_shard(block, reshard_after_forward=False)"),),
    ),
    # split layers
    Trial(
        key="smaller tensor group", job="tensor",
        edits=(
            ("parallelize_module(model, init_device_mesh(\"cpu\", (world,)), plan)", "DistributedDataParallel(model)"),
            ("clock.step(loss)", "clock.step(loss, world)"),
        ),
    ),
    # pipelines
    Trial(key="balance stages", job="stages", planted=(("(6, 6)", "(10, 2)"),), edits=(("(10, 2)", "(6, 6)"),)),
    # computation
    Trial(key="compile", job="single", ranks=1, edits=(_COMPILED, ("Clock(mean=True)", "Clock()"))),
    Trial(
        key="fused optimizer", job="single", ranks=1, quick=True,
        planted=(("WIDTH, DEPTH, BATCH = 128, 12, 16", "WIDTH, DEPTH, BATCH = 128, 60, 4"),),
        edits=(("lr=1e-3)", "lr=1e-3, fused=True)"),),
    ),
    Trial(
        key="less python", job="single", ranks=1,
        planted=(
            ("    clock.step(loss)\n",
             "    norms = {name: float(each.norm()) for name, each in model.named_parameters()}\n    clock.step(loss)\n"),
        ),
        edits=(("    norms = {", "    if step % 10 == 0:\n        norms = {"),),
    ),
    # events and ranks
    Trial(
        key="even work", job="ddp",
        planted=(("torch.randn(BATCH, WIDTH)", "torch.randn((8, 120)[(_step + dist.get_rank()) % 2], WIDTH)"),),
        edits=(("(8, 120)[(_step + dist.get_rank()) % 2]", "(8, 120)[_step % 2]"),),
    ),
    Trial(
        key="inference mode", job="single", ranks=1, quick=True,
        planted=(
            ("    clock.step(loss)\n",
             "    with torch.no_grad():\n        for _ in range(16):\n            model(torch.randn(1, WIDTH))\n"
             "    clock.step(loss)\n"),
        ),
        edits=(
            ("    with torch.no_grad():\n        for _ in range(16):\n            model(torch.randn(1, WIDTH))\n",
             "    with torch.inference_mode():\n        model(torch.randn(16, WIDTH))\n"),
        ),
    ),
    Trial(
        key="rare evaluation", job="single", ranks=1, quick=True,
        planted=(
            ("    clock.step(loss)\n",
             "    if step % EVERY == 0:\n        with torch.no_grad():\n            for _ in range(20):\n"
             "                model(torch.randn(BATCH, WIDTH))\n    clock.step(loss)\n"),
        ),
        edits=(("EVERY = 5", "EVERY = 20"),),
    ),
    Trial(
        key="async checkpoint", job="single", ranks=1, planted=(_LARGE, _FOLDER, _SAVES),
        edits=(
            (_SAVES[1].splitlines(keepends=True)[1],
             "        saved.result() if saved else None\n"
             "        saved = dcp.async_save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()},\n"
             "                               checkpoint_id=f'{folder}/{step}', no_dist=True)\n"),
            ("clock = Clock", "saved = None\nclock = Clock"),
            ("clock.tell()", "saved.result()\nclock.tell()"),
        ),
    ),
    Trial(
        key="rare checkpoint", job="single", ranks=1, planted=(_LARGE, _FOLDER, _SAVES), edits=(("EVERY = 5", "EVERY = 20"),)
    ),
    Trial(
        key="freeze garbage", job="single", ranks=1, planted=_GARBAGE,
        edits=(("clock = Clock", "gc.collect()\ngc.freeze()\nclock = Clock"),),
    ),
    Trial(
        key="rare collections", job="single", ranks=1, planted=_GARBAGE,
        edits=(
            ("clock = Clock", "gc.disable()\nclock = Clock"),
            ("    optimizer.step()\n", "    if step % 20 == 0:\n        gc.collect()\n    optimizer.step()\n"),
        ),
    ),
    Trial(
        key="static shapes", job="single", ranks=1,
        planted=(
            ("optimizer = torch.optim", "model = torch.compile(model, dynamic=False)\noptimizer = torch.optim"),
            ("torch.randn(BATCH, WIDTH)", "torch.randn(BATCH + step // 10, WIDTH)"),
            ("128, 12, 16", "128, 2, 16"),
        ),
        edits=(("dynamic=False", "dynamic=True"),),
    ),
    Trial(
        key="fewer threads", job="ddp", before={"OMP_NUM_THREADS": "2"}, environ={"OMP_NUM_THREADS": "1"},
        planted=(("256, 8, 16, 1", "512, 6, 64, 1"),),
    ),
    Trial(
        key="fewer threads", job="ddp", name="in the script",
        planted=(
            ("256, 8, 16, 1", "512, 6, 64, 1"),
            ("torch.manual_seed(0)", "torch.set_num_threads(2)\ntorch.manual_seed(0)"),
        ),
        edits=(("torch.set_num_threads(2)", "torch.set_num_threads(1)"),),
    ),
    Trial(
        key="fewer ranks", job="ddp", ranks=4, ranks_after=2,
        planted=(("clock.step(loss, BATCH * MICRO_STEPS)", "clock.step(loss, BATCH * dist.get_world_size())"),),
    ),
    Trial(
        key="torchrun", job="ddp", torchrun=True, timed=False,
        planted=(
            ('dist.init_process_group("gloo")\nrank, world = dist.get_rank(), dist.get_world_size()\n', ""),
            ("DistributedDataParallel(nn.Sequential(*layers))", "nn.Sequential(*layers)"),
        ),
        edits=(
            ("WIDTH, DEPTH", 'dist.init_process_group("gloo")\nWIDTH, DEPTH'),
            ("nn.Sequential(*layers)", "DistributedDataParallel(nn.Sequential(*layers))"),
        ),
    ),
)  # fmt: skip
"""Of one key several, where it is said in several ways."""

KEEPS_AWAY: tuple[Condition, ...] = ("gpu", "nccl", "several hosts", "pageable batches")
"""Conditions that no job on CPUs of one host meets."""

NOT_HERE = frozenset(key for key, needs in ADVICE.items() if set(needs) & set(KEEPS_AWAY))

Popen = Callable[..., subprocess.Popen[Any]]


def run(trial: Trial, folder: Path, popen: Popen, *, applied: bool, steps: int | None = None) -> dict[str, Any]:
    """What the job tells. popen: forks of a process that has imported torch, where the environment of torch is none of the
    advice. Raises ValueError where it fails."""
    more = {} if steps is None else {"ADVICE_STEPS": str(steps)}
    start = subprocess.Popen if trial.before or trial.environ or trial.torchrun else popen
    ranks = []
    with (folder.parent / f"{folder.name}.log").open("w+") as log:
        for words, environ in trial.commands(folder, applied=applied):
            ranks.append(start(words, env={**environ, **more}, cwd=folder, stdout=log, stderr=subprocess.STDOUT))
        try:
            codes = [rank.wait(TIMEOUT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        log.seek(0)
        output = log.read()
    if any(codes):
        raise ValueError(f"{trial.id}: exit codes {codes}: {output[-3000:]}")
    return told(output)


TIMEOUT_S = 240
