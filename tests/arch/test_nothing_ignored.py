"""No source or test file is git-ignored: an ignored test passes here and does not exist in a clone."""

from __future__ import annotations

import subprocess
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
    assert [name for name in ignored if "__pycache__" not in name and ".egg-info" not in name] == []
