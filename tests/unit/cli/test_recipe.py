"""The lines that make good traces are the same wherever they are shown, and they are Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from stepscope.cli.commands.trace import Trace
from stepscope.core.errors import DataError
from stepscope.traces.discover import RECIPE
from stepscope.traces.load import load_traces

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("place", ["README.md", "docs/howto/read-a-trace.md"])
def test_documents_show_the_lines(place: str) -> None:
    assert f"```python\n{RECIPE}```" in (ROOT / place).read_text()


def test_help_and_errors_show_the_lines(tmp_path: Path) -> None:
    ast.parse(RECIPE)
    assert len(RECIPE.splitlines()) == 6
    for line in RECIPE.splitlines():
        assert line in (Trace.__doc__ or "")
    for name in (None, "other.json"):
        if name is not None:
            (tmp_path / name).write_text("{}")
        with pytest.raises(DataError) as caught:
            load_traces([tmp_path])
        assert all(line in (caught.value.fix or "") for line in RECIPE.splitlines())
