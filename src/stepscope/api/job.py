"""A job as one object, whatever its path holds: traces, run folders, profiles, logs, tables, what ``diagnose`` reads.

Nothing is read before something is asked for, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepscope.api.reading import ReadingOptions, read_job
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.words import in_words, unknown
from stepscope.records.imported import Stated
from stepscope.store.layout import DryLayout

if TYPE_CHECKING:
    from stepscope.api.answer import Answer
    from stepscope.api.chart import DrawnChart
    from stepscope.api.report import Format
    from stepscope.diagnose.rule import Rule
    from stepscope.diagnose.screen import Screen
    from stepscope.diagnose.verdict import Judged
    from stepscope.records.finding import Diagnosis, JobVerdict
    from stepscope.records.nouns import Scaling
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.report.frame import Frame
    from stepscope.report.render.screen import Line
    from stepscope.results.evidence import Evidence


class Job:
    """What is known of one job. ``stepscope.open`` makes it from paths; every answer is read, judged and kept on first use.

    Tables are frames: columns of raw values in base units (ns, bytes, shares). A table that these data do not fill raises
    DataError with the reason and what records it; ``names`` lists those that they fill.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[bool], Evidence],
        *,
        asked: ReadingOptions | None = None,
        rules: Sequence[Rule] | None = None,
    ) -> None:
        """read: called with whether timelines are to be drawn, too."""
        self.paths = tuple(paths)
        self.asked = asked or ReadingOptions()
        self.drop_epochs = self.asked.drop_epochs
        self._read = read
        self._rules = rules
        self._frames: dict[Callable[[], Frame], Frame] = {}  # by what makes them: a table has several names

    @cached_property
    def as_read(self) -> Evidence:
        """Everything that was read, before it is judged."""
        return self._read(False)

    @cached_property
    def _diagnosed(self) -> tuple[Diagnosis, Judged | None]:
        from stepscope.diagnose.engine import diagnose

        diagnosis = diagnose(self.as_read, rules=self._rules)
        if self._rules is not None or not self.as_read.profiled:
            return diagnosis, None
        from stepscope.diagnose.verdict import judge

        judged = judge(self.as_read, diagnosis)
        return diagnosis if judged is None else judged.diagnosis, judged

    @property
    def diagnosis(self) -> Diagnosis:
        """Findings, the largest stake first, with rules that found nothing and rules that were skipped, and why."""
        return self._diagnosed[0]

    @property
    def timed(self) -> JobVerdict | None:
        """The verdict on all timed steps of a profiled job; None where none were timed."""
        judged = self._diagnosed[1]
        return None if judged is None else judged.verdict

    @cached_property
    def evidence(self) -> Evidence:
        """Everything that was read, as it was judged: windows without what the timed steps refute."""
        judged = self._diagnosed[1]
        return self.as_read if judged is None else judged.evidence

    @cached_property
    def verdict(self) -> Screen:
        """The verdict as ``diagnose`` shows it first: headline, stake, the time as a tree, reasons, advice."""
        from stepscope.diagnose.screen import screen_of

        return screen_of(self.evidence, self.diagnosis, self.timed)

    @property
    def traces(self) -> tuple[TraceSummary, ...]:
        """The traces of each capture."""
        return tuple(trace.summary for trace in self.evidence.traces)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables that these data fill."""
        return tuple(name for name in self._tables if name == "events" or len(self._frame(name)))

    @cached_property
    def _tables(self) -> Mapping[str, Callable[[], Frame]]:
        from stepscope.api.tables import tables_of

        classes = self.asked.kernel_classes
        return tables_of(self.evidence, self.diagnosis, drop_epochs=self.drop_epochs, classes=classes)

    def _frame(self, name: str) -> Frame:
        make = self._tables[name]
        if make not in self._frames:
            self._frames[make] = make()
        return self._frames[make]

    def table(self, name: str, *, by_rank: bool = False) -> Frame:
        """Return a table by its name. by_rank: one of traces with the rows of each rank by itself, where it has the median
        of all. Raises UsageError for an unknown name, DataError where these data do not fill it."""
        from stepscope.api.tables import every_name, table_by_rank, why_missing

        frame = self._frame(name) if name in self._tables else None
        if frame is not None and len(frame):
            return table_by_rank(self.evidence, name) if by_rank else frame
        if frame is None and name not in every_name():
            raise UsageError(unknown("table", name, sorted({*every_name(), *self._tables})))
        reason, command = why_missing(name, self.evidence, frame)
        where = ", ".join(map(str, self.paths))
        raise DataError(f"{where}: no table of {name}", why=reason, fix=command)

    @property
    def findings(self) -> Frame:
        """Findings: severity, what, stake, about whom, evidence, advice, rule."""
        return self.table("findings")

    @property
    def steps(self) -> Frame:
        """Steps: one row per step and rank, with its parts (ns)."""
        return self.table("steps")

    @property
    def ranks(self) -> Frame:
        """Ranks: one row per rank with the parts of its mean step (ns)."""
        return self.table("ranks")

    @property
    def runs(self) -> Frame:
        """Runs: one row per run with its figures."""
        return self.table("runs")

    @property
    def collectives(self) -> Frame:
        """Collectives: of traces by operation and size, or as nccl-tests and ``stepscope comm`` measured them."""
        return self.table("collectives")

    @property
    def kernels(self) -> Frame:
        """Kernels of the device by total time."""
        return self.table("kernels")

    @property
    def operators(self) -> Frame:
        """Operators of the host with their time there and on the device."""
        return self.table("operators")

    @property
    def memory(self) -> Frame:
        """Memory over time, or what held it in a snapshot (bytes)."""
        return self.table("memory")

    @property
    def events(self) -> Frame:
        """Events of the traces as recorded: one row per event and rank (ns)."""
        return self.table("events")

    def compare(self, *others: Job | str | Path, scaling: Scaling | None = None) -> Answer:
        """Compare other jobs with this one: ``differences`` in settings and machine, ``figures`` with their intervals."""
        from stepscope.api.comparison import compared

        jobs = (self, *(job if isinstance(job, Job) else open(job) for job in others))
        reads = [(job.path, partial(getattr, job, "as_read")) for job in jobs]
        return compared(reads, drop_epochs=self.drop_epochs, scaling=scaling)

    def diff(
        self,
        after: Job | str | Path | None = None,
        *,
        ranks: Sequence[int] | None = None,
        steps: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> Answer:
        """Compare the traces of a later job with those of this one by ``parts`` of a step, ``kernels`` and ``operators``.

        ranks: only these; None: all that both have. steps: only the first of this job and the second of the later one; with
        it, without a job, two ranges of steps of this one. Raises UsageError, DataError.
        """
        from stepscope.api.trace_diff import diff_of

        later = after.path if isinstance(after, Job) else None if after is None else Path(after)
        ranges = None if steps is None else (frozenset(steps[0]), frozenset(steps[1]))
        return diff_of(self.path, later, self.asked, ranks=ranks, steps=ranges)

    def predict(
        self,
        gpus: int | Sequence[int] | None = None,
        *,
        gpu: str | None = None,
        link: str | None = None,
        batch: float | None = None,
        precision: str | None = None,
        overlap: Literal["perfect"] | None = None,
        bucket_bytes: int | None = None,
        scaling: Scaling = "weak",
        network: str | None = None,
        adapters: int | None = None,
        gpus_per_node: int | None = None,
        calib: str | Path | None = None,
    ) -> Answer:
        """Predict the job on these numbers of GPUs (None: doublings of its own), and with what else is other.

        gpu: key of the hardware table. link: ``pcie``, or the key of a network between nodes. batch: factor on the batch of
        a rank. precision, overlap, bucket_bytes: as in ``predict --what-if``. network, adapters, gpus_per_node: links that
        the job would have; calib: a calibration of them. Raises UsageError, DataError.
        """
        from stepscope.api.prediction import (
            Question,
            answered,
            answered_dry_run,
            asked_of_dry_run,
            measured_job,
            predict_job,
        )
        from stepscope.predict.what_if import WhatIf, gpu_numbers, keyed

        change = WhatIf(
            gpu=gpu, link=link, batch=batch, precision=precision, overlap=overlap, bucket_bytes=bucket_bytes
        )
        question = Question(
            gpus=None if gpus is None else gpu_numbers([gpus] if isinstance(gpus, int) else gpus),
            what_if=keyed(change),
            scaling=scaling,
            network=network,
            adapters=adapters,
            gpus_per_node=gpus_per_node,
            calib=None if calib is None else Path(calib),
        )
        if DryLayout(self.path).is_there:
            if batch is not None or precision is not None or bucket_bytes is not None:
                raise UsageError(
                    "batch, precision and buckets are the script's", fix="run it again with its own options"
                )
            from stepscope.results.dry_job import read_dry_job

            dry = asked_of_dry_run(read_dry_job(self.path), question)
            changed = question.what_if not in (None, WhatIf())
            return answered_dry_run(dry, replace(dry, what=question.what_if or WhatIf()) if changed else None)
        return answered(predict_job(measured_job(self.path, self.asked.cell, calib=question.calib), question))

    @property
    def path(self) -> Path:
        """The only path. Raises UsageError where there are several."""
        if len(self.paths) != 1:
            raise UsageError(f"comparisons and predictions start from one path, and this job has {len(self.paths)}")
        return self.paths[0]

    @cached_property
    def charts(self) -> Mapping[str, DrawnChart]:
        """The charts that these data allow, by name; a notebook draws each."""
        from stepscope.api.chart import charts_of

        return charts_of(self.evidence, drop_epochs=self.drop_epochs)

    def chart(self, name: str) -> DrawnChart:
        """Return a chart by its name, or the first whose name begins so. Raises UsageError for an unknown one."""
        chosen = [key for key in self.charts if key == name] or [key for key in self.charts if key.startswith(name)]
        if not chosen:
            raise UsageError(unknown("chart", name, tuple(self.charts)))
        return self.charts[chosen[0]]

    def on_datasets(self, datasets: Sequence[str]) -> Job:
        """Return the job with its runs on these datasets alone. Raises UsageError for one that no run has."""
        from stepscope.results.joining import on_datasets

        drop = self.drop_epochs
        return Job(self.paths, lambda _: on_datasets(self.as_read, datasets, drop_epochs=drop), asked=self.asked)

    def report(
        self,
        folder: str | Path,
        *,
        formats: Collection[Format] | None = None,
        title: str | None = None,
        made_by: tuple[str, ...] = ("stepscope.open",),
        drawers: int = 1,
        not_drawn: Callable[[Mapping[str, str]], object] | None = None,
    ) -> tuple[Path, ...]:
        """Write page, tables and charts below a folder, as ``stepscope report`` does; return the files.

        formats: html, png, svg, pdf, csv, tex, md, txt; None: all but pdf. title: the page's heading. made_by: the command
        that the page names. drawers: processes that draw charts; 0: no charts. not_drawn: called with the charts that
        cannot be drawn, by title, and why; without it a warning says so. Raises UsageError, WriteError.
        """
        from stepscope.api.report import ALL_FORMATS, DEFAULT_FORMATS, write_report

        chosen = DEFAULT_FORMATS if formats is None else frozenset[str](formats)
        if wrong := sorted(chosen - ALL_FORMATS):
            raise UsageError(unknown("format", wrong[0], sorted(ALL_FORMATS)))
        job = self._with_timelines() if "html" in chosen else self
        return write_report(
            job.as_read,
            lambda: (job.evidence, job.diagnosis, job.timed),
            Path(folder),
            title=in_words(path.name for path in self.paths) if title is None else title,
            formats=chosen,
            drop_epochs=self.drop_epochs,
            made_by=made_by,
            drawers=drawers,
            not_drawn=not_drawn,
        )

    def _with_timelines(self) -> Job:
        """Return the job read with what timelines draw; this one, where it was not read yet or has that."""
        job = self
        if "as_read" in vars(self):
            ranks = [rank for trace in self.as_read.traces for rank in trace.summary.ranks]
            if not ranks or any(rank.spans for rank in ranks):
                return self
            job = Job(self.paths, self._read, asked=self.asked, rules=self._rules)
        vars(job)["as_read"] = self._read(True)
        return job

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``stepscope diagnose --json``."""
        from stepscope.report.documents import diagnose_document

        return diagnose_document(self.evidence, self.diagnosis, self.timed)

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.paths))
        return f"<stepscope.Job {where}: {self.verdict.headline}>"

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self._screen(100))

    def _screen(self, width: int) -> list[Line]:
        from stepscope.report.render.screen import screen_lines

        also = (text.replace("below:", "job.findings:") for text in self.verdict.also)
        return screen_lines(replace(self.verdict, also=tuple(also)), width=width)

    def _repr_html_(self) -> str | None:
        from markupsafe import Markup, escape

        try:
            lines = self._screen(88)  # the column of a notebook beside its files
        except StepscopeError:
            return None  # repr, which a notebook shows instead, says why
        strong = (self.verdict.tone, "bold")
        text = "\n".join(Markup("<b>{}</b>").format(line) if tone in strong else escape(line) for line, tone in lines)
        return f'<pre style="white-space:pre;margin:0">{text}</pre>'


