"""The page's timeline: 8 ranks of 100k spans drawn in headless Chromium, and building pages of 50 and 500 cells."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests import pages
from tests.browser import browser, missing
from tests.e2e.test_page import MANY_SPANS

from benchmarks._report import heading
from stepscope.report.page import write_page

ROUNDS = 15


def _drawing(path: Path) -> None:
    with browser() as started:
        page = started.new_page(viewport={"width": 1200, "height": 900})
        page.goto(path.as_uri())
        first = page.evaluate(MANY_SPANS)
        again = [page.evaluate("stepscope.drawTimeline().ms") for _ in range(ROUNDS)]
        # Painting is done by another process: a frame that was asked for after drawing comes after its pixels.
        frames = [
            page.evaluate(
                "() => new Promise((done) => { const began = performance.now(); stepscope.drawTimeline();"
                " requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began))); })"
            )
            for _ in range(ROUNDS)
        ]
    print(
        f"8 ranks x 100k spans: first {first['ms']:.0f} ms, again {statistics.median(again):.0f} ms"
        f" ({min(again):.0f} to {max(again):.0f}), until the frame is shown {statistics.median(frames):.0f} ms"
        f" ({min(frames):.0f} to {max(frames):.0f}), {first['primitives']} rectangles; bar: at most 500 ms"
    )


def _building(path: Path) -> None:
    jobs = tuple(pages.traced(f"cell {n}", count=12_000, limit=10_000, seed=n) for n in range(50))
    runs = pages.runs(4)
    many = tuple(run for n in range(10) for run in pages.runs(4, group=f"group {n}"))
    before = time.perf_counter()
    write_page(path, title="50 cells", evidence=pages.evidence(runs=many, traces=jobs), diagnosis=pages.diagnosis())
    took = time.perf_counter() - before
    print(f"50 cells with 8-rank timelines: {took:.1f} s, {path.stat().st_size / 1e6:.2f} MB; bar: at most 2 MB")
    runs = tuple(run for n in range(100) for run in pages.runs(4, group=f"group {n}"))
    cells = tuple(pages.cell(f"cell-{n}") for n in range(100))
    before = time.perf_counter()
    write_page(
        path,
        title="500",
        evidence=pages.evidence(runs=runs, cells=cells, traces=()),
        diagnosis=pages.diagnosis(),
    )
    took = time.perf_counter() - before
    print(f"{len(runs)} runs: {took:.1f} s, {path.stat().st_size / 1e6:.2f} MB; bar: report in 10 s")


def main() -> None:
    heading("HTML page")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        _building(path)
        if reason := missing():
            print(f"not drawn: {reason}", file=sys.stderr)
            return
        write_page(path, title="drawn", evidence=pages.evidence(), diagnosis=pages.diagnosis())
        _drawing(path)


if __name__ == "__main__":
    main()
