"""A comparison as a comment: never more than 20 lines of Markdown, the verdict first, nothing of a name as markup."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli.commands.compare import COMMAND, Compare
from stepscope.core.errors import CheckFailed, UsageError
from stepscope.examples.jobs import EXAMPLES
from stepscope.records.comparison import ComparedFigure, Comparison, Difference
from stepscope.records.nouns import Measured
from stepscope.report.comment import MOST_FIGURES, MOST_LINES, write_comment
from stepscope.report.conditions import parse_changes
from stepscope.results.figures import COMPARED


def figure(metric: str, ratio: float, verdict: str, *, what: str = "mlp, ddp") -> ComparedFigure:
    tested, same = verdict != "not tested", verdict == "no significant difference"
    return ComparedFigure(
        what=what, metric=metric, side="head", higher_is_better=COMPARED[metric].better == "high",
        first=Measured(value=100e6, n=6), second=Measured(value=100e6 * ratio, n=6), ratio=ratio,
        low=ratio * 0.99 if tested else None, high=ratio * 1.01 if tested else None,
        p_value=(0.5 if same else 0.002) if tested else None, untested=None if tested else "one figure on each side",
        replicate="round" if tested else None, verdict=verdict,
    )  # fmt: skip


def comparison(*figures: ComparedFigure, **more: object) -> Comparison:
    return replace(Comparison(sides=("baseline", "head"), differences=(), figures=figures), **more)


def rows(comment: str) -> list[list[str]]:
    """The cells of the table, without its head."""
    lines = [line for line in comment.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_what_differs_is_shown_the_worst_first_and_what_a_condition_asks_for_before_it() -> None:
    compared = comparison(
        figure("step_ns", 1.0, "no significant difference"), figure("samples_per_s", 0.9, "worse"),
        figure("peak_memory_bytes", 1.5, "not tested"), figure("epoch_ns", 0.8, "better"),
        figure("test_accuracy", 1.0, "not tested"),
    )  # fmt: skip
    assert [row[3] for row in rows(write_comment(compared))] == ["-10.0%", "-20.0%", "+50.0%"]
    asked = parse_changes(["peak_memory_bytes > 10%"], COMPARED)
    comment = write_comment(compared, asked)
    assert [row[3] for row in rows(comment)] == ["+50.0%", "-10.0%", "-20.0%"]
    assert comment.startswith("**Fails: peak")
    assert "2 more figures" in comment
    same = parse_changes(["step_ns > 1"], COMPARED)
    assert rows(write_comment(compared, same))[0][-1] == "no significant difference"


def test_where_nothing_differs_the_first_figure_is_shown() -> None:
    compared = comparison(*(figure(key, 1.0, "no significant difference") for key in ("step_ns", "samples_per_s")))
    assert [row[-1] for row in rows(write_comment(compared))] == ["no significant difference"]


def test_of_whole_jobs_the_step_is_shown_and_shares_of_the_wall_time_are_not() -> None:
    figures = (figure("diary_step_ns", 1.0, "no significant difference"), figure("goodput_fraction", 0.5, "not tested"))
    assert [row[0] for row in rows(write_comment(comparison(*figures)))] == ["step, median of rounds"]
    asked = parse_changes(["goodput_fraction < 0.9"], COMPARED)
    assert rows(write_comment(comparison(*figures), asked))[0][0] == "goodput"


def test_a_column_says_what_rows_are_of_where_that_differs() -> None:
    one = comparison(figure("step_ns", 1.1, "worse"), figure("samples_per_s", 0.9, "worse"))
    two = comparison(figure("step_ns", 1.1, "worse"), figure("step_ns", 1.2, "worse", what="mlp, zero"))
    assert "mlp, ddp" not in write_comment(one)
    assert [row[0] for row in rows(write_comment(two))] == ["mlp, zero", "mlp, ddp"]


@pytest.mark.parametrize("count", [0, 1, MOST_FIGURES, 60])
def test_however_much_there_is_it_fits_on_20_lines(count: int) -> None:
    many = comparison(
        *(figure("step_ns", 1.01 + n / 100, "worse", what=f"run {n}") for n in range(count)),
        differences=tuple(Difference(where="settings", key=f"key{n}", values=("a", None)) for n in range(count)),
        notes=tuple(f"note {n}" for n in range(count)),
        unmatched=tuple(f"alone {n}" for n in range(count)),
    )
    comment = write_comment(many)
    assert comment.count("\n") <= MOST_LINES
    assert len(rows(comment)) == min(count, MOST_FIGURES)
    if count == 60:
        assert " and 54 more" in comment  # settings
        shown = sum(line.startswith("- ") for line in comment.splitlines())
        assert f"and {4 + 2 * count - shown} more remarks" in comment


def test_names_are_text_and_no_markup() -> None:
    named = comparison(
        figure("step_ns", 1.1, "worse"),
        sides=("[main](http://x)", "a|b"),
        differences=(Difference(where="settings", key="lr", values=("<img src=x>", "`rm`\n# big")),),
    )
    named = replace(named, figures=(replace(named.figures[0], side="a|b"),))
    comment = write_comment(named)
    assert not re.search(r"(?<!\\)[<`\[]|^#", comment, re.MULTILINE)
    assert len(rows(comment)[0]) == 7


def test_the_command_prints_it_and_ends_as_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    naive, ddp = tmp_path / "naive", tmp_path / "ddp"
    for folder in (naive, ddp):
        EXAMPLES[folder.name].write(folder)
    conditions = ("trace_step_ns > 3%",)
    assert COMMAND.run(Compare(paths=(naive, ddp), md=True, fail_if=conditions)) == 0
    assert [row[3] for row in rows(capsys.readouterr().out)] == ["-23.4%", "-87.0%"]
    why = []
    for md in (True, False):
        with pytest.raises(CheckFailed) as failed:
            COMMAND.run(Compare(paths=(ddp, naive), md=md, fail_if=conditions))
        why.append(str(failed.value))
        assert capsys.readouterr().out.startswith("**Fails: trace") == md
    assert why[0] == why[1]


@pytest.mark.parametrize("other", ["json", "everything"])
def test_it_is_one_form_of_the_answer(other: str) -> None:
    with pytest.raises(UsageError, match="--md does not go with"):
        COMMAND.run(Compare(paths=(Path("a"), Path("b")), md=True, **{other: True}))
