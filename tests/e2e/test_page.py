"""The page in a browser: asks for nothing, draws what it should, and is used with keys alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests import pages
from tests.browser import browser, missing

from stepscope.report.page import write_page

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

MANY_SPANS = """() => {
  const rows = [];
  for (let rank = 0; rank < 8; rank += 1) {
    const spans = {}, totals = {}, kinds = ["compute", "exposed_comm", "copies", "hidden_comm"];
    kinds.forEach((kind, n) => {
      const starts = new Float64Array(25000), ends = new Float64Array(25000);
      for (let i = 0; i < 25000; i += 1) {
        starts[i] = i * 40000 + n * 9000;
        ends[i] = starts[i] + 3000 + ((i * 7919 + rank) % 5000);
      }
      spans[kind] = { starts, ends };
      totals[kind] = 1e8;
    });
    rows.push({ label: `rank ${rank}`, start: 0, window: 1e9, unit: 1, spans, totals, named: [], steps: [] });
  }
  const kinds = [["compute", "compute"], ["exposed_comm", "exposed"], ["copies", "copies"], ["hidden_comm", "hidden"]];
  return stepscope.showTimeline({ kind: "trace", name: "generated", kinds, rows, names: [], notes: [] });
}"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return write_page(folder / "report.html", title="hand-made", evidence=pages.evidence(), diagnosis=pages.diagnosis())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


class Watched:
    """An open page with everything that it asked for and complained of."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.goto(path.as_uri())


Visit = Callable[..., Watched]


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """Opens a page; settings are of playwright's browser context."""
    with ExitStack() as closed:

        def visit(path: Path, *, width: int = 1200, height: int = 900, **settings: Any) -> Watched:
            context = chromium.new_context(viewport={"width": width, "height": height}, **settings)
            closed.callback(context.close)
            return Watched(context.new_page(), path)

        yield visit


def test_the_page_asks_for_nothing_and_complains_of_nothing(visit: Visit, page_file: Path) -> None:
    watched = visit(page_file)
    page = watched.page
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator("#theme").click()
    page.locator("details").first.locator("summary").click()
    page.mouse.wheel(0, 500)
    own = page_file.as_uri()
    others = [url for url in watched.requests if url != own and not url.startswith("data:")]
    assert others == []
    assert watched.complaints == []


def test_the_policy_stops_what_would_ask(visit: Visit, page_file: Path) -> None:
    watched = visit(page_file)
    page = watched.page
    page.evaluate("""() => {
      const image = new Image(); image.src = "http://127.0.0.1:9/x.png"; document.body.append(image);
      const script = document.createElement("script"); script.textContent = "window.ran = 1"; document.body.append(script);
    }""")
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert page.evaluate("window.ran") is None
    # The test would see an attempt: these three are what it complains of.
    assert len(watched.complaints) >= 3


def test_hostile_names_run_nothing(visit: Visit, tmp_path: Path) -> None:
    from tests.unit.report.page.test_page_text import hostile

    evidence, diagnosis, bad = hostile()
    path = write_page(tmp_path / "bad.html", title=bad, evidence=evidence, diagnosis=diagnosis)
    watched = visit(path)
    page = watched.page
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    for name in ("#timeline-canvas", "figure.chart svg"):
        page.locator(name).first.hover()
    page.locator("#timeline-job").select_option("1")
    page.locator("#timeline-canvas").press("ArrowDown")
    assert watched.complaints == []
    assert page.title().startswith(bad[:20])
    assert bad[:30] in page.locator("h1").inner_text()


