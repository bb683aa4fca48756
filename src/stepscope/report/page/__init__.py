"""The HTML page: everything that is known of some results, in one file that asks nothing of a network."""

from __future__ import annotations

from stepscope.report.page.build import page_text, write_page
from stepscope.report.page.timeline import merged_files

__all__ = ["merged_files", "page_text", "write_page"]
