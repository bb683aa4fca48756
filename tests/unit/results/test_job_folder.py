"""A job's whole folder: each kind read by its reader, what is left out counted with the true reason, jobs kept apart."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests import memory_pickles
from tests.nccl_log import Talk
from tests.trace_builder import build, write_job

from stepscope.cli.report_run import default_folder
from stepscope.core.errors import DataError
from stepscope.diagnose.narrator import files_found, looked_at
from stepscope.records.profile import ProfileRecord
from stepscope.results.evidence import Evidence
from stepscope.results.job_folder import job_of
from stepscope.results.open import load_evidence
from stepscope.store.layout import ProfileLayout
from stepscope.store.writer import write_record


def dumps(folder: Path, *, behind: int | None = None) -> Path:
    """Recorder dumps of two ranks in their second all-reduce; ``behind`` never joined it."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        calls = 1 if rank == behind else 2
        entries = [
            {
                "record_id": n, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": n + 1,
                "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce", "state": "completed" if n == 0 else "started",
                "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
                "retired": n == 0, "is_p2p": False, "time_created_ns": 17 + n,
            }
            for n in range(calls)
        ]  # fmt: skip
        status = {"last_enqueued_collective": calls, "last_started_collective": calls, "last_completed_collective": 1}
        plain = {
            "version": "2.9", "nccl_version": "2.27.3", "entries": entries, "pg_status": {"0": status},
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        }  # fmt: skip
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(plain))
    return folder


def job(folder: Path) -> Path:
    """Traces in rank folders, dumps, NCCL logs, a snapshot, experiments; and what nobody measures with."""
    written = write_job(build(shape="ddp", world=2, steps=3), folder.parent / "written")
    for rank in range(2):
        place = folder / "traces" / f"rank{rank}"
        place.mkdir(parents=True)
        (written / f"rank-{rank}.json").rename(place / "trace.json")
    dumps(folder / "dumps", behind=1)
    logs = folder / "logs"
    logs.mkdir()
    for rank, text in enumerate(map("\n".join, Talk(nranks=2).texts())):
        (logs / f"nccl.{rank}.log").write_text(text)
    (logs / "stdout.txt").write_text("hello\n" * 30)
    memory_pickles.dump(folder / "memory.pickle", [memory_pickles.segment(memory_pickles.live(3 << 20))])
    for number in range(40):
        place = folder / "checkpoints" / f"step{number}"
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(b"\0" * 100)
        (place / "optimizer.pt").write_bytes(b"PK" + b"\0" * 98)
    for name in (".git", "venv/lib", "stepscope-report"):
        (folder / name).mkdir(parents=True)
    (folder / "stepscope-report" / "performance_report.txt").write_text("findings\n")
    (folder / "stepscope-report" / "scaling.csv").write_text("gpus,step_time_ms\n1,10\n2,6\n")
    (folder / "venv" / "pyvenv.cfg").touch()
    (folder / "venv" / "lib" / "a.json").write_text("{}")
    (folder / "train.py").write_text("import torch\n")
    (folder / "settings.yaml").write_text("lr: 0.1\n")
    return folder


def load(*paths: Path) -> Evidence:
    return load_evidence(paths)


def said(evidence: Evidence) -> list[str]:
    return [f"{state} {text}" for state, text in files_found(evidence)]


def test_every_kind_in_a_jobs_folder_is_read_and_the_rest_is_counted_with_its_reason(tmp_path: Path) -> None:
    found = load(job(tmp_path / "job"))
    (trace,) = found.traces
    assert trace.name == "job"
    assert [each.facts.rank for each in trace.summary.ranks] == [0, 1]
    assert len(found.nccl) == len(found.memory) == 1
    assert any("1" in str(finding) for finding in found.flight)
    text = said(found)
    assert any(line.startswith("read 2 files") and "profiler traces" in line for line in text)
    assert any(line.startswith("read 2 files") and "flight recorder" in line for line in text)
    assert any(line.startswith("read 2 files") and "NCCL_DEBUG" in line for line in text)
    assert any(line.startswith("read 1 file") and "memory snapshot" in line for line in text)
    assert "left out 80 files, 8.00 kB: weights and arrays (they hold no measurements)" in text
    assert "left out 2 files, 21.0 B: programs and settings (not a measurement)" in text
    assert any(line.startswith("left out 1 file") and "no format that stepscope reads" in line for line in text)
    assert found.unread == 83
    assert "not opened: .git, stepscope-report, venv" in found.notes


def test_a_folder_of_one_kind_alone_needs_no_lines(tmp_path: Path) -> None:
    write_job(build(world=2, steps=2), tmp_path / "job")
    assert files_found(load(tmp_path / "job")) == ()


def test_thousands_of_other_files_hide_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.results.job_folder.MOST_OPENED", 10)
    for number in range(30):
        (tmp_path / f"a{number}.txt").write_text("words\n")
    write_job(build(world=2, steps=2), tmp_path / "traces")
    found = load(tmp_path)
    assert len(found.traces[0].summary.ranks) == 2
    assert found.unread == 30
    assert any("20 files" in line and "more than 10 end in .txt" in line for line in said(found))


