"""A matrix on a real Slurm whose job is ended in the middle, and what is left of its cells when it has come back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.slurm.cluster import NODES, Cluster, statuses, wait_until

MATRIX = """\
version: 1
base: {{workload: mlp, model: {{size: tiny}}, dataset: synthetic, dataset_options: {{samples: 512}}, global_batch: 32,
       steps: {steps}, world_size: 2}}
axes: {{strategy: [ddp, naive], lr: [{rates}]}}
launch: {{threads_per_rank: 1}}
measure: {{warmup: 2, budget_s: 300, timeout_s: 300}}
"""
PATIENCE_S = 1200.0
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


@dataclass
class Watched:
    """Cell -> when each result of it was written that was ever seen: one each, or it was measured twice, or lost."""

    run: Path
    results: dict[str, set[str]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def look(self) -> int:
        """Look at the run folder; the number of finished cells."""
        found = {}
        for cell, status in statuses(self.run).items():
            if status["status"] == "ok":
                found[cell] = str(status["created"])
        for cell, created in found.items():
            self.results.setdefault(cell, set()).add(created)
        self.lost |= self.results.keys() - found.keys()
        return len(found)

    @property
    def twice(self) -> set[str]:
        return {cell for cell, created in self.results.items() if len(created) > 1}


@dataclass(frozen=True)
class Outcome:
    """What a job was like that was ended in the middle. before: finished cells at that moment. starts: of the job."""

    state: str
    cells: int
    before: int
    finished: int
    twice: frozenset[str]
    lost: frozenset[str]
    starts: int
    wall_s: float

    @property
    def exact(self) -> bool:
        """Every cell has its result, none was measured twice or lost, and the job was indeed begun again."""
        whole = self.state == "COMPLETED" and self.finished == self.cells
        return whole and not self.twice and not self.lost and self.starts > 1


def matrix(folder: Path, *, rates: int, steps: int) -> None:
    """Two cells for each of ``rates`` learning rates."""
    values = ", ".join(f"0.0{number}" for number in range(1, rates + 1))
    (folder / "mine.yaml").write_text(MATRIX.format(steps=steps, rates=values))


def submit(slurm: Cluster, folder: Path, *more: str) -> str:
    """The job of ``mine.yaml`` on both nodes."""
    line = ["-m", "stepscope.cli", "slurm", "mine.yaml", "--ranks-per-node", "1", "-o", "jobs", *more]
    done = slurm.run(sys.executable, *line, cwd=folder)
    assert done.returncode == 0, done.stderr
    return slurm.ask("sbatch", "--parsable", str(folder / "jobs" / "mine.sbatch"))


def ended_in_the_middle(
    slurm: Cluster, folder: Path, fault: Callable[[Cluster, str], None], *, time_: str, after: int
) -> Outcome:
    """Submit the job, do ``fault`` to it once ``after`` cells are finished, and follow it to its end."""
    began = time.monotonic()
    job = submit(slurm, folder, "--time", time_, "--warn", "15")
    watched = Watched(folder / "jobs" / "run")
    cells = 2 * (folder / "mine.yaml").read_text().count("0.0") or 1
    wait_until(lambda: watched.look() >= after or slurm.state(job) in OVER, f"{after} finished cells", PATIENCE_S)
    before = watched.look()
    if slurm.state(job) not in OVER:
        fault(slurm, job)

    hastened: set[str] = set()

    def over() -> bool:
        watched.look()
        state = slurm.state(job)
        starts = slurm.fact(job, "Restarts")
        if state == "PENDING" and starts not in hastened:  # Slurm waits two minutes before it starts a job again
            hastened.add(starts)
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+5")
        return state in OVER

    wait_until(over, f"the end of job {job}", PATIENCE_S)
    finished = watched.look()
    return Outcome(
        state=slurm.state(job), cells=cells, before=before, finished=finished, twice=frozenset(watched.twice),
        lost=frozenset(watched.lost), starts=1 + int(slurm.fact(job, "Restarts") or 0), wall_s=time.monotonic() - began,
    )  # fmt: skip


def limit(slurm: Cluster, job: str) -> None:
    """Nothing: the job's own time limit comes."""
    wait_until(
        lambda: int(slurm.fact(job, "Restarts") or 0) > 0 or slurm.state(job) in OVER, "the time limit", PATIENCE_S
    )


def node_failure(slurm: Cluster, job: str, *, node: str = NODES[1]) -> None:
    """A node is gone with all that runs on it; Slurm finds out by itself. It comes back when the job has left it."""
    slurm.kill_node(node)
    wait_until(
        lambda: slurm.state(job) != "RUNNING" or int(slurm.fact(job, "Restarts") or 0) > 0,
        "Slurm to see it",
        PATIENCE_S,
    )
    slurm.start_node(node)
    slurm.run("scontrol", "update", f"nodename={node}", "state=resume")


def head_failure(slurm: Cluster, job: str) -> None:
    """The same of the node that has the script and rank 0."""
    node_failure(slurm, job, node=NODES[0])


def preemption(slurm: Cluster, job: str) -> None:
    """A job of a partition that comes first takes both nodes."""
    urgent = slurm.ask(
        "sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "srun sleep 1"
    )
    slurm.wait(urgent, "COMPLETED", patience_s=120)
    assert int(slurm.fact(job, "Restarts") or 0) > 0, "it was not preempted"


FAULTS: dict[str, Callable[[Cluster, str], None]] = {
    "time limit": limit,
    "node failure": node_failure,
    "node failure, rank 0": head_failure,
    "preemption": preemption,
}
