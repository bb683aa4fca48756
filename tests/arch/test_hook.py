"""The hook runs in the user's job: any Python from 3.8 on, nothing but the standard library and the job's own torch."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from stepscope.launch.hooked_job import HOOK

FILES = sorted(HOOK.rglob("*.py"))
ALLOWED = {"torch", "stepscope_hook", "stepscope_dry"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_hook_is_python_3_8_and_imports_nothing_foreign(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    names = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    foreign = {name.partition(".")[0] for name in names} - ALLOWED - sys.stdlib_module_names
    assert not foreign


def test_torch_is_imported_inside_functions_only() -> None:
    for path in FILES:
        if path.parent.name == "stepscope_dry":  # loaded once torch is there
            continue
        for node in ast.parse(path.read_text()).body:
            assert not (isinstance(node, ast.Import) and any(a.name.startswith("torch") for a in node.names)), path
            assert not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch")), path