def open(  # noqa: A001 - as a user writes it: stepscope.open
    *paths: str | Path,
    cell: str | None = None,
    world_size: int | Mapping[str, int] | None = None,
    scaling: Scaling | None = None,
    columns: Mapping[str, str | None] | None = None,
    target_accuracies: Sequence[float] = (),
    drop_epochs: int = 1,
    communication: str | Sequence[str] = (),
    classes: str | Path | None = None,
    window: int | None = None,
    ranks: Mapping[str, int] | None = None,
) -> Job:
    """Open the job at these paths: traces, folders of ``profile``, ``run`` or ``bench``, logs, tables; several are joined.

    cell: only this cell of a run folder. world_size: number of ranks of runs whose files do not state it, by name, or of
    the only run. scaling: strong or weak, where files do not say. columns: what a table's columns mean (``{"tok_s":
    "tokens_per_s"}``), None to leave one out. target_accuracies: also the time to these. drop_epochs: first epochs left out
    of epoch times. communication: kernels with such names communicate; classes: a file of classes of kernels. window:
    which of several captures of the same ranks, the oldest 1. ranks: of trace files that do not record theirs.

    Nothing is read yet. Messages name options as the commands spell them; the keyword is the same word. Raises UsageError.
    """
    if not paths:
        raise UsageError("open needs a path", fix="stepscope.open('RUN')")
    places = tuple(map(Path, paths))
    stated = Stated(
        world_size=(
            {} if world_size is None else {"": world_size} if isinstance(world_size, int) else dict(world_size)
        ),
        scaling=scaling,
        columns={name: meaning or "-" for name, meaning in (columns or {}).items()},
    )
    asked = ReadingOptions(
        stated=stated,
        cell=cell,
        drop_epochs=drop_epochs,
        targets=tuple(target_accuracies),
        communication=(communication,) if isinstance(communication, str) else tuple(communication),
        classes=None if classes is None else Path(classes),
        window=window,
        ranks=ranks or {},
    )
    return Job(places, lambda spans: read_job(places, asked, spans=spans), asked=asked)
