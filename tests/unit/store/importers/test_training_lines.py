"""Logs of training loops: a line a step, from one table; parts of a step where the framework times them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.diagnose.engine import diagnose
from stepscope.records.training import TrainingRun
from stepscope.results.open import load_evidence
from stepscope.store.importers import detect, read_foreign


def written(tmp_path: Path, lines: list[str], name: str = "train.log") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> TrainingRun:
    (run,) = read_foreign(path).runs
    return run


LINES = {
    "mmdet": ("2022-09-08 21:14:02,200 - INFO - Epoch [2][{step}/730]\tlr: 1e-2, eta: 1:00:00, time: 0.500, "
              "data_time: 0.400, memory: 44, loss: 1.0200", 500e6, 0.8),
    "imagenet": ("Epoch: [0][ {step}/2503]\tTime  0.500 ( 0.500)\tData  0.100 ( 0.100)\tLoss 6.92e+00 (6.9)",
                 500e6, 0.2),
    "timm": ("Train: 0 [ {step}/1251 (  4%)]  Loss: 6.94 (6.9)  Time: 0.500s, 600.0/s  LR: 1e-3  Data: 0.125 (0.2)",
             500e6, 0.25),
    "detectron2": ("[06/21 14:00:52 d2.utils.events]:  eta: 6:49:10  iter: {step}  total_loss: 1.310  time: 0.5000  "
                   "data_time: 0.2500  lr: 0.02  max_mem: 6120M", 500e6, 0.5),
    "maskrcnn": ("INFO: eta: 9:10:40  iter: {step}  loss: 1.0211 (1.2)  time: 0.5000 (0.39)  data: 0.3000 (0.14)  "
                 "lr: 0.02", 500e6, 0.6),
    "open_clip": ("2024-06-03,12:00:41 | INFO | Train Epoch: 0 [{step}/12000 (69%)] Data (t): 0.150 Batch (t): 0.500, "
                  "1284.00/s", 500e6, 0.3),
    "open_clip before 2022": ("INFO | Rank 0 | Train Epoch: 0 [{step}/12000 (1%)]\tData (t) 0.150\tBatch (t) 0.500\t"
                              "LR: 0.01", 500e6, 0.3),
    "mmengine": ("05/24 20:17:36 - mmengine - INFO - Epoch(train)  [1][ {step}/1051]  lr: 1e-5  eta: 8 days, 4:44:34  "
                 "time: 0.5000  data_time: 0.3000  memory: 179  loss: 7.6", 500e6, 0.6),
    "fastreid": ("[10/07 12:00:22 fastreid.utils.events]:  eta: 1:02:33  epoch/iter: 3/{step}  total_loss: 2.31  "
                 "time: 0.5000  data_time: 0.4000  lr: 3e-4", 500e6, 0.8),
    "MetricLogger": ("[12:00:02.12] Epoch: [3]  [ {step}/1312]  eta: 0:15:01  loss: 0.9012 (0.9122)  time: 0.5000  "
                     "data: 0.1000  max mem: 9021", 500e6, 0.2),
    "YOLOX": ("2021-08-03 | INFO | yolox.core.trainer:259 - epoch: 1/100, iter: {step}/983, mem: 77Mb, iter_time: 0.500s, "
              "data_time: 0.450s, total_loss: 5.8", 500e6, 0.9),
    "Paddle": ("[2021/02/23] root INFO: epoch: [5/500], iter: {step}, reader_cost: 0.25000 s, batch_cost: 0.50000 s, "
               "ips: 160.5", 500e6, 0.5),
    "PaddleSeg": ("[TRAIN] epoch=1, iter={step}/1000, batch_cost=0.5000, reader_cost=0.20000, ips=8.97", 500e6, 0.4),
    "SlowFast": ('[INFO] logging.py: 99: json_stats: {{"_type": "train_iter", "dt": 0.5, "dt_data": 0.25, "dt_net": 0.25, '
                 '"iter": "{step}/1200", "loss": 5.9}}', 500e6, 0.5),
    "another loop": ("epoch 3 batch {step} | loss 2.1 | batch_time 0.500 (0.49) | data_time 0.200 (0.21)", 500e6, 0.4),
    "another loop, ms": ("step {step} loss 2.1 iter time: 500.0 ms, data loading time: 200.0 ms", 500e6, 0.4),
}  # fmt: skip
"""A line of each form, its step in ns, and the share of it that waits for data."""


@pytest.mark.parametrize("form", LINES)
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "3: "])
def test_waiting_for_data_is_a_part_of_the_step(tmp_path: Path, form: str, prefix: str) -> None:
    line, step_ns, share = LINES[form]
    path = written(tmp_path, ["starts", *(prefix + line.format(step=50 * n) for n in range(1, 6))])
    run = read(path)
    assert run.step_ns is not None
    assert run.step_ns.value == pytest.approx(step_ns)
    assert run.parts_ns["data"] == pytest.approx(share * step_ns)
    assert sum(run.parts_ns.values()) == pytest.approx(step_ns)
    first = diagnose(load_evidence([path])).findings[0]
    assert (first.rule, first.title.split(":")[0]) == ("logged-parts", "Input-bound")
    assert first.stake_fraction == pytest.approx(share)


def test_little_waiting_is_no_problem(tmp_path: Path) -> None:
    line = LINES["mmdet"][0].replace("data_time: 0.400", "data_time: 0.020")
    findings = diagnose(load_evidence([written(tmp_path, [line.format(step=50 * n) for n in range(1, 20)])])).findings
    assert {finding.severity for finding in findings} == {"info"}


@pytest.mark.parametrize("quoted", [False, True])
def test_a_clock_that_runs_from_the_start_is_no_time_of_an_epoch(tmp_path: Path, *, quoted: bool) -> None:
    rows = [
        {"epoch": 3, "num_updates": 100 * n, "loss": 5.1, "train_wall": 20, "wall": 1000 + 50 * n} for n in range(1, 8)
    ]
    lines = [json.dumps(row) for row in rows]
    if not quoted:
        lines = [
            "2021-11-05 | INFO | train_inner | epoch 003: " + ", ".join(f"{k}={v}" for k, v in r.items()) for r in rows
        ]
    run = read(written(tmp_path, lines, "train.jsonl" if quoted else "train.log"))
    assert run.step_ns is not None
    assert run.step_ns.value == pytest.approx(0.5e9)
    assert run.parts_ns == pytest.approx({"computation": 0.2e9, "other": 0.3e9})


@pytest.mark.parametrize(
    ("lines", "step_ns", "mfu"),
    [
        (["iter {step}: loss 3.41, time 400.00ms, mfu 39.00%"], 0.4e9, 0.39),
        (["[INFO|DP=0]: iteration: {step} / 120000 | elapsed_time_per_iteration_ms: 0.40K | "
          "tokens_per_sec: 74K | lm_loss: 2.1 |"], 0.4e9, None),
        (["Training epoch 0, iteration {step}/199 | global_batch_size: 256 | global_step: {step} | "
          "reduced_train_loss: 11.10 | train_step_timing in s: 0.400"], 0.4e9, None),
        ([" 1%|x | {step}/2140 [01:27<1:24:33,  2.50it/s]"], 0.4e9, None),
        (["[batch={step}/4800]:", "\t Train throughput/batches_per_sec: 2.5000",
          "\t Train throughput/device/batches_per_sec: 0.3"], 0.4e9, None),
        (["step {step:5d}/19560 | loss 10.1 (+nanz)| lr 1e-5 | 400.00 ms | 39.0% bf16 MFU | 237212 tok/s"], 0.4e9, 0.39),
        (["step {step:05d}/21400 (0.01%) | loss: 9.1 | dt: 400.00ms | tok/sec: 399,600 | mfu: 39.0"], 0.4e9, 0.39),
        (["step:{step}/5100 train_loss:6.1 train_time:2120ms step_avg:400.00ms"], 0.4e9, None),
        (["Epoch 1 | iter {step} step {step} | loss train: 2.1, val: n/a | iter time: 400.00 ms (step)"], 0.4e9, None),
        (["INFO Train: [0/300][{step}/1251]\teta 0:41:02 lr 0.01\ttime 0.4000 (0.5)\tloss 6.9 (6.9)\tmem 9MB"], 0.4e9, None),
        (["{{'loss': 2.1, 'epoch': 0.1}}"] * 9 + ["{{'train_runtime': 8.4, 'train_samples_per_second': 9.85, "
          "'train_steps_per_second': 2.5, 'epoch': 1.0}}"], 0.4e9, None),
        (["  • Training Model Floating Point Utilization: 0.98%", "  • Total step time: 0.40s"], 0.4e9, 0.0098),
    ],
)  # fmt: skip
def test_a_step_is_read(tmp_path: Path, lines: list[str], step_ns: float, mfu: float | None) -> None:
    run = read(written(tmp_path, [line.format(step=n) for n in range(1, 15) for line in lines]))
    assert run.step_ns is not None
    assert run.step_ns.value == pytest.approx(step_ns)
    assert run.mfu == (None if mfu is None else pytest.approx(mfu))


def test_the_parts_of_deepspeed(tmp_path: Path) -> None:
    line = ("rank=0 time (ms) | forward: 400.0 | backward: 900.0 | backward_inner: 700.0 | backward_allreduce: 200.0 "
            "| step: 700.0")  # fmt: skip
    run = read(written(tmp_path, [line] * 6))
    shares = {"forward": 0.2, "backward": 0.35, "communication": 0.1, "optimizer": 0.35}
    assert run.parts_ns == pytest.approx({part: 2e9 * share for part, share in shares.items()})


@pytest.mark.parametrize(
    ("mean_s", "data_s", "share"), [(1.6, 1.2, 0.75), (0.4, 0.004, 0.01)], ids=["stalls between them", "all alike"]
)
def test_means_in_brackets_tell_of_steps_that_were_not_printed(
    tmp_path: Path, mean_s: float, data_s: float, share: float
) -> None:
    line = "Epoch: [0][ {step}/5004]\tTime 0.400 ({mean:.3f})\tData 0.004 ({data:.3f})\tLoss 7.1 (7.0)"
    lines = [line.format(step=10 * n, mean=mean_s, data=data_s) for n in range(1, 8)]
    run = read(written(tmp_path, lines))
    assert run.parts_ns["data"] / sum(run.parts_ns.values()) == pytest.approx(share, rel=0.01)


def test_the_start_of_an_epoch_is_not_in_the_steps_after_it(tmp_path: Path) -> None:
    line = "Epoch: [0][ {step}/5004]\tTime 0.400 ({mean:.3f})\tData 0.004 ({data:.3f})\tLoss 7.1 (7.0)"
    lines = [line.format(step=n, mean=0.4 + 60 / (n + 1), data=0.004 + 60 / (n + 1)) for n in range(10, 80, 10)]
    assert read(written(tmp_path, lines)).parts_ns["data"] < 0.1e9


def test_a_running_clock_is_no_time_of_a_step(tmp_path: Path) -> None:
    path = written(tmp_path, [f"step {n} time {n * 2.5:.2f} data 0.10 loss 3" for n in range(1, 9)])
    with pytest.raises(DataError, match="grows from line to line"):
        read_foreign(path)


@pytest.mark.parametrize("text", ["epoch 3 done\nloss 0.3\n", "Time 3 Data 4\n", '{"a": 1}\n', "iter: 3 of 7\n"])
def test_other_texts_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.log"
    path.write_text(text)
    match = detect(path)
    assert match is None or match[0] != "training_lines"


@pytest.mark.parametrize(
    ("line", "step_ns", "total"),
    [
        ("Epoch {epoch}:  9%|▎  | {step}/40 [00:51<01:14,  2.50it/s, v_num=1, loss=0.4]", 0.4e9, 120),
        ("Epoch {epoch}: :   3%|▎  | {step}/40 [01:05<21:27, v_num=u, reduced_train_loss=11.00, global_step={step}.00, "
         "train_step_timing in s=0.400]", 0.4e9, None),
    ],
)  # fmt: skip
def test_bars_of_lightning_are_one_run_over_its_epochs(
    tmp_path: Path, line: str, step_ns: float, total: int | None
) -> None:
    epochs = range(3) if total else range(1)
    bars = [line.format(epoch=epoch, step=step) for epoch in epochs for step in range(1, 41)]
    run = read(written(tmp_path, ["\r".join(bars)]))
    assert run.step_ns is not None
    assert run.step_ns.value == pytest.approx(step_ns)
    assert run.step_ns.n == (total or 40) - 1


def clock(seconds: int, form: str) -> str:
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    if form == ":":
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return " ".join(
        f"{value}{unit}" for value, unit in ((hours, "h"), (minutes, "m"), (rest, "s")) if value or unit == "s"
    )


FACTORY = '{{"current_steps": {step}, "total_steps": 9000, "loss": 1.4, "elapsed_time": "{at}", "total": 1}}'
SWIFT = "{{'loss': '1.4', 'global_step/max_steps': '{step}/9000', 'elapsed_time': '{at}', 'remaining_time': '54m 37s'}}"


@pytest.mark.parametrize(("line", "form"), [(FACTORY, ":"), (SWIFT, "m")])
@pytest.mark.parametrize(("every", "step_s", "prefix"), [(10, 41.0, ""), (1, 0.4, "[rank0]: "), (1, 4.0, "")])
def test_clocks_since_the_start_are_steps(
    tmp_path: Path, line: str, form: str, every: int, step_s: float, prefix: str
) -> None:
    lines = [prefix + line.format(step=n, at=clock(int(n * step_s), form)) for n in range(every, 200, every)]
    run = read(written(tmp_path, lines))
    assert run.step_ns is not None
    assert run.step_ns.value == pytest.approx(step_s * 1e9, rel=0.05)


def test_torchtitan_names_its_wait_for_data_in_json(tmp_path: Path) -> None:
    titan = '{{"step": {n}, "mfu(%)": 41.5, "time_metrics/end_to_end(s)": 2.0, "time_metrics/data_loading(s)": 0.6}}'
    run = read(written(tmp_path, [titan.format(n=n) for n in range(1, 30)]))
    assert run.parts_ns == pytest.approx({"data": 0.6e9, "computation": 1.4e9})
    assert run.mfu == pytest.approx(0.415)


@pytest.mark.parametrize(
    "lines",
    [
        [" 1250/1250 [==============================] - 44s 400ms/step - loss: 1.21 - accuracy: 0.61"],
        ["1250/1250 ━━━━━━━━━━━━━━━━━━━━ 44s 400ms/step - accuracy: 0.61 - loss: 1.21"],
        ["completed step: {step}, seconds: 0.400, TFLOP/s/device: 31.2, Tokens/s/device: 787.1, loss: 3.100"],
        ["Epoch: [0][{step}/5004]\tTime 0.400 (0.430)\tSpeed 621.359 (595.349)\tLoss 6.9101 (7.0121)"],
        ["step {step} | loss 2.1 | step time 400.0 ms | mfu 38.9%"],
        ["Loading shards: 100%|##| 4/4 [00:01<00:00,  9.00it/s]", "Epoch 0:  1%|# | {step}/900 [00:10<01:00,  2.50it/s]",
         "Validation: 100%|##| 50/50 [00:01<00:00, 40.00it/s]"],
    ],
    ids=["Keras", "Keras 3", "MaxText", "apex", "step time", "the longest of several bars"],
)  # fmt: skip
def test_a_step_of_other_loops_is_read(tmp_path: Path, lines: list[str]) -> None:
    run = read(written(tmp_path, [line.format(step=n) for n in range(1, 15) for line in lines]))
    assert run.step_ns is not None
    assert run.step_ns.value == pytest.approx(0.4e9)


def test_bars_that_begin_again_are_one_job(tmp_path: Path) -> None:
    lines = [f"Epoch {e}: 5%|# | {n}/20 [00:10<01:00,  2.50it/s]" for e in range(3) for n in range(1, 21)]
    assert read(written(tmp_path, lines)).last_step == 60


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Epoch {n}/20, Loss: 2.10, Val Acc: 61.10%, Time: 45.00s", 45.0),
        ("Epoch: {n:02d} | Epoch Time: 1m 12s", 72.0),
        ("[epoch {n:3d}] loss=2.1 elapsed: 0:{n:02d}:12", 60.0),
        ("{n}         2.100000    1.900000    0.612100    01:13     ", 73.0),
        ("2025-03-02 10:00:01.2: Epoch time: 61.00 s ", 61.0),
        ("  {n}/99   4.21G   0.061   31    640: 100%|###| 463/463 [01:22<00:00,  5.60it/s]", 82.0),
    ],
    ids=["print", "minutes", "a clock", "fastai", "nnU-Net", "Ultralytics"],
)
def test_times_of_epochs_are_read(tmp_path: Path, line: str, seconds: float) -> None:
    epochs = read(written(tmp_path, [line.format(n=n) for n in range(1, 9)])).epochs
    assert len(epochs) == 8
    assert [epoch.duration_ns for epoch in epochs[1:]] == pytest.approx([seconds * 1e9] * 7)


def test_parts_of_a_loop_of_your_own(tmp_path: Path) -> None:
    line = "it {n} | loss 3.1 | total 800.0 ms | data 400.0 ms | fwd 120.0 ms | bwd 240.0 ms | opt 40.0 ms"
    parts = read(written(tmp_path, [line.format(n=n) for n in range(1, 9)])).parts_ns
    assert parts == pytest.approx({"data": 0.4e9, "forward": 0.12e9, "backward": 0.24e9, "optimizer": 0.04e9})


def test_a_first_step_that_starts_up_is_in_no_mean(tmp_path: Path) -> None:
    line = LINES["mmdet"][0]
    lines = [line.format(step=50).replace("0.500", "5.000"), *(line.format(step=50 * n) for n in range(2, 8))]
    assert read(written(tmp_path, lines)).parts_ns["computation"] == pytest.approx(0.1e9)


def test_a_share_of_the_peak_that_stands_in_a_line_of_its_own(tmp_path: Path) -> None:
    lines = ["\t Train throughput/batches_per_sec: 2.5000", "\t Train throughput/device/mfu: 0.0712"]
    assert read(written(tmp_path, lines * 9)).mfu == pytest.approx(0.0712)


def test_losses_alone_are_refused_as_such(tmp_path: Path) -> None:
    path = written(tmp_path, [f"round {n} done: loss = {3 - n / 10:.3f}" for n in range(9)])
    with pytest.raises(DataError, match="no time is understood"):
        load_evidence([path])


@pytest.mark.parametrize(
    ("start", "again", "usual"), [(40.0, 20.0, 21.0), (1.718e9, None, 73.5)], ids=["started again", "since 1970"]
)
def test_clocks_of_tables_of_epochs(tmp_path: Path, start: float, again: float | None, usual: float) -> None:
    clock = [start + usual * n if again is None or n < 8 else again + usual * (n - 8) for n in range(14)]
    rows = [f"{n + 1},{seconds:.2f},{2 - n / 50}" for n, seconds in enumerate(clock)]
    path = tmp_path / "results.csv"
    path.write_text("\n".join(["epoch,time,train_loss", *rows]) + "\n")
    (run,) = read_foreign(path).runs
    times = [epoch.duration_ns for epoch in run.epochs]
    assert times[1] == pytest.approx(usual * 1e9)
    assert times[8] == (None if again is not None else pytest.approx(usual * 1e9))


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text("".join(f'{{"step": {n}, "loss": 2.1, "step_time_s": 0.4}}\n' for n in range(1, 15)))
    (run,) = read_foreign(path).runs
    assert run.step_ns is not None
    assert run.step_ns.value == pytest.approx(0.4e9)
