"""What worker processes of a data loader can hide: one answer for the stake of a verdict and the prediction of `tune`.

A step with workers is as long as the longest of three: the rest of the step, the loading of a batch shared by the workers,
and the CPU time of a rank and its workers on the processors that they may use. The last makes workers on busy processors
worth nothing; loading that sleeps or reads takes no processor. What workers cost beyond loading (they send each batch to the
rank) is left out.
"""

from __future__ import annotations

from stepscope.core.dataclass import record

LEFT = 0.02
"""Of the wait for data: taking a batch that is there from a queue."""

AT_LEAST = 1.1
"""Times as fast: less is what workers cost themselves where processors are scarce."""

MOST_WORKERS = 8
"""Looked at."""


@record
class Loading:
    """A rank's mean step: step_ns, of which wait_ns in ``next()`` of the loader, ns. workers: how many it has.

    used_ns: CPU time of the rank and its workers in a step; cores: processors for them, what others use taken off. None: not
    known, and then nothing bounds the gain but the waits.
    """

    step_ns: float
    wait_ns: float
    workers: int = 0
    used_ns: float | None = None
    cores: float | None = None

    @property
    def rest_ns(self) -> float:
        return max(0.0, self.step_ns - self.wait_ns)

    @property
    def batch_ns(self) -> float:
        """Time that one worker takes for a batch, ns: workers that a rank waits for are never idle."""
        return self.wait_ns if self.workers == 0 else self.step_ns * self.workers

    @property
    def busy_ns(self) -> float:
        """The shortest step that the processors allow, however the work is shared among processes."""
        if self.used_ns is None or not self.cores:
            return 0.0
        return min(self.step_ns, self.used_ns / self.cores)


def step_with_workers(loading: Loading, workers: int) -> float:
    """Return a step's ns; it is never longer than without more workers, never shorter than what has to be done in it."""
    if workers <= loading.workers:
        return loading.step_ns
    waits = max(LEFT * loading.wait_ns, loading.batch_ns / workers - loading.rest_ns)
    return max(loading.rest_ns + min(waits, loading.wait_ns), loading.busy_ns)


def hidden_share(loading: Loading, workers: int) -> float:
    """Return the share of the step that ``workers`` take away."""
    return 1 - step_with_workers(loading, workers) / loading.step_ns if loading.step_ns > 0 else 0.0


def fewest_workers(loading: Loading) -> int | None:
    """Return the fewest workers that bring nearly all that any number can; None: none makes the job ``AT_LEAST`` as fast."""
    steps = {workers: step_with_workers(loading, workers) for workers in range(1, MOST_WORKERS + 1)}
    best = min(steps.values())
    if best <= 0 or loading.step_ns / best < AT_LEAST:
        return None
    return next(workers for workers, step in steps.items() if step <= best * AT_LEAST)