def test_timeline_draws_every_rank_and_no_more_than_there_are_pixels(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    work = page.evaluate(MANY_SPANS)
    assert work["spans"] == 8 * 100_000
    columns = page.evaluate("document.getElementById('timeline-canvas').width")
    assert 8 * 100 < work["primitives"] <= 8 * (4 * columns + 20)
    # Zoomed in, only what is seen is looked at.
    page.locator("#timeline-canvas").focus()
    for _ in range(12):
        page.keyboard.press("+")
    closer = page.evaluate("stepscope.drawTimeline()")
    assert closer["spans"] < 8 * 100_000 / 100
    shown = page.evaluate("Object.assign({}, document.getElementById('timeline-canvas').dataset)")
    assert 0 < float(shown["to"]) - float(shown["from"]) < 1e9 / 100


def test_timeline_pixels_are_the_kinds_colours(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    found = page.evaluate("""() => {
      const spans = (from, to) => ({ starts: Float64Array.of(from), ends: Float64Array.of(to) });
      const none = { starts: [], ends: [] };
      stepscope.showTimeline({ kind: "trace", name: "two", names: [], notes: [],
        kinds: [["compute", "compute"], ["exposed_comm", "exposed"], ["copies", "copies"], ["hidden_comm", "hidden"]],
        rows: [{ label: "rank 0", start: 0, window: 1000, unit: 1, named: [], steps: [], totals: {},
          spans: { compute: spans(0, 500), exposed_comm: spans(500, 750), copies: none, hidden_comm: spans(250, 500) } }] });
      const canvas = document.getElementById("timeline-canvas"), context = canvas.getContext("2d");
      const at = (share, y) => {
        const x = 72 + share * (canvas.width - 72);
        return [...context.getImageData(x, y, 1, 1).data].slice(0, 3).join(",");
      };
      return [at(0.1, 34), at(0.6, 34), at(0.9, 34), at(0.4, 58), at(0.1, 58)];
    }""")
    compute, exposed, idle, hidden, below = found
    assert compute == "0,114,178"
    assert exposed == "213,94,0"
    assert idle == "228,232,236"
    assert hidden == "224,160,48"
    assert below == "0,0,0"  # nothing painted: the page's ground shows


def test_timeline_is_walked_by_keys_and_filtered_by_its_legend(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    canvas = page.locator("#timeline-canvas")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    live = page.locator("#timeline-live")
    assert live.inner_text().startswith("rank 1: ")
    assert "exposed communication" in live.inner_text()
    page.keyboard.press("n")
    first = live.inner_text()
    page.keyboard.press("n")
    assert live.inner_text() != first
    page.keyboard.press("p")
    assert live.inner_text() == first
    before = int(page.evaluate("stepscope.drawTimeline().primitives"))
    button = page.locator("#timeline-legend button").first
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert page.evaluate("stepscope.drawTimeline().primitives") < before
    canvas.hover(position={"x": 400, "y": 40})
    assert page.locator("#timeline-tip").inner_text().startswith("rank 0 · at ")


@pytest.fixture(scope="module")
def straggler_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two jobs in which rank 1 is late; the one in which it is later is given second."""
    from stepscope.diagnose.engine import diagnose

    folder = tmp_path_factory.mktemp("straggler")
    evidence = pages.late_jobs(folder)
    return write_page(folder / "report.html", title="late", evidence=evidence, diagnosis=diagnose(evidence))


def test_the_verdict_and_the_worst_jobs_timeline_are_on_the_first_screen(visit: Visit, straggler_page: Path) -> None:
    page = visit(straggler_page, width=1440).page
    assert page.locator("#verdict").inner_text().startswith("Straggler: rank 1 ")
    assert page.locator("#timeline-job option").all_inner_texts() == ["later", "late"]
    box = page.locator("#timeline-canvas").bounding_box()
    assert box["y"] + box["height"] < 900
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.locator("nav").bounding_box()["y"] == 0


def test_a_finding_links_to_its_rank_and_its_stretch_of_time(visit: Visit, straggler_page: Path) -> None:
    watched = visit(straggler_page)
    page = watched.page
    canvas = page.locator("#timeline-canvas")
    page.locator("#timeline-job").select_option("1")
    whole = float(canvas.get_attribute("data-to"))
    page.locator("details.finding a", has_text="rank 1").first.click()
    page.wait_for_function("document.getElementById('timeline-canvas').dataset.from > 0")
    assert page.locator("#timeline-job").input_value() == "0"
    seen = float(canvas.get_attribute("data-to")) - float(canvas.get_attribute("data-from"))
    assert 0 < seen < whole / 2
    assert page.locator("#timeline-live").inner_text().startswith("rank 1: ")
    page.locator("#perfetto summary").click()
    assert page.locator("#perfetto-place").inner_text().startswith("rank 1, ProfilerStep#")
    assert "--merge merged.json.gz" in page.locator("#perfetto-merge").inner_text()
    assert watched.complaints == []


def test_a_click_pins_what_is_there_until_the_next(visit: Visit, straggler_page: Path) -> None:
    page = visit(straggler_page).page
    canvas, tip = page.locator("#timeline-canvas"), page.locator("#timeline-tip")
    canvas.click(position={"x": 300, "y": 34})
    kept = tip.inner_text()
    assert kept.startswith("rank 0 · at ")
    canvas.hover(position={"x": 600, "y": 70})
    assert tip.inner_text() == kept == page.locator("#timeline-live").inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_idle_time_says_its_cause(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    page.evaluate("""() => {
      const none = { starts: [], ends: [] }, spans = { starts: Float64Array.of(0), ends: Float64Array.of(200) };
      stepscope.showTimeline({ kind: "trace", name: "one", names: [], notes: [], kinds: [["compute", "compute"]],
        causes: { data: "the host was loading data" },
        rows: [{ label: "rank 0", start: 0, window: 1000, unit: 1, named: [], steps: [], totals: {},
          spans: { compute: spans }, gaps: [[200, 700, "data"]] }] });
    }""")
    canvas = page.locator("#timeline-canvas")
    width = canvas.bounding_box()["width"]
    canvas.hover(position={"x": 72 + 0.5 * (width - 72), "y": 34})
    assert page.locator("#timeline-tip").inner_text().endswith("idle, 700 ns: the host was loading data")
    canvas.hover(position={"x": 72 + 0.95 * (width - 72), "y": 34})
    assert page.locator("#timeline-tip").inner_text().endswith("idle, a short gap")


def test_findings_open_without_scripts(visit: Visit, tmp_path: Path) -> None:
    from dataclasses import replace

    first = pages.diagnosis().findings[0]
    many = pages.diagnosis(findings=tuple(replace(first, title=f"finding {n}") for n in range(5)))
    path = write_page(tmp_path / "many.html", title="many", evidence=pages.evidence(), diagnosis=many)
    page = visit(path, java_script_enabled=False).page
    bodies = page.locator("details.finding .evidence")
    assert [bodies.nth(n).is_visible() for n in range(5)] == [True, True, True, False, False]
    page.locator("details.finding summary").nth(4).click()
    assert bodies.nth(4).is_visible()


def test_a_cell_without_a_trace_shows_its_phases(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    page.locator("#timeline-job").select_option("1")
    assert page.locator("#timeline-legend button").all_inner_texts()[:2] == ["waiting for data", "forward"]
    page.locator("#timeline-canvas").focus()
    page.keyboard.press("ArrowDown")
    assert "rank 1: 11.5 ms" in page.locator("#timeline-live").inner_text()


def test_tables_are_sorted_by_keyboard(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    table = page.locator("table[aria-labelledby=table-runs]")
    head = table.locator("thead th", has_text=re.compile("^step$"))
    ranks = [cell.strip() for cell in table.locator("tbody tr th:first-child").all_inner_texts()]
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    rising = [cell.strip() for cell in table.locator("tbody tr th:first-child").all_inner_texts()]
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    falling = [cell.strip() for cell in table.locator("tbody tr th:first-child").all_inner_texts()]
    # More ranks, shorter steps; the run that failed has none and comes last both ways.
    assert falling == ranks
    assert rising == [*reversed(ranks[:-1]), ranks[-1]]


def test_tables_are_filtered_and_say_how_many_are_left(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    box = page.locator(".table", has=page.locator("#table-runs"))
    box.locator("input").focus()
    page.keyboard.type('fp32 "on 4 ranks"')
    assert box.locator("tbody tr:visible").count() == 1
    assert box.locator(".count").inner_text() == "1 of 5 rows"
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    assert box.locator("tbody tr:visible").count() == 5


def test_everything_is_reached_by_tab_with_a_visible_focus(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    seen = []
    for _ in range(400):
        page.keyboard.press("Tab")
        name = page.evaluate("""() => {
          const e = document.activeElement, style = getComputedStyle(e);
          if (e === document.body) return null;
          return [e.tagName + "." + (e.id || e.className.baseVal || e.className), style.outlineStyle, e.tagName];
        }""")
        if name is None:
            break
        seen.append(name)
    assert len(seen) > 30
    assert [name for name, outline, _ in seen if outline == "none"] == []
    kinds = {tag for _, _, tag in seen}
    assert {"A", "BUTTON", "CANVAS", "INPUT", "SUMMARY", "svg", "SELECT"} <= kinds


def test_charts_tell_values_by_keys_and_under_the_pointer(visit: Visit, page_file: Path) -> None:
    page = visit(page_file).page
    chart = page.locator("figure.chart").first
    tip = chart.locator(".tip")
    chart.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() == "ddp on 2 ranks: 1.74x, efficiency 87%"
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    chart.locator("svg [aria-label]").last.hover(force=True)
    assert tip.inner_text() == "ddp on 8 ranks: 5.28x, efficiency 66%"


def test_colours_follow_the_system_and_the_switch(visit: Visit, page_file: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('figure.chart svg [stroke=\"var(--c0)\"]')).stroke"
    page = visit(page_file, color_scheme="dark").page
    assert page.evaluate(ground) == "rgb(20, 24, 28)"
    assert page.evaluate(line) == "rgb(74, 168, 232)"
    page.locator("#theme").click()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(ground) == "rgb(20, 24, 28)"
    assert visit(page_file, color_scheme="light").page.evaluate(line) == "rgb(0, 114, 178)"


def test_without_scripts_text_tables_and_values_of_charts_are_there(visit: Visit, page_file: Path) -> None:
    page = visit(page_file, java_script_enabled=False).page
    for shown in (".finding h3", "#table-runs", "figure.chart svg", "p.no-js"):
        assert page.locator(shown).first.is_visible(), shown
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".filter").first.is_visible()
    titles = page.locator("figure.chart").first.locator("svg title")
    assert titles.nth(1).text_content() == "ddp on 2 ranks: 1.74x, efficiency 87%"


def test_printed_parts_are_open_and_the_timeline_is_a_picture(visit: Visit, page_file: Path) -> None:
    watched = visit(page_file)
    page = watched.page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    picture = page.locator("#timeline-print img")
    assert picture.get_attribute("src").startswith("data:image/png;base64,")
    assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 2000
    assert not page.locator("#timeline").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert watched.complaints == []


def test_a_narrow_screen_scrolls_only_down(visit: Visit, page_file: Path) -> None:
    page = visit(page_file, width=400, height=800).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
