"""Logs of Megatron jobs: mixed output of many ranks, cut, killed, and of any length."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.results.scaling import scaling_rows
from stepscope.store.importers.megatron_log import IMPORTER

KEY = "megatron_log"
HEAD = """srun: job 1
|   0  Tesla V100-SXM2...  Off  | 00000000:1A:00.0 Off |                    0 |
using world size: 4, data-parallel-size: 2, tensor-model-parallel size: 2, pipeline-model-parallel size: 1
------------------------ arguments ------------------------
  bf16 ............................................ False
  fp16 ............................................ True
  hidden_size ..................................... 64
  log_interval .................................... 10
  micro_batch_size ................................ 2
  num_layers ...................................... 3
  seq_length ...................................... 128
-------------------- end of arguments ---------------------
"""
HEAD += "".join(
    f" > number of parameters on (tensor, pipeline) model parallel rank ({t}, 0): {n}" for t, n in ((1, 500), (0, 600))
)
HEAD += "\n\n"


def iteration(at: int, ms: str = "100.0", *, batch: int = 8, more: str = "lm loss: 1.5E+00 | ", of: int = 100) -> str:
    return (
        f" iteration {at:8d}/ {of:7d} | consumed samples: {at * batch:12d} | elapsed time per iteration (ms): {ms} | "
        f"learning rate: 1.500E-04 | global batch size: {batch:5d} | {more}number of skipped iterations:   0 | "
        "number of nan iterations:   0 |\n"
    )


def test_a_log_is_one_run_with_the_median_of_its_iterations(tmp_path: Path) -> None:
    lines = [iteration(10, "900.0"), iteration(20), iteration(30, "110.0"), iteration(40, "90.0")]
    imported = read(write(tmp_path / "job.out", HEAD + "".join(lines)), key=KEY)
    (run,) = imported.runs
    assert (run.step_ns.value, run.step_ns.n) == (100e6, 3)  # the first is warm-up
    assert (run.samples_per_s.value, run.unit) == (8 * 128 / 0.1, "tokens")
    assert (run.world_size, run.strategy, run.precision, run.model) == (
        4,
        "dp2 tp2 pp1",
        "fp16",
        "GPT 3 x 64",
    )
    assert (run.micro_batch, run.accumulation, run.global_batch, run.train_loss) == (2, 2, 8, 1.5)
    assert (run.num_parameters, run.hardware) == (1100, "Tesla V100-SXM2")
    assert (run.status, run.error) == ("ok", None)
    assert any("iteration 40 of 100 and does not state why" in note for note in run.notes)


def test_ranks_that_speak_in_one_line_are_all_heard(tmp_path: Path) -> None:
    memory = "[Rank 1] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 7.5 | max reserved: 9.0"
    memory += memory.replace("Rank 1", "Rank 3").replace("7.5", "8.25") + "\n"
    text = HEAD + memory.rstrip("\n") + iteration(10) + "print('elapsed time per iteration')\n"
    (run,) = read(write(tmp_path / "job.out", text), key=KEY).runs
    assert run.peak_memory_bytes == round(8.25 * 2**20)
    assert any("memory of 2 of 4 ranks" in note for note in run.notes)


def test_seconds_are_read(tmp_path: Path) -> None:
    lines = [iteration(n).replace("(ms): 100.0", "(s): 0.25") for n in (1, 2)]
    (run,) = read(write(tmp_path / "job.log", HEAD + "".join(lines)), key=KEY).runs
    assert run.step_ns.value == 0.25e9


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("Main process received SIGTERM, exiting\n", "interrupted", "received SIGTERM"),
        (
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2021 DUE TO TIME LIMIT ***\n",
            "interrupted",
            "TIME LIMIT",
        ),
        (
            "RuntimeError: CUDA out of memory. Tried 2 GiB\nMain process received SIGTERM\n",
            "oom",
            "iteration 20 of",
        ),
        ("Traceback (most recent call last):\n", "error", "a traceback after iteration 20 of 100"),
    ],
)
def test_how_a_job_ended_is_told(tmp_path: Path, end: str, status: str, says: str) -> None:
    (run,) = read(write(tmp_path / "job.out", HEAD + iteration(10) + iteration(20) + end), key=KEY).runs
    assert run.status == status
    assert run.error is not None
    assert says in run.error
    assert run.step_ns is not None


def test_jobs_behind_each_other_are_runs_of_their_own(tmp_path: Path) -> None:
    other = HEAD.replace("world size: 4, data-parallel-size: 2", "world size: 8, data-parallel-size: 4")
    text = HEAD + iteration(10, "200.0") * 2 + other + iteration(10) * 2
    imported = read(write(tmp_path / "job.out", text), key=KEY)
    assert [(run.run_id, run.world_size, run.scaling) for run in imported.runs] == [
        ("job-line3", 4, "strong"), ("job-line19", 8, "strong"),
    ]  # fmt: skip
    assert [row.speedup for row in scaling_rows(imported.runs)] == [1.0, 2.0]


def test_another_model_is_another_group(tmp_path: Path) -> None:
    write(tmp_path / "a.out", HEAD + iteration(10))
    write(tmp_path / "b.out", HEAD.replace("... 64\n", "... 128\n") + iteration(10))
    imported = read(tmp_path, key=KEY)
    assert len({run.group for run in imported.runs}) == 2
    assert any("are not compared" in note for note in imported.remarks)
    assert sorted(by_id(imported)) == ["a", "b"]


def test_a_ramped_batch_gives_no_throughput(tmp_path: Path) -> None:
    text = HEAD + iteration(10, batch=4) + iteration(20, batch=8)
    (run,) = read(write(tmp_path / "job.out", text), key=KEY).runs
    assert (run.samples_per_s, run.global_batch, run.accumulation) == (None, None, None)
    assert any("changes from 4 to 8" in note for note in run.notes)


@pytest.mark.parametrize(
    ("torn", "end"),
    [
        (iteration(30, "700.0").partition("0.0")[0], ""),  # of 700.0 ms
        (iteration(30, "700.0").partition(" learning")[0], ""),
        (iteration(30, "700.0").partition("0.0")[0] + iteration(31, "110.0"), iteration(40)),
        (iteration(30, "700.0").partition("0.0")[0] + "\n", iteration(40)),
        ("700.0 | " + iteration(30, "700.0").partition(" iteration ")[2], iteration(40)),
    ],
)
def test_a_torn_line_is_left_out_and_said(tmp_path: Path, torn: str, end: str) -> None:
    text = HEAD + iteration(10, "900.0") + iteration(20) + torn + end
    imported = read(write(tmp_path / "job.out", text), key=KEY)
    (run,) = imported.runs
    assert (run.step_ns.value, run.step_ns.n) == (100e6, 1 + bool(end))
    (note,) = [note for note in imported.notes if "job.out" in note]
    assert "17" in note.removeprefix(str(tmp_path))


def test_a_loss_that_is_nan_is_unknown_and_said(tmp_path: Path) -> None:
    bad = iteration(20, more="lm loss: nan | ").replace("nan iterations:   0", "nan iterations:   3")
    (run,) = read(write(tmp_path / "job.out", HEAD + bad), key=KEY).runs
    assert run.train_loss is None
    assert any("3 iterations had a NaN loss" in note for note in run.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "no iteration was logged"),
        (HEAD + "Main process received SIGTERM, exiting\n", "received SIGTERM"),
        (HEAD + iteration(10, "nan"), ":15: damaged iteration line"),
        (HEAD + iteration(10, "0.0"), ":15: elapsed time per iteration is 0.0"),
        (HEAD + iteration(10, batch=0), ":15: damaged iteration line"),
        (HEAD.replace("world size: 4", "world size: 5") + iteration(10), ":3: 5 ranks are not 2 x 2 x 1"),
    ],
)
def test_damage_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "job.out", text)
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_job_whose_script_echoes_100_kb_first_is_known(tmp_path: Path) -> None:
    echo = "+ module load something\n" * 5000
    assert len(read(write(tmp_path / "job.out", echo + HEAD + iteration(10)), key=KEY).runs) == 1


@pytest.mark.parametrize(
    "prefix",
    ["[default7]:", " 7: ", "1: [rank15]:", "2025-06-01T10:00:00.123+02:00 ", "n001: ", "\x1b[32m[rank-7/8] : "],
)
def test_arguments_behind_what_launchers_put_before_a_line(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in (HEAD + iteration(10) + iteration(20)).splitlines())
    (run,) = read(write(tmp_path / "job.out", text), key=KEY).runs
    assert (run.micro_batch, run.precision, run.settings["sequence_length"]) == (2, "fp16", 128)


def test_an_iteration_that_is_logged_twice_counts_once(tmp_path: Path) -> None:
    lines = [iteration(at, ms) for at, ms in ((10, "900.0"), (20, "100.0"), (30, "110.0")) for _ in range(2)]
    (run,) = read(write(tmp_path / "job.out", HEAD + "".join(lines)), key=KEY).runs
    assert run.step_ns.n == 2


def test_iterations_that_begin_again_are_a_job_of_their_own(tmp_path: Path) -> None:
    text = HEAD + "".join(
        iteration(at, ms) for at, ms in ((10, "1.0"), (20, "1.0"), (30, "1.0"), (20, "2.0"), (30, "2.0"))
    )
    runs = read(write(tmp_path / "job.out", text), key=KEY).runs
    assert [run.step_ns.value for run in runs if run.step_ns] == [1e6, 2e6]
    assert runs[0].settings == runs[1].settings


def test_a_long_log_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    noise = b"x" * (1 << 20) + b"\r"  # a progress bar: no line end at all
    with path.open("wb") as file:
        file.write(HEAD.encode())
        for _ in range(48):
            file.write(noise)
        file.write(b"\n" + "".join(iteration(10 * n) for n in range(1000)).encode())
    tracemalloc.start()
    (run,) = IMPORTER.read(path, Stated()).runs
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.step_ns.n == 999
    assert peak < 4 << 20


OLD_ARGUMENTS = "  batch_size ............ 4\n  num_layers ............ 24\n  seq_length ............ 1024\n"


def old_iteration(at: int, ms: str = "100.0") -> str:
    """As versions before 2 print it: no samples, no global batch, no colon after a figure's name."""
    return (
        f" iteration {at:8d}/  320000 | elapsed time per iteration (ms): {ms} | learning rate 1.500E-04 | "
        "lm loss 6.500000E+00 | loss scale 262144.0 |\n"
    )