def test_several_jobs_of_a_folder_are_kept_apart_and_said(tmp_path: Path) -> None:
    for name in ("run1", "run2"):
        write_job(build(world=2, steps=2), tmp_path / name / "traces")
        dumps(tmp_path / name / "dumps")
    dumps(tmp_path / "run2" / "dumps", behind=0)
    found = load(tmp_path)
    assert [trace.name for trace in found.traces] == ["run1", "run2"]
    assert [len(trace.summary.ranks) for trace in found.traces] == [2, 2]
    (note,) = [note for note in found.remarks if "jobs of their own" in note]
    assert note.startswith("2 subfolders hold jobs of their own (run1, run2)")
    assert next(text for _, text in files_found(found) if "recorder" in text).startswith("run1: 2 files")


def test_windows_of_a_profiled_job_are_captures_of_one_job(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number in range(1, 6):
        write_job(build(world=2, steps=2), run / f"window-{number}")
    said_before = looked_at(load(run))
    assert said_before.startswith("window-1, window-2, window-3, ...: 5 jobs traced on 10 ranks"), "no job of profile"
    record = ProfileRecord(command=("train",), folder="/", host="h", first=None, argv=("stepscope", "run"))
    write_record(ProfileLayout(run).record, record)
    found = load(run)
    assert looked_at(found) == "run: 1 job traced on 2 ranks in 5 captures"
    assert [trace.name for trace in found.traces] == [f"window-{n}" for n in range(1, 6)]
    (note,) = [note for note in found.remarks if "captures" in note]
    assert note.startswith("run: 5 captures of one job, analysed separately: window-1, window-2")
    assert not any("jobs of their own" in note for note in found.remarks)
    assert all(rank.profile is not None for trace in found.traces for rank in trace.summary.ranks), "by step"
    assert looked_at(load(run / "window-1", run / "window-2")) == "run: 1 job traced on 2 ranks in 2 captures"
    assert looked_at(load(run / "window-1")) == "window-1: 1 job traced on 2 ranks"
    write_job(build(world=4, steps=2), tmp_path / "other")
    assert looked_at(load(run, tmp_path / "other")) == "run, other: 2 jobs traced on 6 ranks in 6 captures"


def test_a_damaged_trace_is_left_out_and_the_other_ranks_are_read(tmp_path: Path) -> None:
    folder = write_job(build(world=3, steps=2), tmp_path / "job")
    (folder / "rank-1.json").write_bytes(b'{"traceEvents": [{"ph": "X", "ts": }, ' + b"\0" * 900)
    found = load(folder)
    assert [each.facts.rank for each in found.traces[0].summary.ranks] == [0, 2]
    (line,) = [line for line in said(found) if line.startswith("left out")]
    assert "rank-1.json" in line


def test_a_folder_of_run_folders_and_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text('{"schema": "stepscope.run/99"}')
    (tmp_path / "words.txt").write_text("sea and sun\n")
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert "reads none of the files" in caught.value.what
    assert "1 file: no format that stepscope reads" in (caught.value.why or "")
    dumps(tmp_path / "dumps")
    assert any("run folder of stepscope" in line and "left out" in line for line in said(load(tmp_path)))


@pytest.mark.parametrize(
    ("path", "job", "rank"),
    [
        ("a.json", "", None),
        ("traces/rank3/a.json", "", 3),
        ("run2/nccl_logs/x.log", "run2", None),
        ("one/profiler/worker_1/t.json", "one", 1),
        ("sweep/n4/t.json", "sweep/n4", None),
        ("node1/rank9/t.json", "", 9),
        ("1/t.json", "1", None),
    ],
)
def test_folders_tell_job_and_rank(path: str, job: str, rank: int | None) -> None:
    assert job_of(Path(path)) == (job, rank)


def test_a_link_to_a_folder_is_said_and_not_followed(tmp_path: Path) -> None:
    write_job(build(world=2), tmp_path / "job" / "traces")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank-9.json").write_text("{}")
    (tmp_path / "job" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "job" / "results.csv").write_text("world_size,samples_per_s\n1,100\n2,190\n")
    found = load(tmp_path / "job")
    assert "left out 1 file, 0 B: links to folders are not followed (name the folder itself)" in said(found)
    assert [each.facts.rank for each in found.traces[0].summary.ranks] == [0, 1]


def test_the_only_window_of_a_job_is_called_as_the_job(tmp_path: Path) -> None:
    run = tmp_path / "profile-train.v2-1"
    write_job(build(world=2, steps=2), run / "window-1")
    record = ProfileRecord(command=("train",), folder="/", host="h", first=None, argv=("stepscope", "profile"))
    write_record(ProfileLayout(run).record, record)
    for path in (run, run / "window-1"):
        found = load(path)
        assert [trace.name for trace in found.traces] == [run.name]
        assert looked_at(found) == f"{run.name}: 1 job traced on 2 ranks"
        assert default_folder(found) == Path("stepscope-report") / run.name
    write_job(build(world=2, steps=2), run / "window-2")
    assert default_folder(load(run / "window-2")).name == f"{run.name}-window-2"
    assert default_folder(load(run)).name == run.name
