"""Every chart of the registry: pure data, axes with units, captions, files that are the same every time."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests import comm_rows, dry_ranks, overlapped_cells, training_records
from tests.comm_rows import MIB, SIZES, collective, pairs, row, sweep
from tests.described import drawn, names, values
from tests.diaries import job, planted, write_samples
from tests.pipelines import MS, pipeline_cell
from tests.unit.report.test_machine_tables import recorded
from tests.unit.results.test_history import runs as nightly_runs

from stepscope.core.errors import UsageError
from stepscope.predict.pipeline import StageTime
from stepscope.records.mesh import PipelineLayout
from stepscope.report import vega
from stepscope.report.charts import draw_charts
from stepscope.report.render import picture
from stepscope.report.vega import Chart, size_tick
from stepscope.report.views import given, views
from stepscope.report.views.predicted_step import ScaleCurve, ScalePoint
from stepscope.results.evidence import CellEvidence
from stepscope.results.history import history
from stepscope.results.profiled_job import ProfiledJob
from stepscope.store.layout import ProfileLayout

UNIT = re.compile(
    r"\((µs|ms|s|min|h|steps/s|GB/s|bytes.*|MiB|GiB|GB|rank|host, rank|x|%( of [^)]*)?|(1000 )?samples/s|tokens/s( per GPU)?"
    r"|epochs/h)\)$"
    r"|^(ranks?|GPUs|micro-batches of a step|run, oldest first|epoch|step|step after warm-up)$"  # pure numbers
    r"|^(efficiency|training loss of a sample)$"
)


@cache
def records() -> dict[str, object]:
    two, four = sweep(world_size=2, link_peak_bytes_per_s=5e9), sweep(world_size=4, alpha_us=900)
    fits = [comm_rows.fit(two, alpha_us=20, rate=3e9, wiggle=0.05), comm_rows.fit(four, alpha_us=900, rate=2e9)]
    hosts = ("a", "a", "b", "b")
    messages = pairs(4, slow_egress={1: 4.0}, noise=random.Random(0), rank_hosts=hosts)
    measured = {"rows": [*two, *four, *messages], "calibration": comm_rows.calibration(*fits)}
    trained = training_records.everything()
    runs = tuple(replace(run, mfu=0.1 + 0.05 * n) for n, run in enumerate(trained["runs"]))
    overlapped = overlapped_cells.evidence(*overlapped_cells.two(40, 10), naive=[0, 0], ddp=[0.5, 0.75])
    return {
        **measured,
        **trained,
        "runs": runs,
        "cells": (*trained["cells"], *pipelined(), *overlapped.cells),
        "traces": (*trained["traces"], *overlapped.traces),
        "history": history(nightly_runs()),
        "memory": (recorded(),),
        "scale_curves": (scale_curve(),),
        "dry": (dry_ranks.a_job(8, 64),),
        "profiled": profiled(),
    }


@cache
def profiled() -> tuple[ProfiledJob, ...]:
    with TemporaryDirectory() as folder:
        root = planted(Path(folder) / "job")
        for rank, path in enumerate(ProfileLayout(root).diaries()):
            write_samples(path, [2.0**30 + rank * 2.0**22 * n for n in range(20)], steps_per_s=8.0)
        return (job(root),)


def pipelined() -> Iterator[CellEvidence]:
    """A pipeline of two ranks, two schedules and more and more micro-batches."""
    even = [StageTime(forward_ns=10 * MS, backward_ns=20 * MS)] * 2
    for schedule in ("gpipe", "zero_bubble"):
        for micro_batches in (2, 4, 8):
            layout = PipelineLayout(schedule=schedule, ranks=2, micro_batches=micro_batches)
            yield pipeline_cell(layout, even, (4, 4))


def scale_curve() -> ScaleCurve:
    """8 to 512 GPUs, each eightfold 15% less than eight times as fast; two are measured."""
    predicted = [
        ScalePoint(gpus=8 * 8**n, value=v, low=0.9 * v, high=1.1 * v) for n, v in enumerate((1e5, 6.8e5, 4.6e6))
    ]
    measured = [replace(point, value=1.05 * point.value, measured=True) for point in predicted[:2]]
    return ScaleCurve(title="small on 8 GPUs and more", unit="tokens/s", points=(*predicted, *measured), knee=64)


CHARTS = tuple(key for key, view in views().items() if view.charts is not None)


@cache
def sample(key: str) -> tuple[Chart, ...]:
    return views()[key].drawn(records())


def rendered(chart: Chart, *formats: str) -> tuple[bytes, ...]:
    return picture.pictures((json.dumps(chart.spec, allow_nan=False), "a title", "a caption", formats))


@cache
def pictures(key: str) -> tuple[bytes, ...]:
    """The sample's first chart: for the page, as PNG and as SVG."""
    return rendered(sample(key)[0], "png", "svg")


