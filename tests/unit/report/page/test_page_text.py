"""The page's text: one file, nothing fetched, nothing run but our own script, whatever the names are."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from tests import pages
from tests.evidence import run

from stepscope.records.finding import Advice, Diagnosis, Finding, Quiet, Skipped
from stepscope.report.page import page_text, write_page
from stepscope.results.evidence import Evidence, Source

VOID = {"meta", "br", "img", "input", "link", "hr"}
FETCHING = {"src", "srcset", "poster", "data", "action", "formaction", "background", "ping"}


class Reader(HTMLParser):
    """Elements, texts and mistakes of a page, as a browser's parser would take it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self.mistakes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.mistakes.append(f"</{tag}> in {self.open[-3:]} at {self.getpos()}")
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        {"script": self.scripts, "style": self.styles}.get(where, self.texts).append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def page(evidence: Evidence | None = None, diagnosis: Diagnosis | None = None, **more: object) -> str:
    return page_text(
        title="hand-made", evidence=evidence or pages.evidence(), diagnosis=diagnosis or pages.diagnosis(), **more
    )  # fmt: skip


@cache
def sample_page() -> str:
    return page()


def hostile() -> tuple[Evidence, Diagnosis, str]:
    bad = " ".join(pages.HOSTILE)
    runs = tuple(
        replace(one, label=bad + one.label, group=bad, dataset=bad, error=one.error and bad, notes=(bad,))
        for one in pages.runs()
    )
    trace = pages.traced(bad, ranks=2)
    first = trace.summary.ranks[0]
    assert first.spans is not None
    named = tuple(replace(each, name=bad) for each in first.spans.named)
    ranks = (replace(first, spans=replace(first.spans, named=named)), *trace.summary.ranks[1:])
    record = replace(pages.evidence().records[0], name=bad, matrix={bad: bad}, argv=(bad,))
    evidence = pages.evidence(
        runs=runs,
        traces=(replace(trace, summary=replace(trace.summary, ranks=ranks)), pages.traced(bad, ranks=1)),
        records=(record,),
        notes=(bad,),
        sources=(Source(path=Path(bad), kind="imported", format=bad),),
    )
    said = Diagnosis(
        findings=(
            Finding(
                rule=bad, severity="problem", title=bad, evidence=(bad,), stake_fraction=0.5, confidence=bad,
                advice=(Advice(text=bad, command=bad),), subject=bad,
            ),
        ),
        skipped=(Skipped(rule=bad, reason=bad, command=bad),),
        quiet=(Quiet(rule=bad, looked_at=bad),),
    )  # fmt: skip
    return evidence, said, bad


def test_the_page_is_well_formed() -> None:
    reader = read(sample_page())
    assert reader.mistakes == []
    assert reader.open == []


def test_nothing_in_the_page_is_fetched() -> None:
    reader = read(sample_page())
    for tag, attributes in reader.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img"}, tag
        assert not FETCHING & attributes.keys(), (tag, attributes)
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), attributes
    assert not re.search(r"url\(|@import", "".join(reader.styles))


def test_the_policy_allows_our_style_and_script_by_their_hash_alone() -> None:
    reader = read(sample_page())
    (policy,) = [a["content"] for t, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for directive, text in (("style-src", reader.styles[-1]), ("script-src", reader.scripts[-1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert re.search(r"https?://(?!www\.w3\.org/2000/svg)", reader.scripts[-1]) is None


def test_hostile_names_change_no_element_and_are_there_to_read() -> None:
    evidence, diagnosis, bad = hostile()
    text = page_text(title=bad, evidence=evidence, diagnosis=diagnosis, made_by=("stepscope", bad))
    reader = read(text)
    assert reader.mistakes == []
    assert not any(tag == "img" for tag, _ in reader.tags)
    assert sum(tag == "script" for tag, _ in reader.tags) == 2
    assert sum(tag == "style" for tag, _ in reader.tags) == 1
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert bad in reader.texts
    data = json.loads(reader.scripts[0])
    assert data["jobs"][0]["name"] == bad
    assert bad[:100] in data["jobs"][0]["names"][0]
    assert "{{ 7 * 7 }}" in "".join(reader.texts)


def test_lone_surrogates_of_odd_file_names_can_be_written(tmp_path: Path) -> None:
    evidence = pages.evidence(notes=("name \udcff of a file",))
    written = write_page(tmp_path / "page.html", title="x", evidence=evidence, diagnosis=pages.diagnosis())
    assert "name \\udcff of a file" in written.read_text(encoding="utf-8")


def test_a_page_of_nothing_is_a_page() -> None:
    nothing = Diagnosis(findings=(), skipped=(), quiet=())
    reader = read(page(Evidence(sources=()), nothing))
    assert reader.mistakes == []
    assert "No rule found anything to say." in "".join(reader.texts)
    assert not any(attributes.get("id") == "timeline" for _, attributes in reader.tags)


def test_every_table_has_headers_and_a_name() -> None:
    reader = read(sample_page())
    ids = [a["id"] for _, a in reader.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in reader.tags:
        for name in ("aria-labelledby", "aria-describedby"):
            for target in (attributes.get(name) or "").split():
                assert target in ids, target
    assert sum(tag == "table" for tag, _ in reader.tags) >= 4
    heads = [a for tag, a in reader.tags if tag == "th"]
    assert all(a.get("scope") in ("col", "row") for a in heads)


def test_500_runs_are_one_page() -> None:
    many = tuple(one for n in range(125) for one in pages.runs(3, group=f"group {n}", named=f"number {n} "))
    text = page(pages.evidence(runs=many, traces=(), cells=(), comm=()))
    assert len(many) == 500
    assert len(text) < 2_500_000
    assert text.count("<tr>") > 900


def test_a_run_without_any_figure_is_a_row() -> None:
    assert read(page(Evidence(sources=(), runs=(run("bare", ranks=None),)))).mistakes == []


def test_shipped_scripts_and_styles_cannot_end_their_element() -> None:
    folder = resources.files("stepscope.report").joinpath("templates")
    for item in folder.iterdir():
        if item.name.endswith((".js", ".css")):
            assert "</" not in item.read_text(encoding="utf-8").replace("</svg>", "").replace("</span>", "")


@pytest.mark.parametrize("name", ["page.html.j2", "macros.html.j2", "page.css", "timeline.js"])
def test_templates_are_package_data(name: str) -> None:
    import tomllib

    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["stepscope"]
    assert any(Path("report/templates", name).match(pattern) for pattern in patterns)
