"""Where figures of a job's diary can go: one file each, ``KIND:PLACE`` on the command line.

An exporter is a function that opens a place and gives a :class:`Sink`. The package that it needs is an extra, imported
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError
from stepscope.core.installing import install
from stepscope.core.registry import Registry
from stepscope.results.figures import figures_of
from stepscope.results.job_figures import DIARY, flat_figures

Figures = Mapping[str, float | None]

EXPORTED = DIARY | figures_of("wall")
"""What a job's figures can hold, by key; of a rank, and of a stretch of steps, all but the wall time's."""


@record
class Snapshot:
    """A job up to ``step``, or a stretch of its steps that ends there. figures: of all ranks together, keys and units of
    results/figures.py; ranks: the same of each; hosts: of each rank; late: that the others wait for. at_unix_ns: end of
    ``step`` on the clock of rank 0.
    """

    job: str
    step: int
    at_unix_ns: float
    figures: Figures
    ranks: Mapping[int, Figures]
    hosts: Mapping[int, str]
    late: frozenset[int]
    ended: bool

    @property
    def flat(self) -> dict[str, float]:
        """What is known, by name."""
        return flat_figures(self.figures, self.ranks)


class Sink(Protocol):
    """An open place."""

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:
        """Write the job so far, and stretches of steps that were not written yet. Raises StepscopeError, OSError."""

    def close(self) -> str:
        """Close the place and return where it lies."""


Exporter = Callable[[str, str], Sink]
"""Makes a sink from a place and the name of the job. Raises StepscopeError."""

REGISTRY: Registry[Exporter] = Registry("stepscope.report.exports", "EXPORTER", "export")


@contextmanager
def extra(package: str) -> Iterator[None]:
    """Raises MissingError where the imports in the block need a package that is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingError(f"this export needs the package {package}", why=str(error), fix=install(package)) from error
