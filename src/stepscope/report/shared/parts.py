"""Names and colours of the parts of a step."""

from __future__ import annotations

from stepscope.records.parts import COLOURS, LEAVES, TITLES
from stepscope.report import vega

PARTS = {key: (TITLES[key], vega.color(COLOURS[key])) for key in LEAVES}
"""Key of a part that has none below it -> name and colour."""
