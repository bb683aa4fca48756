"""Links of the documents lead somewhere, and every page is in the index (docs/README.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.documents import DOCUMENTS, ROOT

LINK = re.compile(r"(?<!`)\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def links(path: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of each link to a file of the checkout; the anchor is empty for a whole file."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [((path.parent / to).resolve() if to else path, anchor or "") for to, anchor in LINK.findall(text)]


def anchors(path: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h)).lower().replace(" ", "-") for h in headings
    }


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md", "llms.txt"])
def test_links_lead_somewhere(document: str) -> None:
    found = links(ROOT / document)
    assert [str(path) for path, _ in found if not path.exists()] == []
    assert [(path.name, to) for path, to in found if to and path.suffix == ".md" and to not in anchors(path)] == []


def test_every_page_is_in_the_index() -> None:
    listed = {path for path, _ in links(ROOT / "docs/README.md")}
    assert [
        str(p.relative_to(ROOT)) for p in PAGES if p not in listed and p.parent.name not in ("decisions", "docs")
    ] == []


def test_machines_find_the_index_first() -> None:
    text = (ROOT / "llms.txt").read_text()
    assert re.match(r"# \w+\n\n> .+", text)
    assert {path for path, _ in links(ROOT / "llms.txt")} >= {ROOT / "README.md", ROOT / "docs/README.md"}
