"""Files that are no traces are refused by what they are, and left out where they lie beside traces."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path

import pytest
import zstandard
from tests.trace_builder import build, rank_text, write_job

from stepscope.core.errors import DataError
from stepscope.results.open import load_evidence
from stepscope.traces.job import analyse_captures, analyse_job
from stepscope.traces.load import load_file, load_traces

ET = {
    "schema": "1.1.1-chakra.0.0.4",
    "pid": 7,
    "nodes": [{"id": 1, "name": "[pytorch|profiler|execution_trace|process]"}],
}
OLD_ET = {"pid": 7, "nodes": [{"name": "aten::mm", "id": 3, "ctrl_deps": 2, "inputs": []}]}
STEP = {"ph": "X", "pid": 0, "tid": 0, "ts": 1.5, "dur": 2.5, "args": {"step": 16, "mb_id": 0}}


def what_if(*names: str) -> bytes:
    return json.dumps([{**STEP, "name": name, "cat": name} for name in names]).encode()


def zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.json", rank_text(build(world=1), 0))
    return data.getvalue()


REFUSED = {
    "et.json": (json.dumps(ET).encode(), "Chakra"),
    "et.json.gz": (gzip.compress(json.dumps(OLD_ET).encode()), "Chakra"),
    "chakra.0.et": (b"\x07\n\x050.0.4\x10\x08\x01\x12\x0caten::matmul", "Chakra"),
    "chakra.1.et": (b"\x21\x12\x1f\n\x06schema\x92\x01\x141.1.1-chakra.0.0.4....", "Chakra"),
    "timeline.json": (what_if("forward-compute", "backward-send", "optimizer"), "what-if analysis"),
    "timeline2.json": (what_if("data-load", "grads-reduce-scatter"), "what-if analysis"),
    "lines.json": (b'{"ph": "X", "ts": 1}\n{"ph": "X", "ts": 2}\n', "one event a line"),
    "null.json": (b'{"schemaVersion": 1, "traceEvents": null}', "traceEvents is not a list"),
    "printed.json": (b"{'traceEvents': []}", "Python objects"),
    "pointer.json": (b"version https://git-lfs.github.com/spec/v1\noid sha256:7\nsize 9\n", "Git LFS"),
    "page.json": (b"<!DOCTYPE html><html>sign in</html>", "web page"),
    "t.zip.json": (zipped(), "zip"),
    "t.bz2.json": (bz2.compress(b"{}" * 99), "bzip2"),
    "t.xz.json": (lzma.compress(b"{}" * 99), "xz"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_trace_is_named_with_what_to_give(tmp_path: Path, name: str) -> None:
    content, title = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_traces(tmp_path / name)
    assert title in (caught.value.why or "")
    assert "export_chrome_trace, or an nsys" not in (caught.value.fix or "")
    with pytest.raises(DataError) as caught:
        load_evidence([tmp_path / name])
    assert title in str(caught.value)


def test_others_beside_traces_are_left_out(tmp_path: Path) -> None:
    folder = write_job(build(world=2), tmp_path)
    for name, (content, _) in REFUSED.items():
        (folder / name).write_bytes(content)
    (summary,) = analyse_captures(folder).values()
    assert [p.facts.rank for p in summary.ranks] == [0, 1]
    text = " ".join(note.text for note in summary.notes)
    assert all(name in text for name in REFUSED if not name.endswith(".et"))


def test_a_folder_of_execution_traces_says_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "chakra.0.et").write_bytes(REFUSED["chakra.0.et"][0])
    with pytest.raises(DataError) as caught:
        analyse_job(tmp_path)
    assert "Chakra" in (caught.value.why or "")


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


PACKED = {
    "t.json.gz": (lambda data: gzip.compress(gzip.compress(data)), "packed 2 times"),
    "t.json": (lambda data: gzip.compress(zst(gzip.compress(data))), "packed 3 times"),
    "t.json.zst": (lambda data: zst(gzip.compress(data)), "packed 2 times"),
    "wide.json": (lambda data: data.decode().encode("utf-16"), "UTF-16"),
    "wide.json.gz": (lambda data: gzip.compress(data.decode().encode("utf-16-le")), "UTF-16-LE"),
    "wider.json": (lambda data: data.decode().encode("utf-32"), "UTF-32"),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("device_only", [False, True])
def test_texts_packed_twice_or_wide_are_read(tmp_path: Path, name: str, device_only: bool) -> None:
    text = rank_text(build(world=1), 0)
    (tmp_path / "plain.json").write_text(text)
    pack, said = PACKED[name]
    (tmp_path / name).write_bytes(pack(text.encode()))
    plain, packed = (load_file(tmp_path / n, device_only=device_only, processes=2) for n in ("plain.json", name))
    assert packed.events.ts_ns.tolist() == plain.events.ts_ns.tolist()
    assert packed.meta == plain.meta
    assert [note.kind for note in packed.notes if said in note.text] == ["repaired"]


def test_an_inner_file_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    text = rank_text(build(world=1, steps=30), 0).encode()
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(gzip.compress(text)[:-2000]))
    trace = load_file(tmp_path / "t.json.gz")
    assert len(trace.events)
    assert {"truncated", "repaired"} <= {note.kind for note in trace.notes}
