"""One path -> evidence: what is damaged is named and left out, what nothing reads is refused with what to do."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests import comm_rows, fake_runs, nccl_tests_log

from stepscope.core.errors import DataError
from stepscope.records import codec
from stepscope.records.cell import RunRecord
from stepscope.records.nouns import Measured
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence
from stepscope.store.layout import RunLayout
from stepscope.store.writer import write_bytes, write_record

CELLS = ("one", "two", "three")


def run_folder(folder: Path, *, results: bytes | None = None) -> RunLayout:
    """A run of three cells on two ranks, all finished."""
    layout = RunLayout(folder)
    write_record(
        layout.run,
        RunRecord(kind="bench", name="m", matrix={}, cells=CELLS, argv=("stepscope", "bench", "m.yaml")),
    )
    for number, cell_id in enumerate(CELLS):
        steps = fake_runs.series([10_000_000 + n for n in range(20)])
        fake_runs.write_cell(layout, fake_runs.spec(cell_id, seed=number), ranks=[steps, steps])
    rows = b"".join(codec.encode_line(fake_runs.timed_row(each, 1e7)) for each in CELLS)
    write_bytes(layout.results_jsonl, rows if results is None else results)
    return layout


def load(path: Path) -> Evidence:
    return load_evidence([path])


def refused(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        load(path)
    return caught.value


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("README.md", b"# results\n", "no importer recognises it"),
        ("x.json", b'{"hello": 1}', "no importer recognises it"),
        ("x.json.gz", b"\0" * 9000, "only zero bytes"),
    ],
)
def test_a_file_that_nothing_reads_is_not_called_a_bad_trace(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(path)
    assert error.what == f"{path}: not a format that stepscope reads"
    assert why in (error.why or "")


def test_a_folder_of_run_folders_is_read_as_they_are(tmp_path: Path) -> None:
    for name in ("first", "second"):
        run_folder(tmp_path / "runs" / name)
    found = load(tmp_path / "runs")
    assert [run.run_id for run in found.runs][:2] == ["first/one", "first/two"]
    assert len(found.records) == 2
    (tmp_path / "nothing").mkdir()
    assert "name a run folder" in (refused(tmp_path / "nothing").fix or "")


def test_a_run_folder_is_read_with_the_runs_in_it_once(tmp_path: Path) -> None:
    outer = run_folder(tmp_path / "run").root
    inner = run_folder(outer / "second").root
    broken = run_folder(outer / "broken", results=b"").root
    for found in (load(outer), load_evidence([outer, inner])):
        assert sorted(run.run_id for run in found.runs) == sorted(
            f"{of}/{c}" for of in ("run", "second") for c in CELLS
        )
        assert [source.path for source in found.sources] == [outer, inner]
        assert any(note.startswith(f"{broken}: left out: ") for note in found.notes)


def test_paths_that_cannot_be_looked_at_or_are_empty_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "a pipe" in (refused(pipe).why or "")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refused(tmp_path / "loop").what.endswith("cannot be read")
    assert len(refused(tmp_path / ("x" * 5000)).what) < 300
    assert refused(pipe / "below").what.endswith("does not exist")
    (tmp_path / "metrics.json").touch()
    assert refused(tmp_path / "metrics.json").what.endswith("the file is empty")


def test_a_folder_with_a_file_that_cannot_be_looked_at_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all_reduce.log").write_text(nccl_tests_log.log([(1 << n, 10.0 + n) for n in range(10, 16)]))
    (tmp_path / "locked").touch()
    real = Path.is_file

    def is_file(self: Path) -> bool:
        if self.name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert load(tmp_path).comm


@pytest.mark.parametrize("results", [b"", b"\0" * 500])
def test_a_run_without_any_result_is_no_good_news(tmp_path: Path, results: bytes) -> None:
    error = refused(run_folder(tmp_path / "run", results=results).root)
    assert "no results in it" in error.what
    assert "same folder" in (error.fix or "")


def test_a_run_without_results_or_with_a_line_that_is_no_record_is_refused(tmp_path: Path) -> None:
    error = refused(run_folder(tmp_path / "run", results=b"[1]\n").root)
    assert "results.jsonl:1: expected a JSON object, found list" in error.what
    (tmp_path / "run.json").write_text('{"schema": "stepscope.run/x"}')
    assert "expected schema stepscope.run/1, found 'stepscope.run/x'" in str(refused(tmp_path))


def test_cells_without_a_result_are_counted_and_damaged_ones_left_out_with_their_reason(tmp_path: Path) -> None:
    layout = run_folder(tmp_path / "run")
    write_bytes(layout.results_jsonl, layout.results_jsonl.read_bytes()[:-50])
    found = load(layout.root)
    assert len(found.cells) == 2
    assert found.notes == ("no result yet of 1 of 3 cells: three",)
    layout = run_folder(tmp_path / "other")
    layout.cell("two").spec.write_bytes(b"\0" * 40)
    found = load(layout.root)
    assert [cell.cell_id for cell in found.cells] == ["one", "three"]
    (note,) = found.notes
    assert note.startswith("two: ")
    assert note.endswith("left out")
    for each in CELLS:
        layout.cell(each).spec.unlink(missing_ok=True)
    assert "spec.json" in refused(layout.root).what


def trace(path: Path, rank: int) -> Path:
    """A CPU rank's trace of one operator."""
    path.parent.mkdir(parents=True, exist_ok=True)
    event = '{"ph": "X", "name": "op", "cat": "cpu_op", "ts": 1, "dur": 5, "pid": 1, "tid": 1}'
    path.write_text(f'{{"distributedInfo": {{"rank": {rank}, "world_size": 2}}, "traceEvents": [{event}]}}')
    return path


