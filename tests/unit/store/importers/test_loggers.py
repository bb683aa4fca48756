"""What training loops leave behind by step: TensorBoard, the Hugging Face Trainer, Weights & Biases, Lightning."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError, UsageError
from stepscope.records.imported import Stated
from stepscope.results.scaling import scaling_rows
from stepscope.store.importers import detect, read_foreign, tensorboard
from stepscope.store.training_runs import meaning_of


def crc(data: bytes) -> bytes:
    """TFRecord's masked CRC-32C, bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(body: bytes) -> bytes:
    head = struct.pack("<Q", len(body))
    return head + crc(head) + body + crc(body)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def part(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def event(step: int, wall_s: float, values: Mapping[str, float], *, tensors: bool = False) -> bytes:
    """One record of an event file: plain values, or as tensors as TensorFlow 2 writes them."""
    summary = b""
    for tag, value in values.items():
        plain = b"\x15" + struct.pack("<f", value)
        tensor = part(8, b"\x08\x01" + part(4, struct.pack("<f", value)))
        summary += part(1, part(1, tag.encode()) + (tensor if tensors else plain))
    return framed(b"\x09" + struct.pack("<d", wall_s) + b"\x10" + varint(step) + part(5, summary))


def events(folder: Path, *records: bytes, number: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{1700000000 + number}.host.1.0"
    path.write_bytes(framed(b"\x09" + struct.pack("<d", 0.0) + part(3, b"brain.Event:2")) + b"".join(records))
    return path


class TestTensorBoard:
    def curve(self, *steps: int, start: float = 1000.0, every: float = 0.5, **changes: Any) -> list[bytes]:
        return [event(step, start + step * every, {"train/loss": 2.0 - step / 10}, **changes) for step in steps]

    def test_the_checksum_is_crc_32c(self) -> None:
        assert (
            tensorboard._masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
        )

    @pytest.mark.parametrize("tensors", [False, True])
    def test_a_run_a_folder(self, tmp_path: Path, tensors: bool) -> None:
        for name, every in (("one", 0.5), ("two", 0.25)):
            extra = event(3, 1003.0, {"eval/accuracy": 0.75, "perf/tokens_per_s": 1000.0}, tensors=tensors)
            events(tmp_path / name, *self.curve(0, 1, 2, every=every, tensors=tensors), extra)
        runs = by_id(read(tmp_path, key="tensorboard"))
        assert {name: run.step_ns.value if run.step_ns else None for name, run in runs.items()} == {
            "one": 5e8,
            "two": 2.5e8,
        }
        one = runs["one"]
        assert (one.train_loss, one.test_accuracy, one.samples_per_s.value) == (pytest.approx(1.8), 0.75, 1000.0)
        assert (one.unit, one.world_size, one.group) == ("tokens", None, tmp_path.name)
        assert "world_size" in one.missing
        assert [row.speedup for row in scaling_rows(
            read_foreign(tmp_path, Stated(world_size={"one": 1, "two": 2})).runs)] == [1.0, pytest.approx(1.0)]  # fmt: skip

    def test_a_job_that_was_started_again_goes_on_from_its_checkpoint(self, tmp_path: Path) -> None:
        events(tmp_path, *self.curve(0, 10, 20, 30))
        events(tmp_path, *self.curve(15, 25, start=2000.0), number=1)
        (run,) = read(tmp_path, key="tensorboard").runs
        assert run.train_loss == pytest.approx(2.0 - 2.5)  # not that of step 30, which was done again
        assert any("restarted" in note for note in run.notes)

    def test_files_written_at_the_same_time_are_one_job(self, tmp_path: Path) -> None:
        events(tmp_path / "run", *self.curve(0, 1, 2, 3))
        late = [event(step, 1000.2 + step / 2, {"train/loss": 9.0, "eval/accuracy": 0.5}) for step in range(3)]
        events(tmp_path / "run", *late, number=1)
        (run,) = read(tmp_path, key="tensorboard").runs
        assert (run.train_loss, run.test_accuracy) == (pytest.approx(1.7), 0.5)
        assert "event files were written at the same time: of a figure in several, the first file's counts" in run.notes

    def test_a_figure_charted_over_samples_is_no_step(self, tmp_path: Path) -> None:
        records = [
            each
            for step in range(1, 6)
            for each in (
                event(step, 1000 + 1.5 * step, {"lm loss": 5.0 - step / 10}),
                event(256 * step, 1000 + 1.5 * step, {"lm loss vs samples": 5.0 - step / 10, "lr vs tokens": 1.0}),
            )
        ]
        events(tmp_path / "run", *records)
        (run,) = read(tmp_path, key="tensorboard").runs
        assert (run.step_ns.value, run.train_loss) == (1.5e9, 4.5)

    def test_the_rates_of_an_evaluation_are_not_the_training_s(self, tmp_path: Path) -> None:
        rates = {"eval/samples_per_second": 500.0, "eval/steps_per_second": 62.5, "train/samples_per_second": 32.0}
        events(tmp_path / "run", event(1, 1.0, rates), event(2, 2.0, rates), event(3, 3.0, rates))
        (run,) = read(tmp_path, key="tensorboard").runs
        assert run.samples_per_s.value == 32.0
        assert run.step_ns.value == 1e9

    @pytest.mark.parametrize(
        ("tag", "stated"), [("tokens_per_s_per_gpu", {}), ("throughput(tps)", {"throughput(tps)": "tok/s/gpu"})]
    )
    def test_stated_ranks_turn_the_rate_of_one_into_that_of_all(
        self, tmp_path: Path, tag: str, stated: dict[str, str]
    ) -> None:
        events(tmp_path / "run", *(event(step, float(step), {tag: 100.0}) for step in range(1, 5)))
        for world_size, rate in (({}, None), ({"run": 8}, 800.0)):
            (run,) = read_foreign(tmp_path, Stated(columns=stated, world_size=world_size)).runs
            assert (run.samples_per_s and run.samples_per_s.value) == rate

    def test_a_cut_file_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        path = events(tmp_path, *self.curve(0, 1, 2))
        data = path.read_bytes()
        path.write_bytes(data[:-7])
        imported = read(tmp_path, key="tensorboard")
        assert imported.runs[0].train_loss == pytest.approx(1.9)
        assert any("cut or damaged at byte" in note for note in imported.notes)
        path.write_bytes(data[:-30] + b"\xff" + data[-29:])
        assert read(tmp_path, key="tensorboard").runs[0].train_loss == pytest.approx(1.9)

    def test_accuracies_in_per_cent(self, tmp_path: Path) -> None:
        events(tmp_path, *(event(n, n, {"epoch": n, "val_acc": value}) for n, value in enumerate((0.8, 60.0))))
        (run,) = read(tmp_path, key="tensorboard").runs
        assert [e.validation_accuracy for e in run.epochs] == [pytest.approx(0.008), pytest.approx(0.6)]

    def test_traces_beside_event_files_come_first(self, tmp_path: Path) -> None:
        path = events(tmp_path, *self.curve(0, 1))
        write(tmp_path / "host_1.2.pt.trace.json", '{"schemaVersion": 1, "traceEvents": []}')
        assert detect(tmp_path) is None
        assert detect(path)[0] == "tensorboard"

    @pytest.mark.parametrize("data", [b"", b"no records at all, but text that is long enough", framed(b"\x0b\x0b\x0b")])
    def test_what_is_none_is_refused(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "events.out.tfevents.1.h"
        path.write_bytes(data)
        with pytest.raises(DataError, match="event file"):
            read_foreign(path)

    def test_negative_steps_and_figures_that_are_not_finite(self, tmp_path: Path) -> None:
        events(tmp_path, event(-1, 1.0, {"loss": 3.0}), event(0, 2.0, {"loss": float("nan")}))
        (run,) = read(tmp_path, key="tensorboard").runs
        assert run.train_loss == 3.0
        assert any("not finite at 1 logged step" in note for note in run.notes)

    @pytest.mark.parametrize(
        ("tag", "role"),
        [
            ("train/loss", "train_loss"), ("loss/train", "train_loss"), ("Loss/val", "validation_loss"),
            ("eval/loss", "validation_loss"), ("val_acc", "validation_accuracy"), ("perf/step_time_ms", "step_ns"),
            ("charts/tokens_per_s", "samples_per_s"), ("step_time", None), ("grad_norm", None), ("eval/runtime", None),
        ],
    )  # fmt: skip
    def test_tags(self, tag: str, role: str | None) -> None:
        found = meaning_of(tag)
        assert (found.role if found else None) == role


def state(**changes: Any) -> dict[str, Any]:
    log = [
        {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 1e-5, "loss": 2.5, "step": 50},
        {"epoch": 1.0, "loss": 2.0, "step": 100},
        {"epoch": 1.0, "eval_accuracy": 0.7, "eval_loss": 1.9, "eval_samples_per_second": 99.0, "step": 100},
        {"epoch": 2.0, "loss": 1.5, "step": 200},
        {"epoch": 2.0, "eval_accuracy": 0.8, "eval_loss": 1.4, "eval_runtime": 5.0, "step": 200},
        {"epoch": 2.0, "step": 200, "total_flos": 1e15, "train_loss": 1.9, "train_runtime": 40.0,
         "train_samples_per_second": 160.0, "train_steps_per_second": 5.0},
    ]  # fmt: skip
    return {
        "best_metric": 0.8, "epoch": 2.0, "global_step": 200, "max_steps": 200,
        "is_world_process_zero": True, "log_history": log, "num_train_epochs": 2, "total_flos": 1e15, "train_batch_size": 8,
    } | changes  # fmt: skip


class TestTrainer:
    def test_log_and_summary(self, tmp_path: Path) -> None:
        (run,) = read(write(tmp_path / "trainer_state.json", state()), key="hf_trainer").runs
        assert [(e.number, e.train_loss, e.validation_loss, e.validation_accuracy) for e in run.epochs] == [
            (1, 2.0, 1.9, 0.7), (2, 1.5, 1.4, 0.8),
        ]  # fmt: skip
        assert (run.step_ns.value, run.samples_per_s.value, run.train_loss, run.micro_batch) == (0.2e9, 160.0, 1.5, 8)
        assert (run.status, run.world_size, run.settings["num_train_epochs"]) == ("ok", None, 2)
        assert any("including evaluation and saving" in note for note in run.notes)

    @pytest.mark.parametrize("finished", [True, False])
    def test_entries_that_have_a_runtime_are_no_summary(self, tmp_path: Path, finished: bool) -> None:
        """As they are with ``include_num_input_tokens_seen``: every entry has the runtime until then."""
        log: list[dict[str, Any]] = [
            {
                "step": step,
                "epoch": step / 100,
                "loss": 3.0 - step / 100,
                "train_runtime": 2.0 * step,
                "train_tokens_per_second": 5.0,
            }
            for step in range(10, 110, 10)
        ]
        summary = {
            "step": 100,
            "train_runtime": 200.0,
            "train_loss": 2.4,
            "train_samples_per_second": 16.0,
            "train_steps_per_second": 0.5,
        }
        whole = {
            "global_step": 100,
            "max_steps": 100 if finished else 200,
            "log_history": [*log, summary] if finished else log,
        }
        (run,) = read(write(tmp_path / "trainer_state.json", whole), key="hf_trainer").runs
        assert (run.status, run.train_loss) == ("ok" if finished else "interrupted", 2.0)
        assert run.step_ns.value == 2e9
        assert len(run.epochs) == 1

    def test_a_slow_step_is_not_taken_from_a_rounded_rate(self, tmp_path: Path) -> None:
        summary = {"step": 200, "train_runtime": 58000.0, "train_loss": 1.0, "train_steps_per_second": 0.003}
        whole = {"global_step": 200, "max_steps": 200, "log_history": [{"step": 100, "loss": 2.0}, summary]}
        (run,) = read(write(tmp_path / "trainer_state.json", whole), key="hf_trainer").runs
        assert run.step_ns.value == 290e9

    def test_checkpoints_are_earlier_states_of_one_run(self, tmp_path: Path) -> None:
        for name, step in (("checkpoint-100", 100), ("checkpoint-50", 50)):
            (tmp_path / "a" / name).mkdir(parents=True)
            log = [{"epoch": step / 100, "loss": step / 10, "step": step}]
            write(tmp_path / "a" / name / "trainer_state.json", state(global_step=step, log_history=log))
        (tmp_path / "b").mkdir()
        write(tmp_path / "b" / "trainer_state.json", state())
        runs = by_id(read(tmp_path, key="hf_trainer"))
        assert {name: (run.status, run.train_loss) for name, run in runs.items()} == {
            "a": ("interrupted", 10.0), "b": ("ok", 1.5),
        }  # fmt: skip
        assert runs["a"].error == "the state is of step 100 of 200"

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (json.dumps(state())[:-20], "not readable as JSON"),
            (json.dumps(state(log_history=[])), "log_history is empty"),
            (json.dumps(state(log_history=[{"loss": 1.0}])), "no log_history[0].step"),
            (json.dumps(state(log_history=[{"loss": 1.0, "step": "one"}])), "log_history[0].step is 'one'"),
            (json.dumps({"global_step": 1}), "no log_history"),
        ],
    )
    def test_damage_is_refused(self, tmp_path: Path, text: str, says: str) -> None:
        with pytest.raises(DataError) as caught:
            read(write(tmp_path / "trainer_state.json", text), key="hf_trainer")
        assert says in str(caught.value)


class TestWandb:
    HEAD = ",".join(f'"{name}"' for name in (
        "Step", "base - loss", "base - loss__MIN", "base - loss__MAX", "big - 2 - loss", "big - 2 - loss__MIN",
        "big - 2 - loss__MAX",
    )) + "\n"  # fmt: skip

    def test_a_chart_has_a_run_a_line(self, tmp_path: Path) -> None:
        text = (
            self.HEAD
            + '"0","2.5","2.4","2.6","3.0","3.0","3.0"\n"10","2.0","2","2","","",""\n"20","NaN","","","2.5","2.5","2.5"\n'
        )
        runs = by_id(read(write(tmp_path / "wandb_export_2024.csv", text), key="wandb_csv"))
        assert {name: run.train_loss for name, run in runs.items()} == {"base": 2.0, "big-2": 2.5}
        assert all(run.step_ns is None for run in runs.values())

    def test_a_loss_that_is_not_finite_is_counted(self, tmp_path: Path) -> None:
        rows = "".join(
            f"{step},{loss},{loss},{loss},,,\n" for step, loss in ((0, "2.5"), (1, "2.0"), (2, "NaN"), (3, "nan"))
        )
        (run,) = read(write(tmp_path / "chart.csv", self.HEAD + rows), key="wandb_csv").runs
        assert run.train_loss == 2.0
        assert run.notes == ("the training loss is not finite at 2 logged steps",)

    def test_a_history_with_the_index_of_pandas(self, tmp_path: Path) -> None:
        text = "\n".join((",_step,_runtime,train/loss,epoch", "0,0,1.0,2.0,0.5", "1,1,1.5,1.5,1.0", "2,2,2.0,1.0,1.5"))
        (run,) = read(write(tmp_path / "metrics.csv", text), key="wandb_csv").runs
        assert [(each.number, each.train_loss) for each in run.epochs] == [(1, 1.5), (2, 1.0)]

    def test_a_figure_without_a_unit_is_named(self, tmp_path: Path) -> None:
        text = "Step,a - step_time,a - step_time__MIN,a - step_time__MAX\n1,0.5,0.5,0.5\n2,0.5,0.5,0.5\n"
        imported = read(write(tmp_path / "chart.csv", text), key="wandb_csv")
        assert imported.runs[0].step_ns is None
        assert imported.notes == (
            "step_time is not read: its name has no unit; state what it is, for example --columns step_time=step_time_ms",
        )
        for meaning, step_ns in (("step_time_s", 0.5e9), ("-", None)):
            stated = read_foreign(tmp_path / "chart.csv", Stated(columns={"step_time": meaning}))
            assert (stated.runs[0].step_ns and stated.runs[0].step_ns.value) == step_ns
            assert stated.notes == ()
        with pytest.raises(UsageError, match="unknown meaning 'step_tme_s'"):
            read_foreign(tmp_path / "chart.csv", Stated(columns={"step_time": "step_tme_s"}))

    def test_charts_of_a_folder_are_joined(self, tmp_path: Path) -> None:
        write(tmp_path / "a.csv", self.HEAD + "0,2.5,2.5,2.5,3,3,3\n")
        write(
            tmp_path / "b.csv",
            "Step,base - tok/s,base - tok/s__MIN,base - tok/s__MAX\n0,90,9,9\n1,100,9,9\n2,110,9,9\n",
        )
        base = by_id(read(tmp_path, key="wandb_csv"))["base"]
        assert (base.train_loss, base.samples_per_s.value, base.unit) == (2.5, 105.0, "tokens")

    def test_a_history(self, tmp_path: Path) -> None:
        head = "_step,_runtime,_timestamp,train/loss,epoch,val_acc,note"
        text = "\n".join((head, "0,1.0,5,2.0,0,,a1", "1,1.5,6,1.5,0,0.5,", "2,2.0,7,1.0,1,0.6,b"))
        (run,) = read(write(tmp_path / "history.csv", text), key="wandb_csv").runs
        assert (run.step_ns.value, run.train_loss) == (0.5e9, 1.0)
        assert [(e.number, e.train_loss, e.validation_accuracy) for e in run.epochs] == [(0, 1.5, 0.5), (1, 1.0, 0.6)]

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("Step", "wall", "no column of steps or times"),
            ("2.5,2.4", "many1,2.4", ":2: base - loss is 'many1'"),
            ("0,2.5", "0.5,2.5", ":2: Step is '0.5'"),
            ("3,3,3\n", "3,3", ":2: 6 cells"),
        ],
    )
    def test_damage_is_refused(self, tmp_path: Path, old: str, new: str, says: str) -> None:
        text = (self.HEAD + "0,2.5,2.4,2.6,3,3,3\n").replace(old, new)
        with pytest.raises(DataError) as caught:
            read(write(tmp_path / "w.csv", text), key="wandb_csv")
        assert says in str(caught.value)


