"""Watch a training loop from inside of it: the step diary of ``stepscope run``, begun by two lines of the job itself.

    with StepMonitor("runs/today") as monitor:
        for batch in loader:
            with monitor.phase("forward"):
                loss = model(batch)
            ...
            monitor.step()

The recorder is the hook's (``hook/stepscope_hook``). Nothing here synchronises a device, and nothing that fails here ends
the job: what is missing is said once on stderr, or in the record.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import stepscope
from stepscope import __version__
from stepscope.core.errors import StepscopeError
from stepscope.records.parts import RECORDED
from stepscope.records.profile import ProfileRecord
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import make_dir, write_record

PHASES = (*RECORDED, "other", "evaluation", "checkpoint")
"""Parts of a step; the last two are no part of it. What is marked by none, and not seen by the hook, is other."""

PACKAGE = "stepscope_hook"


class StepMonitor(AbstractContextManager["StepMonitor"]):
    """Times every step of this process into ``folder``, which all ranks name alike and ``diagnose``, ``report``, ``compare``
    and ``export`` read.

    by_optimizer: a step ends where the job's first optimizer ends its own, as under ``stepscope run``; else at :meth:`step`.
    Under ``stepscope run`` and ``profile`` the diary of that command continues, ``folder`` is unused, and steps are those of
    the optimizer, of :meth:`step` where there is none.
    """

    def __init__(self, folder: str | Path, *, by_optimizer: bool = False) -> None:
        self.folder = Path(folder)
        self._by_optimizer = by_optimizer
        self._steps: Any = None
        self._ours = False

    def start(self) -> StepMonitor:
        """Begin to record. Called again with by_optimizer, the next optimizer that steps is the one that counts."""
        try:
            if self._steps is None:
                self._steps = _running_recorder(self.folder) or self._begin()
                self.folder = Path(self._steps.control.output)
            if self._by_optimizer:
                self._steps.seen.clear()
        except Exception as error:  # noqa: BLE001 - the job goes on whatever happens here
            _say_once(f"no step diary: {type(error).__name__}: {error}")
        return self

    def stop(self) -> None:
        """Write what is left; the diary of ``stepscope run`` continues."""
        steps, self._steps = self._steps, None
        if steps is not None and self._ours:
            steps.stop()

    def flush(self) -> None:
        """Write what was recorded so far; it is written about once a second anyway."""
        if self._steps is not None:
            with suppress(Exception):  # the job goes on, and the next write tells
                self._steps.pages.flush()

    def __enter__(self) -> StepMonitor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # else the end of the process is told as Python sees it
            self.stop()

    @property
    def on(self) -> bool:
        """Whether steps are recorded."""
        return self._steps is not None and bool(self._steps.diary.on)

    @property
    def own_ns(self) -> float:
        """Own time of all steps so far: without waiting for other ranks and what is between steps; where the host does not
        see its waits, CPU time of the training thread and waiting for data. 0: nothing is recorded."""
        return 0.0 if self._steps is None else float(self._steps.diary.own_ns)

    def step(self) -> None:
        """End a step."""
        if self._steps is not None:
            self._steps.own_step()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block as this part of the step. A name that is none of them is said once, and counts as other."""
        if self._steps is None:
            yield
            return
        if name not in PHASES:
            _say_once(f"phase {name!r} counts as other: it is none of {', '.join(PHASES)}")
        mark = self._steps.mark(name)
        mark.enter()
        try:
            yield
        finally:
            mark.leave()

    def summary(self, *, last: int | None = None) -> dict[str, float]:
        """Return figures of all ranks whose diaries are in the folder, by the keys of docs/reference/metrics.md, ns and
        fractions; ``rank_N/KEY`` of each rank; ``steps``. What is unknown is left out; nothing is there before the second
        step.

        last: of so many steps alone. What other ranks recorded in the last second may be missing while the job runs.
        """
        self.flush()
        from stepscope.results.job_figures import flat_figures, job_figures, rank_figures
        from stepscope.results.profiled_job import read_profiled_job

        try:
            job = read_profiled_job(self.folder, last=last)
        except (OSError, StepscopeError) as error:
            _say_once(f"no summary: {error}")
            return {}
        if job is None or job.steps is None:
            return {}
        figures = flat_figures(job_figures(job.steps), rank_figures(job.steps))
        return {"steps": float(job.steps.all_steps), **figures}

    def _begin(self) -> Any:
        layout = ProfileLayout(self.folder)
        make_dir(layout.control)
        if not layout.record.exists():
            record = ProfileRecord(
                command=tuple(sys.orig_argv),
                folder=str(Path.cwd()),
                host=socket.gethostname(),
                first=None,
                argv=tuple(sys.argv),
            )
            write_record(layout.record, record)
        import torch  # noqa: F401 - the hook looks at what is there

        package = _loaded_hook()
        options = {
            "output": str(self.folder.resolve()), "tool_version": __version__, "step_optimizer": 1, "memory": False,
            "diary": True, "first": None,
        }  # fmt: skip
        package.install(json.dumps(options))
        steps = _running_recorder()
        if steps is None:
            raise RuntimeError("the hook did not begin")
        steps.own, steps.monitored = not self._by_optimizer, True
        self._ours = True
        return steps


def _loaded_hook() -> Any:
    """Import the hook's package, which lies on no path of the job's."""
    hook = str(Path(stepscope.__file__).parent / "hook")
    sys.path.append(hook)
    try:
        return importlib.import_module(PACKAGE)
    finally:
        sys.path.remove(hook)


def _running_recorder(folder: Path | None = None) -> Any:
    """Return the recorder of this process, or None where there is none, or it has ended: a monitor's does where another
    folder begins."""
    module = sys.modules.get(f"{PACKAGE}.steps")
    steps = None if module is None else module.current
    if steps is None or steps.ended:
        return None
    if folder is not None and steps.monitored and Path(steps.control.output) != folder.resolve():
        steps.stop()
        _say_once(f"the record in {steps.control.output} has ended: another monitor records into {folder}")
        return None
    return steps


_written: set[str] = set()


def _say_once(text: str) -> None:
    """Write a text to stderr once: a step of every job comes by here."""
    if text not in _written and len(_written) < 20:
        _written.add(text)
        with suppress(OSError, ValueError, AttributeError):  # stderr is closed
            sys.stderr.write(f"stepscope: {text}\n")
