"""Every command that the documentation shows runs; the documents most read show what it prints (tests/documents.py)."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest
from tests.documents import DOCUMENTS, NOTE, ROOT, Block, blocks, check, fresh_folder
from tests.forked_command import forked_command

from stepscope.examples.jobs import EXAMPLES

BY_DOCUMENT = {document: list(blocks(document)) for document in DOCUMENTS}
KEYS = {"not run", "long", "measured", "first", "exit", "table"}


def _short(found: list[Block]) -> list[Block]:
    return list(takewhile(lambda block: "long" not in block.notes, found))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name, example in EXAMPLES.items():
        example.write(folder / name)
    return folder


def _run(found: list[Block], jobs: Path, folder: Path) -> None:
    shell = fresh_folder(jobs, folder / "shell")
    with forked_command(folder / "bin"):
        wrong = [text for block in found if "not run" not in block.notes for text in check(block, shell)]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", [d for d, found in BY_DOCUMENT.items() if _short(found)])
def test_commands_end_as_shown(document: str, jobs: Path, tmp_path: Path) -> None:
    _run(_short(BY_DOCUMENT[document]), jobs, tmp_path)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("document", [d for d, found in BY_DOCUMENT.items() if len(_short(found)) < len(found)])
def test_long_commands_end_as_shown(document: str, jobs: Path, tmp_path: Path) -> None:
    _run(BY_DOCUMENT[document], jobs, tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_no_private_path_and_gives_a_reason_for_what_is_not_run(document: str) -> None:
    text = (ROOT / document).read_text()
    assert not re.search(r"\.\./shared|(?<![\w.])/work/|/root/|/home/", text)
    for note in NOTE.finditer(text):
        assert note["key"] in KEYS, note[0]
        assert note["text"] or note["key"] in ("long", "measured"), note[0]
