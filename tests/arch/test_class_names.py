"""One name, one thing: a class of the interface is called like no other."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "stepscope"

SHARED = ("Options", "NoOptions")
"""What each entry of a registry, and each command, calls its own options."""

APART = ("cli/commands", "hook")
"""A command's class has the command's name; the hook is a package of its own in the user's job."""


def test_no_two_public_classes_have_one_name() -> None:
    named = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        if where.startswith(APART):
            continue
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            if name not in SHARED:
                named[name].append(where)
    assert len(named) > 500
    assert {name: places for name, places in named.items() if len(places) > 1} == {}
