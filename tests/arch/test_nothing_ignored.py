"""No source or test file is passed over: by git (it would not exist in a clone) or by pytest (it would never run)."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_no_source_or_test_file_is_ignored_by_git() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what git ignores cannot be asked")
    asked = subprocess.run(
        ["git", "status", "--porcelain", "--ignored", "--untracked-files=all", "src", "tests", "benchmarks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ignored = [line[3:] for line in asked.stdout.splitlines() if line.startswith("!! ")]
    built = ("__pycache__", ".egg-info", ".so")
    assert [name for name in ignored if not any(part in name for part in built)] == []


def test_every_folder_with_tests_is_collected(request: pytest.FixtureRequest) -> None:
    passed_over = request.config.getini("norecursedirs")
    folders = {part for file in (ROOT / "tests").rglob("test_*.py") for part in file.relative_to(ROOT).parts[:-1]}
    assert [name for name in folders if any(fnmatch(name, pattern) for pattern in passed_over)] == []
