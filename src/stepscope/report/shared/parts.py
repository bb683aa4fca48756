"""Names and colours of the parts of a step."""

from __future__ import annotations

from stepscope.diagnose.narrator import PART_NAMES
from stepscope.report import vega
from stepscope.results.diary import LEAVES

PARTS: dict[str, tuple[str, str]] = {
    key: (PART_NAMES[key], vega.color(color))
    for key, color in (
        ("data", "k-wait"),
        ("before", "c4"),
        ("inference", "k-hidden"),
        ("forward", "k-forward"),
        ("backward", "k-compute"),
        ("optimizer", "k-copies"),
        ("transfer", "k-exposed"),
        ("waiting", "k-late"),
        ("other", "k-other"),
    )
}
"""Key of a part in the tree: name and colour."""

assert tuple(PARTS) == LEAVES
