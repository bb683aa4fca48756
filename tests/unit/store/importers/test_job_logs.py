"""Logs of torchtitan and DeepSpeed: several versions, mixed ranks, two jobs in one file, and what is cut."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError
from stepscope.results.scaling import scaling_rows
from stepscope.store.importers import detect, read_foreign


def titan(
    step: int, tps: str = "7,000", *, loss: str = "7.1", rank: int | None = 0, colour: bool = False, rate: str = "tps"
) -> str:
    prefix = "" if rank is None else f"[rank{rank}]:"
    on, off = ("\x1b[32m", "\x1b[39m") if colour else ("", "")
    return (
        f"{prefix}[titan] 2025-03-12 11:10:21,511 - root - INFO - \x1b[31mstep: {step:2}\x1b[39m  {on}loss:  {loss}{off}  "
        f"{on}memory: 40.20GiB(42.31%){off}  {on}{rate}: {tps}{off}  tflops: 300.1  {on}mfu: 30.20%{off}"
        if colour
        else f"{prefix}[titan] 2025-03-12 11:10:21,511 - root - INFO - step: {step:2}  loss:  {loss}  grad_norm:  0.8  "
        f"memory: 40.20GiB(42.31%)  {rate}: {tps}  tflops: 300.1  mfu: 30.20%"
    )


def head(world: int = 8, *, start: int = 1, total: int = 100, new: bool = False, rank: int = 0) -> list[str]:
    info = f"[rank{rank}]:[titan] 2025-03-12 11:10:00,000 - root - INFO - "
    mesh = (
        f"Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard={world // 2}, cp=1, tp=2, ep=1, etp=1"
        if new
        else f"Building 2-D device mesh with ['dp_shard', 'tp'], [{world // 2}, 2]"
    )
    return [
        info + "Starting job: Llama 3 8B training",
        info + mesh,
        info + "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        info + "\x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total parameters\x1b[39m",
        info + f"Training starts at step {start}, with local batch size 2, global batch size {world}, "
        f"sequence length 8192, total steps {total} (warmup 20)",
    ]


def log(folder: Path, *lines: str, name: str = "job.log") -> Path:
    return write(folder / name, "\n".join(lines) + "\n")


class TestTorchtitan:
    def test_the_batch_of_the_trainers_own_line(self, tmp_path: Path) -> None:
        """Since mid-2025 ``Training starts at step 1`` states no batch."""
        *facts, start = head()
        info = start.partition("Training")[0]
        trainer = info + (
            "Trainer is initialized with local batch size 2, global batch size 8, gradient accumulation steps 1, "
            "sequence length 8192, total steps 30 (warmup 20)"
        )
        steps = [titan(step, "7,000") for step in (1, 10, 20, 30)]
        (run,) = read(
            log(tmp_path, *facts, trainer, info + "Training starts at step 1", *steps), key="torchtitan_log"
        ).runs
        assert run.step_ns.value == pytest.approx(8 * 8192 / (7000 * 8) * 1e9)
        assert (run.micro_batch, run.accumulation, run.global_batch, run.status) == (2, 1, 8, "ok")

    @pytest.mark.parametrize("colour", [False, True])
    @pytest.mark.parametrize("new", [False, True])
    def test_a_job(self, tmp_path: Path, colour: bool, new: bool) -> None:
        steps = [
            titan(step, tps, colour=colour) for step, tps in ((1, "500"), (10, "7,000"), (20, "7,200"), (30, "7,100"))
        ]
        imported = read(log(tmp_path, *head(new=new), *steps), key="torchtitan_log")
        (run,) = imported.runs
        assert (run.world_size, run.samples_per_s.value, run.samples_per_s.n) == (8, 8 * 7100.0, 3)
        assert run.step_ns.value == pytest.approx(8 * 8192 / (8 * 7100) * 1e9)
        assert (run.strategy, run.model, run.num_parameters, run.global_batch, run.micro_batch) == (
            "dp_shard4 tp2", "llama3 8B", 8030261248, 8, 2,
        )  # fmt: skip
        assert (run.unit, run.train_loss, run.peak_memory_bytes) == ("tokens", 7.1, round(40.2 * 2**30))
        assert (run.mfu, run.hardware) == (pytest.approx(0.302), "NVIDIA H100 80GB HBM3")
        assert any("ends at step 30" in note for note in run.notes)

    def test_old_logs_say_wps(self, tmp_path: Path) -> None:
        path = log(tmp_path, *head(), *(titan(step, rate="wps", rank=None) for step in (1, 2, 3)))
        (run,) = read(path, key="torchtitan_log").runs
        assert run.samples_per_s.value == 8 * 7000.0

    def test_of_several_ranks_the_first_counts(self, tmp_path: Path) -> None:
        lines = [*head(), *head(rank=1)]
        for step in (1, 10, 20):
            lines += [titan(step, "7,000"), titan(step, "1", rank=1)]
        (run,) = read(log(tmp_path, *lines), key="torchtitan_log").runs
        assert (run.samples_per_s.value, run.samples_per_s.n) == (8 * 7000.0, 2)

    @pytest.mark.parametrize("prefix", ["2025-06-01T10:00:00.123+02:00 {}", "1: {}", " 0: [default3]:{}"])
    def test_prefixes_of_containers_and_tasks(self, tmp_path: Path, prefix: str) -> None:
        ranks = [[*head(rank=r), *(titan(s, rank=r, tps="1" if r else "7,000") for s in (1, 10, 20))] for r in (0, 1)]
        lines = [prefix.format(line) for both in zip(*ranks, strict=True) for line in both]
        (run,) = read(log(tmp_path, *lines), key="torchtitan_log").runs
        assert (run.samples_per_s.value, run.samples_per_s.n) == (8 * 7000.0, 2)

    def test_ranks_without_a_prefix_are_one_run(self, tmp_path: Path) -> None:
        bare = [line.removeprefix("[rank0]:") for line in head()]
        facts, start = bare[:-1] * 4, bare[-1]
        lines = [*facts, start, start, titan(1, rank=None), start, start, *[titan(1, rank=None)] * 3]
        lines += [titan(10, rank=None), titan(20, rank=None), titan(10, rank=None), titan(20, rank=None)]
        (run,) = read(log(tmp_path, *lines), key="torchtitan_log").runs
        assert (run.world_size, run.step_ns.n) == (8, 2)

    def test_validation_is_no_step(self, tmp_path: Path) -> None:
        lines = [*head(), titan(1), titan(10)]
        lines += [titan(20), titan(20, "22,000").replace("step:", "validate step:").replace("40.20GiB", "60.20GiB")]
        (run,) = read(log(tmp_path, *lines, titan(30)), key="torchtitan_log").runs
        assert (run.samples_per_s.value, run.samples_per_s.n) == (8 * 7000.0, 3)
        assert run.peak_memory_bytes == round(40.2 * 2**30)

    def test_a_degree_that_is_what_is_left_names_no_ranks(self, tmp_path: Path) -> None:
        lines = [line.replace("dp_shard=4", "dp_shard=-1") for line in head(new=True)]
        (run,) = read(log(tmp_path, *lines, titan(1), titan(10)), key="torchtitan_log").runs
        assert (run.world_size, run.strategy) == (None, "tp2")

    def test_a_job_that_was_started_again_has_its_own_facts(self, tmp_path: Path) -> None:
        """Newer versions do not print ``Starting job``."""
        first = [*head()[1:], titan(1), titan(50)]
        again = [*head(16, start=51)[1:], titan(51), titan(100)]
        runs = read(log(tmp_path, *first, *again), key="torchtitan_log").runs
        assert [(run.world_size, run.global_batch) for run in runs] == [(8, 8), (16, 16)]

    def test_two_jobs_of_one_log(self, tmp_path: Path) -> None:
        first = [*head(), titan(1), titan(50)]
        again = [*head(start=51), titan(51), titan(100), "[rank0]:[titan] - root - INFO - Training completed"]
        runs = read(log(tmp_path, *first, *again), key="torchtitan_log").runs
        assert [run.run_id for run in runs] == ["job-line1", "job-line8"]
        assert [any("and does not state why" in note for note in run.notes) for run in runs] == [True, False]
        appended = read(log(tmp_path, *first, titan(1), titan(2)), key="torchtitan_log").runs
        assert [run.world_size for run in appended] == [8, 8]

    def test_jobs_on_several_numbers_of_ranks_are_compared(self, tmp_path: Path) -> None:
        for world, tps in ((4, "7,000"), (8, "6,300")):
            log(tmp_path, *head(world), *(titan(step, tps) for step in (1, 2, 3)), name=f"w{world}.log")
        imported = read(tmp_path, key="torchtitan_log")
        assert {run.group for run in imported.runs} == {"llama3 8B, sequences of 8192"}
        (_, row) = scaling_rows(imported.runs)
        assert (row.speedup, row.scaling, row.basis) == (pytest.approx(8 * 6300 / (4 * 7000)), "weak", "median step")

    def test_a_cut_line_and_a_loss_that_is_nan(self, tmp_path: Path) -> None:
        path = log(tmp_path, *head(), titan(1), titan(2, loss="nan"), titan(3)[:90])
        (run,) = read(path, key="torchtitan_log").runs
        assert run.train_loss == 7.1
        assert any("not finite at 1 logged step" in note for note in run.notes)

    @pytest.mark.parametrize(
        ("left", "rates", "left_out"),
        [
            ("tps: 5", [7000.0], True),
            ("tps: 56", [7000.0], True),
            ("tps: 56,000", [7000.0], True),  # of 560,000 or 56,0001
            ("tps: 56,000  tfl", [7000.0, 56_000.0], True),
            ("tps: 56,000  tflops: 300.1  mfu: 30.20%", [7000.0, 56_000.0], False),
        ],
    )
    def test_a_last_line_without_its_end_holds_whole_words_only(
        self, tmp_path: Path, left: str, rates: list[float], left_out: bool
    ) -> None:
        last = titan(3, "56,000")
        last = last[: last.index("tps:")] + left
        text = "\n".join([*head(), titan(1, "500"), titan(2, "7,000"), last])
        imported = read(write(tmp_path / "job.log", text), key="torchtitan_log")
        (run,) = imported.runs
        assert (run.samples_per_s.value, run.samples_per_s.n) == (8 * sum(rates) / len(rates), len(rates))
        assert any("job.log:8" in note for note in imported.notes) == left_out

    def test_a_cut_figure_before_the_steps_is_none(self, tmp_path: Path) -> None:
        whole = "\n".join([*head(), titan(1), titan(2)])
        start = head()[-1]
        text = whole.replace(start, start[: start.index("sequence")]) + "\nsequence length 81"  # of 8192
        (run,) = read(write(tmp_path / "job.log", text), key="torchtitan_log").runs
        assert "sequence_length" not in run.settings

    @pytest.mark.parametrize(
        "torn",
        [
            titan(2, "56,000", rank=None).partition(",000")[0] + titan(2, "7,000", rank=1),  # two steps of two ranks
            titan(2, "56,000").partition(",000")[0] + "[rank1]: saving a checkpoint",
            titan(2, "56,000").partition("56,000")[0] + "[rank1]: saving a checkpoint",
            titan(2, "56,000").partition("6,000")[0] + " 000 steps",
        ],
    )
    def test_a_line_that_another_rank_ran_through_is_left_out_and_counted(self, tmp_path: Path, torn: str) -> None:
        path = log(tmp_path, *head(), titan(1, "500"), torn, torn, titan(3, "7,100"))
        imported = read(path, key="torchtitan_log")
        (run,) = imported.runs
        assert (run.samples_per_s.value, run.samples_per_s.n) == (8 * 7100.0, 1)
        (note,) = [note for note in imported.notes if str(path) in note]
        assert "2 torn lines" in note
        assert "line 7, 8" in note

    def test_without_a_head_ranks_are_missing(self, tmp_path: Path) -> None:
        (run,) = read(log(tmp_path, titan(1), titan(2)), key="torchtitan_log").runs
        assert (run.world_size, run.samples_per_s, run.step_ns) == (None, None, None)
        assert "world_size" in run.missing


def ds(text: str, *, second: int = 0, where: str = "logging.py:96:log_dist", rank: str = "") -> str:
    return f"{rank}[2023-07-25 21:03:{second:02},250] [INFO] [{where}] {text}"


CONFIG = [
    ds("DeepSpeedEngine configuration:", where="config.py:956:print"),
    ds("  bfloat16_enabled ............. True", where="config.py:957:print"),
    ds("  gradient_accumulation_steps .. 2", where="config.py:957:print"),
    ds("  train_batch_size ............. 64", where="config.py:957:print"),
    ds("  train_micro_batch_size_per_gpu  4", where="config.py:957:print"),
    ds("  world_size ................... 8", where="config.py:957:print"),
    ds("  zero_optimization_stage ...... 3", where="config.py:957:print"),
]


def timer(step: int, rate: float, *, old: bool = False) -> list[str]:
    progress = ds(f"[Rank 0] step={step}, skipped=1, lr=[5e-05], mom=[[0.9, 0.999]]", second=step % 60)
    figures = "MemAllocated=0.26GB, MaxMemAllocated=9.02GB"
    if old:  # counts micro-steps, and one rate only
        return [progress, ds(f"0/{step * 2}, SamplesPerSec={rate}, {figures}", where="timer.py:189:stop")]
    at = f"epoch=0/micro_step={step * 2}/global_step={step}"
    text = f"{at}, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec={rate}, {figures}"
    return [progress, ds(text, where="timer.py:215:stop")]


class TestDeepSpeed:
    @pytest.mark.parametrize("old", [False, True])
    def test_the_throughput_timer(self, tmp_path: Path, old: bool) -> None:
        lines = [
            line
            for step, rate in ((10, 10.0), (20, 80.0), (30, 84.0), (40, 82.0))
            for line in timer(step, rate, old=old)
        ]
        (run,) = read(log(tmp_path, *CONFIG, *lines), key="deepspeed_log").runs
        assert (run.samples_per_s.value, run.samples_per_s.n, run.step_ns.value) == (
            82.0,
            3,
            pytest.approx(64 / 82 * 1e9),
        )
        assert (run.world_size, run.global_batch, run.accumulation, run.precision) == (8, 64, 2, "bf16")
        assert (run.strategy, run.peak_memory_bytes) == ("zero-3", round(9.02 * 2**30))
        assert any("1 of 40 steps were skipped" in note for note in run.notes)

    def test_the_pipeline_engine(self, tmp_path: Path) -> None:
        rows = ((10, 2.5, 0.5), (20, 2.0, 0.25), (30, 1.5, 0.25))
        text = "steps: {} loss: {:.4f} iter time (s): {:.3f} samples/sec: {:.3f}"
        lines = [text.format(step, loss, time, 64 / time) for step, loss, time in rows]
        (run,) = read(log(tmp_path, *CONFIG, *lines), key="deepspeed_log").runs
        assert (run.step_ns.value, run.samples_per_s.value, run.train_loss) == (0.25e9, 256.0, 1.5)
        assert (run.world_size, run.settings["data_parallel"], run.micro_batch) == (None, 8, 4)
        assert "data-parallel" in run.missing["world_size"]

    def test_more_losses_and_a_total(self, tmp_path: Path) -> None:
        text = "step: {:5} /    30 loss: 5.5 lm loss: 5.4 iter time (s): 0.936 samples/sec: 136.706 eta: 5m"
        lines = [text.format(n) for n in (10, 20, 30)]
        (run,) = read(log(tmp_path, *lines, "Traceback (most recent call last):"), key="deepspeed_log").runs
        assert (run.status, run.world_size, run.train_loss) == ("ok", None, 5.5)

    def test_the_wall_clock_where_there_is_no_batch(self, tmp_path: Path) -> None:
        lines = [ds(f"[Rank 0] step={n}, skipped=0, lr=[1e-05], mom=[]", second=n) for n in (10, 20, 30)]
        (run,) = read(log(tmp_path, "DeepSpeed info: version=0.12", *lines), key="deepspeed_log").runs
        assert run.step_ns.value == pytest.approx(1e9)

    @pytest.mark.parametrize("cut", [0, 12])
    def test_a_packed_log(self, tmp_path: Path, cut: int) -> None:
        text = "\n".join([*CONFIG, *timer(10, 80.0), *timer(20, 80.0)])
        data = gzip.compress(text.encode())
        path = tmp_path / "job.log.gz"
        path.write_bytes(data[: len(data) - cut])
        (run,) = read(path, key="deepspeed_log").runs
        assert run.samples_per_s.value == 80.0

    def test_a_damaged_time_of_a_line_is_none(self, tmp_path: Path) -> None:
        lines = [line.replace("2023-07-25", "2023-07-85") for line in (*timer(10, 80.0), *timer(20, 80.0))]
        (run,) = read(log(tmp_path, *lines), key="deepspeed_log").runs
        assert run.step_ns is None

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            (
                ["rank=0 time (ms) | forward_microstep: 652.42 | backward_microstep: 2164.53 | step_microstep: 1172.13",
                 "rank=0 time (ms) | forward: 650.00 | backward: 2164.00 | backward_allreduce: 162.60 | step: 1172.00"],
                "forward 650 ms, backward 2164 ms, backward allreduce 162.6 ms, step 1172 ms",
            ),
            (
                ["[Rank 0] time (ms) | fwd_microstep: 50.0 | bwd_microstep: 90.0",
                 "[Rank 0] time (ms) | optimizer_step: 19.3",
                 "[Rank 0] time (ms) | fwd: 475.0 | bwd: 1268.0 | bwd_inner: 508.0 | bwd_allreduce: 759.0 | step: 82.0"],
                "fwd 475 ms, bwd 1268 ms, bwd inner 508 ms",
            ),
        ],
        ids=["older", "newer"],
    )  # fmt: skip
    def test_parts_of_a_step(self, tmp_path: Path, lines: list[str], said: str) -> None:
        path = log(tmp_path, *CONFIG, *map(ds, lines), *timer(10, 80.0), *timer(20, 80.0))
        (run,) = read(path, key="deepspeed_log").runs
        assert any("parts of its step" in note and said in note for note in run.notes)

    def test_prefixes_of_launchers_and_two_jobs(self, tmp_path: Path) -> None:
        first = [f"[rank0]:{line}" for line in (*CONFIG, *timer(10, 80.0), *timer(20, 80.0))]
        second = [f"[rank0]:{line}" for line in (*CONFIG, *timer(10, 40.0), *timer(20, 40.0))]
        runs = by_id(read(log(tmp_path, *first, *second), key="deepspeed_log"))
        assert [run.samples_per_s.value for run in runs.values() if run.samples_per_s] == [80.0, 40.0]
        assert list(runs) == ["job-line1", "job-line12"]

    @pytest.mark.parametrize("end", ["", "[rank1]: saving\n"])
    @pytest.mark.parametrize("shown", ["AvgSamplesPerSec=1", "CurrSamplesPerSec=8"])
    def test_a_cut_rate_is_none(self, tmp_path: Path, shown: str, end: str) -> None:
        last = timer(30, 88.0)[1]
        text = "\n".join([*CONFIG, *timer(10, 80.0), *timer(20, 90.0), last[: last.index(shown) + len(shown)] + end])
        imported = read(write(tmp_path / "job.log", text), key="deepspeed_log")
        (run,) = imported.runs
        assert run.samples_per_s.value == 90.0
        assert any("job.log" in note for note in imported.notes)

    def test_a_log_without_a_step_is_refused(self, tmp_path: Path) -> None:
        path = log(tmp_path, *CONFIG)
        assert detect(path) is None
        with pytest.raises(DataError):
            read_foreign(path)

    def test_megatron_with_deepspeed_is_megatrons(self, tmp_path: Path) -> None:
        lines = (
            "using world size: 8, data-parallel-size: 8, tensor-model-parallel size: 1, pipeline-model-parallel size: 1 ",
            *timer(1, 10.0),
            " iteration        1/      10 | elapsed time per iteration (ms): 100.0 | global batch size:     8 |",
        )
        assert detect(log(tmp_path, *lines))[0] == "megatron_log"
