"""The HTML page: everything that is known of some results, in one file that asks nothing of a network."""

from __future__ import annotations

from stepscope.report.page.build import page_text, write_page

__all__ = ["page_text", "write_page"]
