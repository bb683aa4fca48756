"""The page and the text of a profiled job: the verdict first, all steps above the timeline, nothing empty."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.diaries import planted, write_diary, write_record

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.verdict import Judged, judge
from stepscope.records.finding import Diagnosis, Skipped
from stepscope.report.files import performance_report
from stepscope.report.page import page_text
from stepscope.report.page.overview import shown_verdict, worth_saying
from stepscope.results.evidence import NEEDS, Evidence
from stepscope.results.open import load_evidence


def judged(folder: Path) -> tuple[Evidence, Judged]:
    evidence = load_evidence([folder])
    found = judge(evidence, diagnose(evidence))
    assert found is not None
    return evidence, found


def page(folder: Path) -> str:
    evidence, found = judged(folder)
    return page_text(title="a job", evidence=evidence, diagnosis=found.diagnosis, verdict=found.verdict)


def test_the_bar_of_a_step_is_its_tree_and_fills_its_width(tmp_path: Path) -> None:
    _, found = judged(planted(tmp_path / "run"))
    shown = shown_verdict(found.verdict)
    widths = [float(part["width"].rstrip("%")) for part in shown["bar"]]
    starts = [float(part["start"].rstrip("%")) for part in shown["bar"]]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert starts == pytest.approx([sum(widths[:n]) for n in range(len(widths))], abs=0.1)
    by_name = dict(zip((part["title"].split(":")[0] for part in shown["bar"]), widths, strict=True))
    assert by_name["backward"] == pytest.approx(100 * 19 / 36, abs=0.01)
    (cause,) = (row for row in shown["rows"] if row["cause"])
    assert (cause["name"], cause["cause"], cause["depth"]) == ("waiting for other ranks", "straggler", 1)
    assert [part["title"].startswith(cause["name"]) for part in shown["bar"] if part["cause"]] == [True]


def test_the_page_begins_with_the_verdict_and_all_steps(tmp_path: Path) -> None:
    text = page(planted(tmp_path / "run"))
    order = ("Straggler: rank 1", 'class="step-bar"', "All steps</h3>", "Parts of a step</h3>", ">Tables</h2>")
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    assert text.count("evaluation every 25 steps") >= 1
    assert "Sources and notes" in text


def test_what_a_folder_does_not_hold_is_no_section(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    write_diary(
        folder,
        {"forward": [80.0, 8.0, 9.0], "backward": [20.0, 16.0, 15.0]},
        flags=[16, 0, 0],
        end={"kind": "exception", "exception": "ValueError", "message": "boom"},
    )
    sections = re.findall(r"<h2[^>]*>([^<]*)<", page(folder))
    assert [each for each in sections if each in ("Findings", "Time budget", "Charts", "Scaling")] == []
    assert sections[1:] == ["Tables", "Sources and notes"]
    evidence, found = judged(folder)
    text = performance_report(evidence, found.diagnosis, verdict=found.verdict)
    headings = re.findall(r"^([A-Z][\w ]*)\n-+$", text, re.M)
    assert headings == ["Verdict", "Parts of a timed step", "Machine", "Sources and notes"]


def test_rules_of_other_evidence_are_not_counted_as_unable_to_look() -> None:
    own = Skipped(rule="launch-bound", reason="a CPU job launches no kernels")
    other = Skipped(rule="low-mfu", reason=NEEDS["comm"][0], command=NEEDS["comm"][1])
    assert worth_saying(Diagnosis(findings=(), skipped=(own, other), quiet=())) == (own,)
