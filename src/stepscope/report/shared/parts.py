"""Names and colours of the parts of a step."""

from __future__ import annotations

from stepscope.records.parts import STEP
from stepscope.report import vega

PARTS = {part.key: (part.title, vega.color(part.colour)) for part in STEP if part.colour is not None}
"""Key of a part that has none below it: name and colour."""
