"""Link matrices: recognised wherever they stand in a text, and handed on unread."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.results.open import load_evidence
from stepscope.store.importers import detect, read_foreign
from stepscope.store.importers.topology import IMPORTER

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7\t0\nGPU1\tSYS\t X \t8-15\t1\n"


@pytest.mark.parametrize("before", ["", "$ nvidia-smi topo -m\n", "hello\n\n\x1b[1m\n"])
def test_a_paste_is_recognised_and_kept_as_it_is(tmp_path: Path, before: str) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(before + MATRIX)
    found = read_foreign(path)
    assert found.format == "topology"
    assert found.topology == before + MATRIX
    topology = load_evidence([path]).topology
    assert topology.socket_crossing_pairs() == (("GPU0", "GPU1"),)


def test_a_matrix_in_a_folder_is_read_and_of_several_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(MATRIX)
    assert load_evidence([tmp_path]).topology is not None
    (tmp_path / "b.txt").write_text(MATRIX)
    found = load_evidence([tmp_path])
    assert found.topology is not None
    assert [each.left_out for each in found.files_found] == [
        None,
        "b.txt: one job has one link matrix, and a.txt is read",
    ]


@pytest.mark.parametrize("text", ["", "GPU0 is busy\n", "the legend says NV# and SYS\n", "GPU0 OK OK\n"])
def test_other_text_about_gpus_is_not_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    assert detect(path) is None


def test_rows_without_their_header_come_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX.partition("\n")[2])
    evidence = load_evidence([path])
    assert evidence.topology is None
    assert any("link matrix not read" in note for note in evidence.notes)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX + "x" * (1 << 20))
    with pytest.raises(DataError, match="too large"):
        IMPORTER.read(path, Stated())
