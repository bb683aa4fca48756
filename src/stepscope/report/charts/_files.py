"""All charts of some records as files, and a page with their captions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.core.words import counted
from stepscope.report.charts import REGISTRY
from stepscope.report.charts._common import Chart, given
from stepscope.report.render.figure import FORMATS, Format, render_all
from stepscope.report.render.markdown import plain_text
from stepscope.store.writer import write_bytes

CAPTIONS = "charts.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure to draw. stem: its file's name without the ending, unique among all."""

    chart: Chart
    datum: Any
    stem: str

    @property
    def title(self) -> str:
        return f"{self.chart.title}: {self.datum.title}"


def figures(records: Mapping[str, Any], limit: int | None = None) -> tuple[tuple[Figure, ...], tuple[Figure, ...]]:
    """(to be drawn, left out): charts in the order of their names; of too many, every chart's first ones are kept."""
    found: list[list[Figure]] = []
    stems: dict[str, int] = {}
    for key in REGISTRY.names():
        chart = REGISTRY.load(key)
        keywords = given(chart, records)
        mine = []
        for datum in () if keywords is None else chart.prepare(**keywords):
            stem = chart.file_stem(datum)
            stems[stem] = stems.get(stem, 0) + 1
            again = f"-{stems[stem]}" if stems[stem] > 1 else ""
            mine.append(Figure(chart=chart, datum=datum, stem=stem + again))
        found.append(mine)
    total = sum(map(len, found))
    if limit is None or total <= limit:
        return tuple(figure for mine in found for figure in mine), ()
    turns = sorted((place, number) for number, mine in enumerate(found) for place in range(len(mine)))
    kept = {(number, place) for place, number in turns[:limit]}
    every = [((n, place), figure) for n, mine in enumerate(found) for place, figure in enumerate(mine)]
    return (
        tuple(figure for at, figure in every if at in kept),
        tuple(figure for at, figure in every if at not in kept),
    )


def begin_charts(
    records: Mapping[str, Any],
    folder: Path,
    *,
    formats: Sequence[str],
    limit: int | None,
    executor: Executor | None = None,
) -> Callable[[], tuple[Path, ...]]:
    """Prepare all figures; what is returned draws them: a file for each, then ``charts.md``; nothing where there is none.

    executor: begins drawing at once, in other processes, while the caller does something else.
    """
    for name in formats:
        if name not in FORMATS:
            raise UsageError(unknown("chart format", name, FORMATS))
    wanted = tuple(name for name in FORMATS if name in formats)
    drawn, left_out = figures(records, limit)
    work = [(figure.chart, figure.datum, wanted) for figure in drawn]
    pictures = map(_render, work) if executor is None else executor.map(_render, work)

    def finish() -> tuple[Path, ...]:
        return _write(folder, drawn, pictures, wanted, left_out, limit)

    return finish


def _render(work: tuple[Chart, Any, tuple[Format, ...]]) -> tuple[bytes, ...]:
    return render_all(*work)


def _write(
    folder: Path,
    drawn: Sequence[Figure],
    pictures: Iterable[tuple[bytes, ...]],
    wanted: Sequence[str],
    left_out: Sequence[Figure],
    limit: int | None,
) -> tuple[Path, ...]:
    written: list[Path] = []
    page = ["# Charts", ""]
    for figure, picture in zip(drawn, pictures, strict=True):
        paths = [folder / f"{figure.stem}.{name}" for name in wanted]
        for path, data in zip(paths, picture, strict=True):
            write_bytes(path, data)
        written += paths
        title = plain_text(figure.title)
        caption = plain_text(figure.chart.caption(figure.datum))
        page += [f"## {title}", "", f"![{title}]({paths[0].name})", "", caption, ""]
    if left_out:
        page += [f"## Left out: {counted(len(left_out), 'more figure')}", ""]
        page += [
            f"Reports hold {limit} figures; `--cell`, `--datasets` or a smaller matrix show others. Not drawn:",
            "",
        ]
        page += [f"- {plain_text(figure.title)}" for figure in left_out] + [""]
    if written:
        write_bytes(folder / CAPTIONS, "\n".join(page).encode(errors="replace"))
        written.append(folder / CAPTIONS)
    return tuple(written)