def test_trace_files_of_one_folder_are_ranks_and_two_captures_of_one_rank_are_jobs(tmp_path: Path) -> None:
    files = [trace(tmp_path / "job" / f"rank{rank}.json", rank) for rank in range(2)]
    (job,) = load_evidence(files).traces
    assert [each.facts.rank for each in job.summary.ranks] == [0, 1]
    assert job.name == "job"
    other = trace(tmp_path / "other" / "rank0.json", 0)
    assert [len(each.summary.ranks) for each in load_evidence([*files, other]).traces] == [2, 1]
    files = [trace(tmp_path / name, 0) for name in ("before.json", "after.json")]
    assert [each.name for each in load_evidence(files).traces] == ["before.json", "after.json"]


def test_what_is_missing_of_traces_of_rows_and_of_a_link_matrix_is_said(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "op", "cat": "cpu_op", "ts": 1, "dur": 5, "pid": 1, "tid": 1}]}'
    )
    (tmp_path / "other.json").write_text('{"a": 1}')
    found = load(tmp_path)
    assert [(each.files, each.left_out) for each in found.files_found] == [
        (1, None), (1, "no format that stepscope reads"),
    ]  # fmt: skip
    path = tmp_path / "topo.txt"
    path.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\n")
    assert any("row GPU1 is missing" in note for note in load(path).notes)


def test_runs_that_broke_off_and_rows_left_out_are_said(tmp_path: Path) -> None:
    header = "epoch,train_loss,train_time\n"
    for name, rows in (("good", "1,0.5,10\n2,nan,10\n"), ("empty", ""), ("zeros", "1,0,0\n2,0,0\n")):
        folder = tmp_path / "experiments" / name
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(header + rows)
    notes = load(tmp_path).notes
    assert any("train_loss is 'nan'" in note for note in notes)
    assert any(note.startswith("empty: ") and "only its header" in note for note in notes)
    assert any(note.startswith("zeros: ") and "\n" not in note for note in notes)


def old_rows(*step_ms: float) -> bytes:
    """A results.jsonl as schema 1 wrote it: one rank, then two, then the rest on two as well."""
    rows = []
    for number, (cell_id, ms) in enumerate(zip(CELLS, step_ms, strict=True)):
        ranks = 1 if number == 0 else 2
        row = {
            "schema": "stepscope.result_row/1", "tool_version": "0.1.0", "created": "2026-11-21T00:20:08Z",
            "cell_id": cell_id, "status": "ok", "error": None, "workload": "mlp", "model": {"size": "small"},
            "dataset": "synthetic", "dataset_size": None, "strategy": "single" if ranks == 1 else "ddp",
            "strategy_options": {}, "precision": "fp32", "accumulation": 1, "world_size": ranks, "micro_batch": 64 // ranks,
            "global_batch": 64, "device": "cpu", "backend": "gloo", "num_parameters": None, "steps": 20, "epochs": None,
            "step_ns_median": ms * 1e6, "step_ns_low": ms * 0.9e6, "step_ns_high": ms * 1.1e6,
            "samples_per_s": 64e3 / ms, "baseline_cell_id": "one", "scaling": "strong", "speedup": 99.0,
            "varied": {"seed": number}, "notes": ["as it was"],
        }  # fmt: skip
        rows.append(json.dumps(row))
    return ("\n".join(rows) + "\n").encode()


def test_rows_of_schema_1_alone_are_runs_and_give_their_speedups(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(old_rows(20, 12.5, 10))
    found = load(path)
    assert [(run.run_id, run.label) for run in found.runs] == [
        ("one", "single seed=0 on 1 rank"), ("two", "ddp seed=1 on 2 ranks"), ("three", "ddp seed=2 on 2 ranks"),
    ]  # fmt: skip
    two = found.runs[1]
    assert (two.group, two.notes, two.source) == ("mlp small on synthetic, fp32", ("as it was",), str(path))
    assert (two.step_ns, two.phases) == (Measured(value=12.5e6, low=11.25e6, high=13.75e6, n=20), None)
    assert two.samples_per_s.low == pytest.approx(64e9 / 13.75e6)
    assert [row.speedup for row in found.scaling] == pytest.approx([1.0, 1.6, 2.0])


def test_rows_of_schema_1_in_their_run_folder_are_made_anew_from_the_samples(tmp_path: Path) -> None:
    found = load(run_folder(tmp_path / "run", results=old_rows(20, 12.5, 10)).root)
    assert [run.step_ns.value for run in found.runs if run.step_ns] == [10_000_009.5] * 3
    assert all(run.phases is not None for run in found.runs)


def test_a_row_of_schema_1_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(old_rows(20, 12.5, 10).replace(b'"strategy":', b'"other":', 1))
    error = refused(path)
    assert error.what == f"{path}:1: not a valid stepscope.result_row/1"
    assert "strategy" in (error.why or "")


def test_rows_without_their_run_folder_are_read_as_lines_as_a_list_and_torn(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    measured = comm_rows.sweep("all_reduce", world_size=4, alpha_us=20, rate=10e9)
    path.write_bytes(b"".join(codec.encode_line(row, header=True) for row in measured))
    assert load(path).comm == tuple(measured)
    rows = [codec.encode_line(fake_runs.timed_row(each, 1e7), header=True) for each in CELLS]
    lines, together = tmp_path / "results.jsonl", tmp_path / "all.json"
    lines.write_bytes(b"".join(rows))
    together.write_bytes(b"[" + b",\n".join(rows) + b"]")
    assert [replace(run, source="") for run in load(together).runs] == [
        replace(run, source="") for run in load(lines).runs
    ]
    lines.write_bytes(b"".join(rows)[:-30])
    found = load(lines)
    assert len(found.runs) == 2
    assert any("truncated and left out" in note for note in found.notes)