def test_a_log_of_version_1_names_world_and_tensor_parallel_ranks(tmp_path: Path) -> None:
    head = "using world size: 8 and model-parallel size: 2 \n > using dynamic loss scaling\n" + OLD_ARGUMENTS
    lines = [old_iteration(100, "900.0"), old_iteration(200), old_iteration(300)]
    (run,) = read(write(tmp_path / "job.out", head + "".join(lines)), key=KEY).runs
    assert (run.world_size, run.strategy, run.step_ns.value, run.train_loss) == (8, "dp4 tp2 pp1", 100e6, 6.5)
    assert (run.micro_batch, run.global_batch, run.samples_per_s.value) == (4, 16, 16 * 1024 / 0.1)


@pytest.mark.parametrize("arguments", ["", OLD_ARGUMENTS])
def test_without_the_head_the_times_count_and_the_ranks_are_asked_for(tmp_path: Path, arguments: str) -> None:
    path = write(tmp_path / "job.out", arguments + "".join(old_iteration(n) for n in (100, 200, 300)))
    (run,) = read(path, key=KEY).runs
    assert run.step_ns is not None
    assert (run.world_size, run.strategy, run.global_batch, run.samples_per_s) == (None, None, None, None)
    assert "version does not print it, or the log was cut" in run.missing["world_size"]
    (stated,) = read(path, key=KEY, stated=Stated(world_size={"job": 4})).runs
    assert stated.world_size == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data-parallel-size: 2, ", "data-parallel size: 2, context-parallel size: 1 "),
        ("data-parallel-size: 2, ", "data-parallel size: 2, context-parallel size: 1, hierarchical sizes: None"),
    ],
)
def test_heads_of_later_versions(tmp_path: Path, old: str, new: str) -> None:
    head = HEAD.replace(old, new)
    assert head != HEAD
    (run,) = read(write(tmp_path / "job.out", head + iteration(10) + iteration(20)), key=KEY).runs
    assert (run.world_size, run.strategy) == (4, "dp2 tp2 pp1")


def test_a_mean_beside_the_time_and_an_endless_job(tmp_path: Path) -> None:
    line = iteration(20, "100.0/120.0").replace("/     100 |", "/infinity |")
    assert "infinity" in line
    (run,) = read(write(tmp_path / "job.out", HEAD + line), key=KEY).runs
    assert run.step_ns.value == 100e6


def test_iterations_that_are_logged_one_by_one_have_an_interval(tmp_path: Path) -> None:
    lines = [iteration(at, f"{100 + at % 3}.0") for at in range(1, 41)]
    (run,) = read(write(tmp_path / "job.out", HEAD + "".join(lines)), key=KEY).runs
    assert run.step_ns.low is not None
    assert run.step_ns.low <= run.step_ns.value == 101e6
    assert run.samples_per_s.high == pytest.approx(8 * 128 / (run.step_ns.low / 1e9))
