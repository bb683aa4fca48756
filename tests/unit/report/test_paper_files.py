"""Tables and the text of a report as files: figures, names of document 002, texts that cannot break a format."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.evidence import epochs, evidence, run
from tests.training_records import failed, imported, study

from stepscope.core.errors import UsageError
from stepscope.records.finding import Advice, Diagnosis, Finding, Quiet, Skipped
from stepscope.records.training import TargetTime
from stepscope.report.files import comprehensive_csv, performance_report, tables, write_tables
from stepscope.report.render import files
from stepscope.report.render.terminal import ascii_text
from stepscope.report.views import runs, scaling
from stepscope.results.evidence import Evidence

NOTHING = Diagnosis(findings=(), skipped=(), quiet=())
HOSTILE = '\\input{/etc/passwd} & 100% $x_1$ #{~^} <script>alert(1)</script> | `rm` [a] "q" -- µs ± 中文 \x00\n*'


def finding(title: str = "2 ranks are slower than 1", **changes: object) -> Finding:
    fields: dict[str, object] = {
        "rule": "negative-scaling",
        "severity": "problem",
        "title": title,
        "evidence": ("speed-up 0.46x on 4 ranks", "31% of the step is exposed communication"),
        "stake_fraction": 0.31,
        "confidence": "measured",
        "advice": (Advice(text="use a larger batch", command="stepscope bench --set base.global_batch=1024"),),
    }
    return Finding(**{**fields, **changes})


def diagnosis(*found: Finding) -> Diagnosis:
    return Diagnosis(
        findings=found,
        skipped=(
            Skipped(rule="straggler", reason="no trace was given", command="stepscope bench MATRIX.yaml --profile"),
            Skipped(rule="clock-skew", reason="no trace was given", command="stepscope bench MATRIX.yaml --profile"),
        ),
        quiet=(Quiet(rule="noisy", looked_at="spread 2%, limit 10%"),),
    )


def study_evidence() -> Evidence:
    return evidence(*study(), *imported())


def test_the_files_are_called_as_document_002_says(tmp_path: Path) -> None:
    paths = write_tables(study_evidence(), diagnosis(finding()), tmp_path, ("csv", "tex", "md", "txt"))
    assert {path.name for path in paths} == {
        "comprehensive_summary.csv", "scaling.csv", "findings.csv", "summary_table.tex", "scaling.tex",
        "findings.tex", "summary_table.md", "scaling.md", "findings.md", "performance_report.txt",
        "scaling_budget.csv", "scaling_budget.tex", "scaling_budget.md",
        *(f"{table}.{kind}" for table in ("precision", "hardware") for kind in ("csv", "tex", "md")),
    }  # fmt: skip
    assert all(path.read_text() for path in paths)
    only = write_tables(study_evidence(), NOTHING, tmp_path / "b", ("txt",))
    assert [path.name for path in only] == ["performance_report.txt"]


def test_an_unknown_format_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'tex'"):
        write_tables(study_evidence(), NOTHING, tmp_path, ("texx",))
    assert list(tmp_path.iterdir()) == []


def test_epoch_times_follow_what_is_dropped() -> None:
    one = imported()[:1]
    first = replace(one[0], epochs=(replace(one[0].epochs[0], duration_ns=90e9), *one[0].epochs[1:4]))
    times = [
        float(next(csv.DictReader(comprehensive_csv((first,), (), drop_epochs=n).splitlines()))["epoch_ns"])
        for n in (0, 1)
    ]
    assert times[0] > times[1]
    said = [runs.build(one, (), drop_epochs=n).footnotes[0] for n in (0, 1, 2)]
    assert said[0] == "epoch: median over all epochs (--drop-epochs 0)."
    assert "the first epoch left out (--drop-epochs 1)" in said[1]
    assert "the first 2 epochs left out (--drop-epochs 2)" in said[2]


def test_scaling_states_targets_beside_the_epoch_speedup() -> None:
    made = evidence(*imported())
    row = next(r for r in made.scaling if not r.is_baseline)
    reached = TargetTime(
        accuracy=0.72, reached_epochs=9, time_ns=29e9, baseline_reached_epochs=3, baseline_time_ns=34e9, speedup=34 / 29
    )  # fmt: skip
    never = TargetTime(
        accuracy=0.77, reached_epochs=None, time_ns=None, baseline_reached_epochs=8, baseline_time_ns=90e9, speedup=None
    )  # fmt: skip
    table = scaling.scaling_table((replace(row, targets=(reached, never)),), made.runs, drop_epochs=1)
    text = files.as_markdown(table)
    first, second = (line for line in text.splitlines() if line.startswith("| exp021"))
    assert "| 0.72 | 9 | 29.0 s | 1.17x |" in first
    assert "| 0.77 | never | never | never |" in second
    assert "3.42x" in first
    assert "--drop-epochs 1" in text
    raw = table.rows[1].values[-1].raw
    assert raw is None


def test_the_report_puts_findings_first_with_the_next_command_whole() -> None:
    long = "stepscope bench --preset strong-scaling " + " ".join(f"--set base.option{n}={n}" for n in range(12))
    found = finding(subject="mlp on mnist", advice=(Advice(text="do this " * 30, command=long),))
    text = performance_report(study_evidence(), diagnosis(found), drop_epochs=2)
    order = [
        text.index(f"\n{name}\n") for name in ("Findings", "Scaling", "Skipped checks", "Machine", "Sources and notes")
    ]
    assert order == sorted(order)
    assert "1. [problem] 2 ranks are slower than 1" in text
    assert "Confidence: measured. A fix could recover up to 31% of the step. About: mlp on mnist. Rule:" in text
    assert f"$ {long}\n" in text
    assert "(--drop-epochs 2)" in text
    assert "straggler, clock-skew: no trace was given" in text
    assert text.count("$ stepscope bench MATRIX.yaml --profile") == 1
    assert "noisy: spread 2%, limit 10%" in text
    assert text.isascii()
    assert all(len(line) <= 100 for line in text.splitlines() if "$ " not in line)


def test_ascii_keeps_meaning() -> None:
    assert ascii_text("±2% · 3 µs → x – é ß 中") == "+-2% , 3 us -> x - e ss [U+4E2D]"
    assert ascii_text("a\x00b\x1b[31m\u202e") == "a b [31m "


def test_latex_prints_what_is_hostile() -> None:
    text = files.latex_escape(HOSTILE)
    assert "\\input" not in text
    assert "\\textbackslash{}input\\{/etc/passwd\\} \\& 100\\% \\$x\\_1\\$" in text
    assert "-{}- \\(\\mu\\)s \\(\\pm\\) {[}U+4E2D{]}" in text
    assert text.isascii()
    assert not re.search(r"(?<!\\)[%&$#]", text)
    assert files.latex_escape("*star") == "{*}star"
    assert files.latex_escape("größer") == "größer"


def hostile_evidence() -> Evidence:
    every = [replace(r, label=HOSTILE, group=HOSTILE, error=HOSTILE) for r in study()]
    return evidence(*every)


def test_hostile_names_stay_text_in_every_file(tmp_path: Path) -> None:
    bad = finding(title=HOSTILE, subject=HOSTILE, confidence=HOSTILE)
    for path in write_tables(hostile_evidence(), diagnosis(bad), tmp_path):
        text = path.read_text()
        if path.suffix == ".md":
            assert "<script" not in text
        if path.suffix == ".tex":
            assert "\\input" not in text
            rows = [line for line in text.splitlines() if line.endswith(r"\\")]
            body = [len(re.findall(r"(?<!\\)&", row)) for row in rows if "multicolumn" not in row]
            assert len(set(body)) == 1, "every row has the same number of cells"
        if path.suffix == ".txt":
            assert text.isascii()
            assert "\x00" not in text


def many(count: int) -> Evidence:
    return evidence(*(replace(study()[n % 3], run_id=f"r{n}", baseline_id=None) for n in range(count)), failed("x"))


def test_a_long_table_goes_over_pages_and_columns_left_out_are_named() -> None:
    text = files.as_latex(tables(many(60), NOTHING)["summary_table"])
    assert r"\begin{longtable}" in text
    assert r"\endhead" in text
    assert "In the CSV file only: " in text


DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,margin=2cm]{geometry}
\usepackage[utf8]{inputenc}
\usepackage{booktabs,array,longtable}
\begin{document}
%s
\end{document}
"""


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("what", ["study", "hostile", "long"])
def test_the_tables_compile(tmp_path: Path, what: str) -> None:
    made = {"study": study_evidence, "hostile": hostile_evidence, "long": lambda: many(60)}[what]()
    found = (finding(), finding(title=HOSTILE, subject=HOSTILE))
    paths = write_tables(made, diagnosis(*found), tmp_path, ("tex",))
    inputs = "\n".join(rf"\input{{{path.name}}}" for path in paths)
    (tmp_path / "all.tex").write_text(DOCUMENT % inputs)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Overfull" not in done.stdout or what != "study", re.findall(r"Overfull.*", done.stdout)


def test_a_run_with_fewer_epochs_than_are_dropped_keeps_them_all_and_that_is_said() -> None:
    short = evidence(run("a", epochs=epochs(seconds=[3.0, 2.0])), drop_epochs=5)
    said = " ".join(performance_report(short, NOTHING, drop_epochs=5).split())
    assert said.count("(--drop-epochs 5); none where there are no more than that.") == 1
    (line,) = csv.DictReader(comprehensive_csv(short.runs, (), drop_epochs=5).splitlines())
    assert (line["dropped_epochs"], float(line["epoch_ns"])) == ("0", 2.5e9)
