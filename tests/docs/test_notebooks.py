"""The notebooks run from top to bottom, show what they hold, and stay small enough to be read."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.documents import FENCE, ROOT
from tests.notebooks import NOTEBOOKS, executed, texts

from stepscope.examples.jobs import EXAMPLES

named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) == 2


@named
def test_each_is_read_in_five_minutes_and_holds_little(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    words = [word for cell in cells if cell["cell_type"] == "markdown" for word in "".join(cell["source"]).split()]
    assert len(words) < 600
    assert path.stat().st_size < 300_000
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        assert output["output_type"] != "error"
        assert "image/png" in output.get("data", {}) or "application/vnd.vegalite.v5+json" not in output.get("data", {})
    assert not any(place in path.read_text() for place in ("/tmp/", "/root/", "/home/", "/work/"))


@named
def test_the_code_of_each_runs(path: Path, tmp_path: Path) -> None:
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    # The first cell installs, the second writes the jobs by a line that only IPython knows.
    code = "\n".join(["import stepscope", *("".join(cell["source"]) for cell in cells[2:])])
    assert "".join(cells[1]["source"]).count("stepscope example jobs") == 1
    main = [sys.executable, "-m", "stepscope", "example", "jobs"]
    subprocess.run(main, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@named
def test_each_runs_and_shows_what_it_holds(path: Path) -> None:
    for package in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="nbclient and ipykernel execute notebooks: make notebooks")
    import nbformat

    now = executed(path)
    assert texts(now) == texts(nbformat.read(path, as_version=4)), "`make notebooks` writes what they show now"


@named
def test_the_first_cell_installs_where_stepscope_is_not(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = pytest.importorskip("IPython.core.inputtransformer2", reason="IPython reads %pip").TransformerManager()
    cell = next(c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code")
    code = manager.transform_cell("".join(cell["source"]))
    asked: list[tuple[str, str]] = []
    shell = SimpleNamespace(run_line_magic=lambda name, line: asked.append((name, line)))
    space: dict[str, Any] = {"get_ipython": lambda: shell}
    monkeypatch.chdir(tmp_path)
    exec(code, space)
    assert not asked
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        exec(code, space)
    (tmp_path / "stepscope-0.1.0-py3-none-any.whl").touch()
    exec(code, space)
    [(name, line)] = asked
    assert (name, line.split()[0]) == ("pip", "install")
    assert space["wheels"] == ["stepscope-0.1.0-py3-none-any.whl"]


def test_the_page_about_them_shows_what_python_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs/howto/in-a-notebook.md"
    EXAMPLES["straggler"].write(tmp_path / "jobs/straggler")
    monkeypatch.chdir(tmp_path)
    examples = "\n".join(found["body"] for found in FENCE.finditer(page.read_text()) if found["kind"] == "python")
    asked = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    wrong: list[str] = []
    assert runner.run(asked, out=wrong.append).attempted > 5
    assert not runner.failures, "".join(wrong)
