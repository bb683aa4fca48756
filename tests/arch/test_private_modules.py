"""A module whose name begins with an underscore is its folder's own."""

from __future__ import annotations

import re
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"

_IMPORT = re.compile(
    r"^\s*from (stepscope(?:\.\w+)*)\._[a-z]\w* import|^\s*import (stepscope(?:\.\w+)*)\._[a-z]\w*", re.M
)


def test_private_modules_are_imported_in_their_own_folder_only() -> None:
    outside = []
    for file in sorted(SRC.glob("stepscope/**/*.py")):
        folder = ".".join(file.parent.relative_to(SRC).parts)
        found = (match[1] or match[2] for match in _IMPORT.finditer(file.read_text()))
        outside += [
            f"{file.relative_to(SRC)} imports a private module of {owner}" for owner in found if owner != folder
        ]
    assert outside == []
