"""What a comparison or a prediction answers: one sentence, tables, and the document of the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.report.frame import Frame


@record
class Answer:
    """headline: the answer in a sentence. frames: its tables by name; ``answer["figures"]`` is one. record: all figures."""

    headline: str
    frames: Mapping[str, Frame]
    record: Any
    document: Mapping[str, Any]

    def __getitem__(self, name: str) -> Frame:
        if name not in self.frames:
            raise UsageError(unknown("table", name, tuple(self.frames)))
        return self.frames[name]

    def to_json(self) -> dict[str, Any]:
        """Return the document that the command prints with ``--json``."""
        return dict(self.document)

    def __repr__(self) -> str:
        return "\n\n".join([self.headline, *(repr(frame) for frame in self.frames.values() if len(frame))])

    def _repr_html_(self) -> str:
        from markupsafe import escape

        return f"<p><b>{escape(self.headline)}</b></p>" + "".join(
            frame._repr_html_() for frame in self.frames.values() if len(frame)
        )