def axes(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The encodings of every panel's axes."""
    panels = spec.get("hconcat") or spec.get("vconcat") or [spec]
    return [panel["encoding"][channel] for panel in panels for channel in ("x", "y")]


@pytest.mark.parametrize("key", CHARTS)
def test_charts_have_names_for_files_a_title_a_caption_and_axes_with_units(key: str) -> None:
    assert sample(key)
    assert len({chart.key for chart in sample(key)}) == len(sample(key))
    for chart in sample(key):
        assert re.fullmatch(r"[\w.-]+", chart.key)
        labels = [axis["title"] for axis in axes(chart.spec) if axis["title"]]
        assert labels
        assert all(UNIT.search(label) for label in labels), labels
        assert " ".join(chart.spec["title"]["text"]) == chart.title
        assert re.search(r"\d.*\.$", chart.caption)


@pytest.mark.parametrize("key", CHARTS)
def test_marks_tell_their_figures(key: str) -> None:
    """A mark with ``said`` has a title in the picture, for the pointer and for screen readers; the others are silent."""
    said = re.findall(r'"said": "([^"]+)"', json.dumps(sample(key)[0].spec, ensure_ascii=False))
    page = pictures(key)[0].decode()
    titles = re.findall(r"<title>([^<]*)</title>", page)
    assert len(titles) == len(said) or key == "stragglers"
    assert all(re.search(r"\d", text) for text in said)
    assert "aria-label" not in page


@pytest.mark.parametrize("key", CHARTS)
def test_colours_are_the_pages_and_resolved_in_files(key: str) -> None:
    page, _, svg = pictures(key)
    assert b"var(--" in page
    assert b"var(--" not in svg
    assert b"style=" not in page  # the page's content policy allows no style of its own


def test_the_palette_is_the_pages_light_one() -> None:
    css = (Path(vega.__file__).parent / "templates" / "page.css").read_text()
    light = dict(re.findall(r"--([\w-]+): (#\w+)", css[: css.index("}")]))
    assert {name: light[name] for name in vega.PALETTE} == vega.PALETTE


@pytest.mark.parametrize("key", CHARTS)
def test_the_same_data_give_the_same_file(key: str) -> None:
    assert rendered(views()[key].drawn(records())[0]) == pictures(key)[:1]
    assert pictures(key)[1].startswith(b"\x89PNG")
    assert b"<title>a title</title><desc>a caption</desc>" in pictures(key)[2]


def test_pngs_hold_who_they_are_of() -> None:
    png = pictures("comm_time")[1]
    chunks, at = {}, 8
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        data = png[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + data) == struct.unpack_from(">I", png, at + 8 + length)[0]
        chunks.setdefault(kind, []).append(data)
        at += 12 + length
    assert chunks[b"iTXt"] == [b"Title\0\0\0\0\0a title", b"Description\0\0\0\0\0a caption"]
    assert struct.unpack_from(">I", chunks[b"IHDR"][0])[0] == pytest.approx(3.5 * 300, abs=2)


def test_pdfs_are_a_column_wide() -> None:
    pdf = rendered(sample("comm_time")[0], "pdf")[1]
    assert pdf.startswith(b"%PDF")
    width = float(re.search(rb"/MediaBox \[\S+ \S+ (\S+)", pdf)[1])
    assert width == pytest.approx(252, abs=1)


@pytest.mark.parametrize("key", CHARTS)
def test_a_chart_without_what_it_needs_is_not_drawn(key: str) -> None:
    needed = [name for name in records() if not views()[key].drawn({**records(), name: None})]
    assert needed
    assert set(needed) <= given(views()[key].charts, records()).keys()


def test_importing_the_views_loads_nothing_that_draws() -> None:
    code = (
        "import sys\nfrom stepscope.report.views import views\nimport stepscope.report.charts\n"
        "views()\n"
        "assert not {'vl_convert', 'altair', 'jinja2', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_busbw_of_a_fast_call_is_high_and_the_fit_is_on_the_same_scale() -> None:
    chart, source = sample("comm_busbw")[0], sweep(world_size=4, alpha_us=900)
    points = [point for point in values(chart, "point") if point["series"] == "4 ranks"]
    bands = [band for band in values(chart, "area") if band["series"] == "4 ranks"]
    for point, band, r in zip(points, bands, source, strict=True):
        assert point["y"] == pytest.approx(r.busbw_bytes_per_s / 1e9, rel=1e-5)
        assert band["high"] > point["y"] > band["low"]
    fitted = {value["size"]: value["y"] for value in values(chart, "line") if value.get("of") == "4 ranks"}
    for at in (0, 8):
        assert fitted[vega.sig(SIZES[at])] == pytest.approx(source[at].busbw_bytes_per_s / 1e9, rel=1e-5)


def test_what_gave_no_trustworthy_time_is_not_drawn() -> None:
    rows = [
        *sweep(sizes=SIZES[:2]),
        collective(SIZES[2], 9.0, correct=False, status="error"),
        collective(SIZES[3], 9.0, correct=False),
        row(status="timeout"),
        row(status="skipped", asked_bytes=4096),
    ]
    (chart,) = drawn("comm_time", rows=rows)
    assert [point["size"] for point in values(chart, "point")] == list(SIZES[:2])


def test_more_sweeps_than_colours_are_several_charts() -> None:
    charts = drawn("comm_time", rows=[r for n in range(2, 12) for r in sweep(world_size=n, sizes=SIZES[:3])])
    assert [len(names(chart)) for chart in charts] == [7, 3]
    assert [chart.title for chart in charts] == ["all_reduce, cpu/gloo (1 of 2)", "all_reduce, cpu/gloo (2 of 2)"]


def test_a_fit_of_other_settings_is_not_drawn() -> None:
    base = sweep(world_size=2)
    fits = comm_rows.calibration(comm_rows.fit(base, alpha_us=50, rate=2e9))
    for shape in ({}, {"env": {"NCCL_ALGO": "Ring"}}, {"dtype": "bf16"}, {"mode": "async", "in_flight": 4}):
        (chart,) = drawn("comm_time", rows=[replace(r, **shape) for r in base], calibration=fits)
        assert ("Dashed: the calibrated curve." in chart.caption) is (shape == {})


def test_the_heat_map_marks_the_slow_row() -> None:
    (chart,) = sample("pairs")
    framed = chart.spec["layer"][-1]["data"]["values"]
    assert [(cell["sender"], cell["receiver"]) for cell in framed] == [("a 1", "0"), ("a 1", "2"), ("a 1", "3")]
    (small,) = drawn("pairs", rows=pairs(4, size_bytes=4, us=30.0))
    first = values(small, "rect")[0]
    assert (first["sender"], first["receiver"], first["value"]) == ("0", "1", 30.0)
    assert small.caption.startswith("Time of messages of 4 B")
    (both,) = drawn("pairs", rows=pairs(4, bidirectional=True))
    cells = {(cell["sender"], cell["receiver"]): cell["value"] for cell in values(both, "rect")}
    assert cells["0", "1"] == cells["1", "0"]
    assert "No pair is slow" in both.caption
    (two,) = drawn("pairs", rows=pairs(2))
    assert "Too few pairs" in two.caption


@pytest.mark.parametrize("shape", ["one size", "one call", "wide", "24 ranks", "barrier"])
def test_odd_data_are_drawn_without_a_warning(shape: str) -> None:
    rows = {
        "one size": [collective(MIB, 9.0)],
        "one call": [collective(MIB, 9.0, time_ns_min=None, time_ns_p90=None)],
        "wide": [collective(1, 1e-3), collective(2**40, 1e9)],
        "24 ranks": pairs(24, us=5.0),
        "barrier": [*sweep("barrier", sizes=(0,)), *sweep(sizes=SIZES[:2])],
    }[shape]
    charts = [chart for view in views().values() for chart in view.drawn({"rows": rows})]
    assert charts
    for chart in charts:
        assert rendered(chart, "png")[1].startswith(b"\x89PNG")
        assert chart.caption


def test_charts_are_written_with_their_captions(tmp_path: Path) -> None:
    found = records()
    paths = draw_charts(found["rows"], tmp_path / "report", found["calibration"], formats=("svg", "png"))
    assert all(path.exists() for path in paths)
    assert paths[-1].name == "charts.md"
    names = {path.name for path in paths}
    stem = "comm_time-all_reduce-cpu-gloo"
    assert {f"{stem}.png", f"{stem}.svg", f"{stem}.vl.json"} <= names
    described = json.loads((tmp_path / "report" / f"{stem}.vl.json").read_text())
    assert described["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert "var(--" not in json.dumps(described)
    page = paths[-1].read_text()
    assert "(comm_busbw-all_reduce-cpu-gloo.png)" in page
    assert "Bus bandwidth of all_reduce" in page


def test_nothing_to_draw_writes_nothing(tmp_path: Path) -> None:
    assert draw_charts([row(status="timeout")], tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused_before_drawing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'png'"):
        draw_charts(sweep(), tmp_path, formats=("pgn",))


def test_ticks_are_plain() -> None:
    assert [size_tick(x) for x in (512, 1024, 1.5 * MIB)] == ["512 B", "1 KiB", "1.5 MiB"]
