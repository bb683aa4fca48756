"""Debian's chromium for tests and benchmarks of pages, driven by playwright; why there is none, where that is so."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing() -> str | None:
    """Why pages cannot be opened here; None: they can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install 'stepscope[test]'"
    if executable() is None:
        return "no chromium here: apt-get install chromium"
    return None


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser; nothing of it is left when the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", "--disable-gpu"], chromium_sandbox=False
        )
        try:
            yield started
        finally:
            started.close()