class TestLightning:
    METRICS = (
        "epoch,lr-AdamW,step,train_acc,train_loss_epoch,train_loss_step,val_acc,val_loss\n"
        "0,0.001,49,,,2.1,,\n0,0.001,99,,,1.9,,\n0,,99,,,,0.55,1.8\n0,,99,0.5,2.0,,,\n"
        "1,0.001,149,,,1.5,,\n1,,199,,,,0.65,1.4\n1,,199,0.6,1.6,,,\n"
    )

    def test_sparse_rows_of_an_epoch_are_joined(self, tmp_path: Path) -> None:
        folder = tmp_path / "lightning_logs" / "version_0"
        folder.mkdir(parents=True)
        write(folder / "metrics.csv", self.METRICS)
        write(folder / "hparams.yaml", "learning_rate: 0.001\nbatch_size: 64\ndataset: cifar10\nworld_size: 4\n")
        (run,) = read(folder, key="metrics_csv").runs
        assert [(e.number, e.train_loss, e.train_accuracy, e.validation_accuracy) for e in run.epochs] == [
            (0, 2.0, 0.5, 0.55), (1, 1.6, 0.6, 0.65),
        ]  # fmt: skip
        assert [e.validation_loss for e in run.epochs] == [1.8, 1.4]
        assert (run.world_size, run.dataset, run.settings["lr"], run.settings["batch_size"]) == (
            4,
            "CIFAR-10",
            0.001,
            64,
        )
        assert any("rows of one epoch are joined" in note for note in run.notes)

    def test_versions_are_runs(self, tmp_path: Path) -> None:
        for number in (0, 1):
            folder = tmp_path / f"version_{number}"
            folder.mkdir()
            write(folder / "metrics.csv", self.METRICS)
            write(folder / "hparams.yaml", f"lr: 0.{number + 1}\n")
        runs = by_id(read(tmp_path, key="metrics_csv"))
        assert {name: run.settings["lr"] for name, run in runs.items()} == {"version_0": 0.1, "version_1": 0.2}


def test_the_importers_do_not_take_each_others_files(tmp_path: Path) -> None:
    events(tmp_path / "tb", event(0, 1.0, {"loss": 1.0}))
    write(tmp_path / "trainer_state.json", state())
    write(tmp_path / "w.csv", TestWandb.HEAD + "0,2.5,2.5,2.5,3,3,3\n")
    write(tmp_path / "metrics.csv", TestLightning.METRICS)
    write(tmp_path / "t.csv", "gpus,samples/s\n1,10\n")
    found = {name: detect(tmp_path / name) for name in ("tb", "trainer_state.json", "w.csv", "metrics.csv", "t.csv")}
    assert [each[0] if each else None for each in found.values()] == [
        "tensorboard", "hf_trainer", "wandb_csv", "metrics_csv", "table",
    ]  # fmt: skip
