"""Any table of results: names and units of columns, what a row becomes, and every way in which a table is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError, UsageError
from stepscope.records.imported import Stated
from stepscope.records.training import TrainingRun
from stepscope.results.joining import require_stated
from stepscope.results.open import load_evidence
from stepscope.results.scaling import baseline_of, scaling_rows
from stepscope.store.columns import columns_of, meanings_of
from stepscope.store.importers import detect, read_foreign
from stepscope.store.stated import parse_columns

KEY = "table"
HEAD = "| Benchmark | Framework | Cluster | GPUs | Date | Img/sec |\n|---|---|:--|---|---|---|\n"


def runs_of(folder: Path, text: str, *, name: str = "t.csv", **columns: str) -> dict[str, TrainingRun]:
    return by_id(read(write(folder / name, text), key=KEY, stated=Stated(columns=columns)))


def refusal(folder: Path, text: str, *, name: str = "t.csv", **columns: str) -> str:
    path = write(folder / name, text)
    with pytest.raises((DataError, UsageError)) as caught:
        read_foreign(path, Stated(columns=columns))
    assert str(path) in str(caught.value)
    return str(caught.value)


def rate(run: TrainingRun) -> float:
    return run.samples_per_s.value


class TestNames:
    @pytest.mark.parametrize(
        ("header", "role", "scale"),
        [
            ("step_time_ms", "step_ns", 1e6), ("Step Time (s)", "step_ns", 1e9), ("avg_step_time_us", "step_ns", 1e3),
            ("s/it", "step_ns", 1e9), ("ms_per_step", "step_ns", 1e6), ("Iteration time [ms]", "step_ns", 1e6),
            ("step", "step", 1.0), ("epoch", "epoch", 1.0), ("Epoch(s)", "epoch_ns", 1e9), ("epoch_time", "epoch_ns", 1e9),
            ("peak_memory_gb", "peak_memory", 2**30), ("Max Memory (MiB)", "peak_memory", 2**20),
            ("accuracy %", "validation_accuracy", 0.01), ("val acc", "validation_accuracy", 1.0),
            ("# GPUs", "world_size", 1.0),
            ("num_params_M", "parameters", 1e6), ("size_mb", "size", 2**20), ("bytes", "size", 1.0),
        ],
    )  # fmt: skip
    def test_a_name_with_its_unit(self, header: str, role: str, scale: float) -> None:
        (index, meaning) = columns_of([header]).by_role[role]
        assert (index, meaning.scale) == (0, scale)

    @pytest.mark.parametrize(
        ("header", "item", "per_rank"),
        [
            ("samples/s", "samples", False), ("throughput_samples_per_sec", "samples", False), ("Img/sec", "images", False),
            ("Throughput (tok/s)", "tokens", False), ("tokens_per_s", "tokens", False), ("tok/s/GPU", "tokens", True),
            ("tokens_per_sec_per_gpu", "tokens", True), ("sequences per second", "sequences", False),
        ],
    )  # fmt: skip
    def test_what_a_rate_counts(self, header: str, item: str, per_rank: bool) -> None:
        meaning = columns_of([header]).by_role["samples_per_s"][1]
        assert (meaning.item, meaning.per_rank) == (item, per_rank)

    def test_a_time_without_unit_is_unclear_and_no_number_of_steps(self) -> None:
        columns = columns_of(["gpus", "step_time", "throughput"])
        assert not columns.has("step_ns", "samples_per_s", "step")
        assert list(columns.unclear.values()) == ["step_time: unit unknown", "throughput: unit unknown"]

    def test_of_several_names_the_first_known_one_counts(self) -> None:
        columns = columns_of(["loss", "train_loss", "test_acc", "val_acc", "num_workers"])
        assert columns.by_role["train_loss"][0] == 1
        assert columns.by_role["validation_accuracy"][0] == 3
        assert not columns.has("world_size")  # workers of the data loader
        assert meanings_of("num_workers") == ()

    def test_stated_names_come_first(self) -> None:
        columns = columns_of(["gpus", "n", "tok_s", "loss"], {"n": "world_size", "Tok s": "tokens_per_s", "loss": "-"})
        assert (columns.by_role["world_size"][0], columns.by_role["samples_per_s"][0]) == (1, 2)
        assert not columns.has("train_loss")


class TestRuns:
    def test_a_row_in_base_units(self, tmp_path: Path) -> None:
        text = (
            "strategy;gpus;step_time_ms;samples/s;peak_memory_gib;precision;model;dataset;loss;accuracy %;lr\n"
            "ddp;1;50;640;3.5;bf16;resnet50;ImageNet;2.5;71;0.1\nddp;4;60,5;2000;3.5;bf16;resnet50;ImageNet;2.4;70;0.1\n"
        )
        runs = runs_of(tmp_path, text.replace("60,5", "60.5"))
        run = runs["t-1"]
        assert (run.step_ns.value, rate(run), run.peak_memory_bytes) == (50e6, 640.0, round(3.5 * 2**30))
        assert (run.model, run.dataset, run.precision, run.strategy) == ("resnet50", "ImageNet", "bf16", "ddp")
        assert (run.train_loss, run.test_accuracy, run.settings["lr"]) == (2.5, pytest.approx(0.71), 0.1)
        assert baseline_of(runs["t-4"], list(runs.values())) is run
        assert run.group == "resnet50, ImageNet, bf16"
        assert run.source.endswith("t.csv:2")

    def test_what_failed_is_a_result(self, tmp_path: Path) -> None:
        rows = {"OOM": "oom", "CUDA out of memory": "oom", "ERROR": "error", "0.0": "error", "-": "error", "12.5": "ok"}
        text = "run,gpus,samples/s\n" + "".join(f"r{i},4,{cell}\n" for i, cell in enumerate(rows))
        runs = runs_of(tmp_path, text)
        assert [run.status for run in runs.values()] == list(rows.values())
        assert [run.samples_per_s is None for run in runs.values()] == [True] * 5 + [False]
        assert runs["r2"].error == "the table states 'ERROR'"

    def test_texts_without_meaning_keep_runs_apart_and_ids_do_not(self, tmp_path: Path) -> None:
        rows = ("jax,0123456789abcdef,1,10", "torch,1123456789abcdef,1,11", "torch,2123456789abcdef,8,80")
        text = "\n".join(("framework,job,gpus,samples/s", *rows, ""))
        runs = runs_of(tmp_path, text)
        assert [run.group for run in runs.values()] == ["jax", "torch", "torch"]
        assert [row.speedup for row in scaling_rows(list(runs.values())) if not row.is_baseline] == [
            pytest.approx(80 / 11)
        ]

    def test_without_a_number_of_ranks_it_is_asked_for(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "run,samples/s\none,10\ntwo,18\n")
        with pytest.raises(UsageError, match="number of ranks") as caught:
            require_stated(load_evidence((path,), stated=Stated()))
        assert "--world-size one=RANKS,two=RANKS" in str(caught.value)
        stated = Stated(world_size={"one": 1, "two": 2})
        assert [r.speedup for r in scaling_rows(read_foreign(path, stated).runs)] == [1.0, 1.8]

    def test_hostile_names_stay_text(self, tmp_path: Path) -> None:
        text = HEAD + r"| DDP | <script>alert(1)</script> | \input{x} | 2 | 2023 | 5 |"
        (run,) = runs_of(tmp_path, text, name="r.md").values()
        assert run.settings["Framework"] == "<script>alert(1)</script>"
        assert "<" not in run.run_id


TRACKER = (
    "Name,State,Runtime,GPU Count,train/loss,train/tokens_per_sec,eval/loss,eval/tokens_per_sec,_step,_timestamp\n"
)
OF_ONE_RANK = (
    "Throughput per GPU (tokens/s)", "Tokens/s (per GPU)", "per_gpu_tokens_per_s", "tokens_per_gpu_per_second",
    "tok/s/GPU", "tokens_per_second_per_device",
)  # fmt: skip
OF_EVALUATION = ("eval_samples_per_second", "Validation (samples/s)", "inference_tokens_per_s")
ROWS: list[tuple[str, str, str, list[tuple[Any, ...]]]] = [
    ("t.csv", "gpus,tok/s/gpu\n1,100\n8,90\n", "samples_per_s unit", [(100, "tokens"), (720, "tokens")]),
    *(("t.csv", f"gpus,{name}\n8,1000\n64,900\n", "samples_per_s", [(8000,), (57_600,)]) for name in OF_ONE_RANK),
    *(
        ("t.csv", f"gpus,{name},samples_per_s\n1,500,32\n2,9,60\n", "samples_per_s", [(32,), (60,)])
        for name in OF_EVALUATION
    ),
    *(("t.csv", f"gpus,model,{name}\n1,a,4\n", "step_ns", [(0.25e9,)]) for name in ("it/s", "step/s", "iter/sec")),
    *(
        ("t.csv", f"gpus,global_batch,step_time_ms\n1,{one},10\n2,{two},10\n", "scaling", [(None,), (scaling,)])
        for one, two, scaling in ((2, 4, "weak"), (4, 4, "strong"), (4, 6, None))
    ),
    *(
        ("t.csv", f"run,gpus,samples/s,val_acc\na,1,5,0.9\nb,1,5,{second}\n", "test_accuracy", shares)
        for second, shares in (("71", [(0.009,), (0.71,)]), ("1", [(0.9,), (1.0,)]))
    ),
    (
        "t.csv",
        "gpus,batch_size_per_gpu,status,step_time_ms\n2,8,SUCCESS,5\n2,512,OOM,\n2,1024,TIMEOUT,\n2,9,running,\n",
        "status error micro_batch",
        [("ok", None, 8), ("oom", "OOM", 512), ("error", "TIMEOUT", 1024), ("interrupted", "running", 9)],
    ),
    (
        "r.md",
        "| GPUs | Params | Step time (s) | Tokens/s | Memory |\n|--|--|--|--|--|\n"
        "| **2** | 1.5M | 47.9 ms | 1,234.5 | 3 GiB |\n",
        "world_size num_parameters step_ns samples_per_s",
        [(2, 1_500_000, 47.9e6, 1234.5)],
    ),
    ("t.csv", 'gpus,samples_per_s\n1,"125,000"\n2,"1,238,806"\n', "samples_per_s", [(125_000,), (1_238_806,)]),
    (
        "a.jsonl",
        '{"gpus": 1, "tokens_per_s": 100}\n{"gpus": 2, "tokens_per_s": 200}',
        "samples_per_s",
        [(100,), (200,)],
    ),
    (
        "a.json",
        '[{"gpus": 1, "tokens_per_s": 100}, {"gpus": 2, "tokens_per_s": 200}]',
        "samples_per_s",
        [(100,), (200,)],
    ),
    (  # one row a run; of a run's history, _step and _timestamp are those of the row
        "t.csv",
        TRACKER + "a,finished,60,1,2.1,1000,2.2,7,100,17\nb,finished,60,2,2.0,1900,2.3,7,100,18\n",
        "world_size train_loss samples_per_s unit",
        [(1, 2.1, 1000, "tokens"), (2, 2.0, 1900, "tokens")],
    ),
    (
        "t.csv",
        "gpus,model,throughput,unit\n1,bert,317,sequences/s\n8,bert,2500,sequences/s\n1,llama,9e3,tokens/s\n",
        "unit samples_per_s",
        [("sequences", 317), ("sequences", 2500), ("tokens", 9000)],
    ),
    ("t.csv", "gpus,step_time_ms,started\n1,10,0:00:20\n2,6,0:10:00\n", "status", [("ok",), ("ok",)]),
]


@pytest.mark.parametrize(("name", "text", "fields", "expected"), ROWS)
def test_what_rows_become(tmp_path: Path, name: str, text: str, fields: str, expected: list[tuple[Any, ...]]) -> None:
    runs = runs_of(tmp_path, text, name=name).values()
    values = [[getattr(run, field) for field in fields.split()] for run in runs]
    found = [tuple(getattr(value, "value", value) for value in each) for each in values]
    assert found == [
        pytest.approx(each) if None not in each and str not in map(type, each) else each for each in expected
    ]


def test_ranks_and_strategies_that_are_stated(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "model,tok/s/GPU\nbig,1000\n")
    (run,) = read_foreign(path, Stated(world_size={"t": 8})).runs
    assert (run.world_size, rate(run)) == (8, 8000)
    rows = "| DDP | pt | a | 1 | d | 5 |\n| Horovod | pt | a | 1 | d | 5 |\n"
    runs = runs_of(tmp_path, HEAD + rows, name="r.md", benchmark="strategy").values()
    assert [run.strategy for run in runs] == ["DDP", "Horovod"]


class TestMarkdown:
    def test_other_tables_are_passed_over(self, tmp_path: Path) -> None:
        row = "| DDP, synthetic | PyTorch | puhti | 4 | 2023-05-08 | 390.5 |\n"
        text = (
            "# Results\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
            + HEAD
            + row
            + "\ntext\n\n| c | d |\n|---|---|\n| 3 | 4 |\n"
        )
        (run,) = runs_of(tmp_path, text, name="r.md").values()
        assert (run.world_size, rate(run), run.unit, run.hardware) == (4, 390.5, "images", "puhti")
        assert run.source.endswith("r.md:9")

    def test_other_days_and_clusters_are_other_groups(self, tmp_path: Path) -> None:
        rows = [
            "DDP | pt | a | 1 | 05-08",
            "DDP | pt | a | 4 | 05-08",
            "DDP | pt | b | 4 | 05-08",
            "DDP | pt | a | 4 | 05-09",
        ]
        runs = runs_of(tmp_path, HEAD + "".join(f"| {row} | 5 |\n" for row in rows), name="r.md").values()
        assert len({run.group for run in runs}) == 3


class TestJson:
    def run(self, gpus: int = 1, **changes: Any) -> dict[str, Any]:
        return {
            "mode": "ddp", "model": "resnet50", "num_params_M": 25.6, "batch_size_per_gpu": 32, "num_gpus": gpus,
            "effective_batch_size": 32 * gpus, "num_steps": 50, "avg_step_time_ms": 50.0, "gpu_name": "L40S",
            "throughput_samples_per_sec": 640.0 * gpus, "max_peak_memory_gb": 3.5, "per_gpu": [3.5, 3.5],
            "environment": {"torch": "2.10.0", "config": {"num_gpus": 99}},
        } | changes  # fmt: skip

    def test_a_file_a_run_is_a_table_too(self, tmp_path: Path) -> None:
        for gpus in (1, 2):
            write(tmp_path / f"ddp{gpus}.json", self.run(gpus))
            write(tmp_path / f"fsdp{gpus}.json", self.run(gpus, mode="fsdp", impl="FSDPStrategy"))
        runs = by_id(read(tmp_path, key=KEY))
        bases = {name: baseline_of(run, list(runs.values())) for name, run in runs.items()}
        assert {name: (run.scaling, bases[name]) for name, run in runs.items()} == {
            "ddp1": (None, None), "ddp2": ("weak", runs["ddp1"]), "fsdp1": (None, None), "fsdp2": ("weak", runs["fsdp1"]),
        }  # fmt: skip
        two = runs["ddp2"]
        assert (two.step_ns, two.hardware, two.global_batch) == (runs["ddp1"].step_ns, "L40S", 64)
        assert (two.step_ns.n, two.settings["torch"], two.group) == (50, "2.10.0", "resnet50")

    def test_a_list_inside_shares_what_stands_around_it(self, tmp_path: Path) -> None:
        line = {
            "batch_size_per_gpu": 8,
            "status": "SUCCESS",
            "avg_step_time_ms": 100.0,
            "throughput_samples_per_sec": 160.0,
        }
        document = {
            "mode": "fsdp",
            "num_gpus": 2,
            "best": {"status": "?"},
            "sweep": [line, {**line, "batch_size_per_gpu": 16}],
        }
        with pytest.raises(DataError, match=r"sweep\[0\]: throughput_samples_per_sec contradicts"):
            read_foreign(write(tmp_path / "s.json", {**document, "sweep": [line | {"global_batch": 32}]}))
        runs = by_id(read(write(tmp_path / "s.json", document), key=KEY))
        assert [(run.run_id, run.strategy, run.world_size, run.status) for run in runs.values()] == [
            ("s-b8", "fsdp", 2, "ok"), ("s-b16", "fsdp", 2, "ok"),
        ]  # fmt: skip
        assert [run.global_batch for run in runs.values()] == [
            16,
            None,
        ]  # the second is no batch of 32 by its own figures

    def test_two_lists_are_not_chosen_from(self, tmp_path: Path) -> None:
        text = json.dumps({"a": [{"gpus": 1}], "b": {"c": [{"gpus": 2}]}})
        assert "2 lists of records: a, b.c" in refusal(tmp_path, text, name="x.json")

    def test_a_trace_is_no_table(self, tmp_path: Path) -> None:
        for text in ('{"traceEvents": [{"gpus": 1, "samples/s": 2}]}', '[{"ph": "X", "ts": 1, "dur": 2, "name": "a"}]'):
            assert detect(write(tmp_path / "t.json", text)) is None
            assert detect(tmp_path) is None
            write(tmp_path / "throughput.csv", "gpus,samples/s\n1,10\n")
            assert detect(tmp_path) is None  # the folder is one of traces

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"throughput_samples_per_sec": 700.0}, "throughput_samples_per_sec contradicts"),
            ({"effective_batch_size": 33}, "batch_size_per_gpu x num_gpus = 32"),
            ({"num_gpus": 0}, "num_gpus is '0'"),
            ({"avg_step_time_ms": float("nan")}, "avg_step_time_ms is 'nan'"),
            ({"max_peak_memory_gb": -1.0}, "max_peak_memory_gb is '-1.0'"),
            ({"avg_step_time_ms": "fast 5"}, "avg_step_time_ms is 'fast 5'"),
        ],
    )
    def test_damage_is_refused(self, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
        assert says in refusal(tmp_path, json.dumps(self.run(**changes)), name="a.json")

    def test_a_cut_file_is_refused_with_its_place(self, tmp_path: Path) -> None:
        assert "a.json:1:" in refusal(tmp_path, json.dumps(self.run())[:-40], name="a.json")
        text = '{"gpus": 1, "tokens_per_s": 5}\n{"gpus": 2, "tok\n'
        assert "a.jsonl:2: not readable as JSON" in refusal(tmp_path, text, name="a.jsonl")

    @pytest.mark.parametrize(("last", "ranks"), [('{"gpus": 2, "tok', [1]), ('{"gpus": 2, "tokens_per_s": 9}', [1, 2])])
    def test_a_last_line_without_its_end_counts_where_it_is_whole(
        self, tmp_path: Path, last: str, ranks: list[int]
    ) -> None:
        path = write(tmp_path / "a.jsonl", '{"gpus": 1, "tokens_per_s": 5}\n' + last)
        imported = read(path, key=KEY)
        assert [run.world_size for run in imported.runs] == ranks
        assert any("a.jsonl:2" in note for note in imported.notes) == (ranks == [1])


class TestEpochs:
    TEXT = (
        "experiment,workers,samples_per_epoch,epoch,wall_sec,val_acc,own\n"
        "weak,1,100,1,10.0,60,1.0\nweak,1,100,2,12.0,70,NaN\nweak,2,200,1,11.0,60,0.1\nweak,2,200,2,11.0,72,0.1\n"
    )

    def test_rows_of_a_run_are_its_epochs(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.csv", self.TEXT)
        imported = read(path, key=KEY, stated=Stated(columns={"samples_per_epoch": "dataset_size"}))
        one, two = imported.runs
        assert [(e.number, e.duration_ns, e.validation_accuracy) for e in two.epochs] == [
            (1, 11e9, 0.6),
            (2, 11e9, 0.72),
        ]
        assert (two.world_size, two.dataset_size, two.scaling) == (2, 200, "weak")
        assert baseline_of(two, imported.runs) is one
        assert [row.speedup for row in scaling_rows(imported.runs)] == [1.0, pytest.approx(2.0)]

    def test_weak_scaling_without_samples_has_no_speedup_and_says_what_it_needs(self, tmp_path: Path) -> None:
        imported = read(write(tmp_path / "w.csv", self.TEXT), key=KEY)
        assert [row.speedup for row in scaling_rows(imported.runs) if not row.is_baseline] == []
        assert any("--columns NAME=dataset_size" in note for note in imported.notes)

    def test_the_kind_of_scaling_is_asked_for_where_only_epochs_are_timed(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.csv", "gpus,epoch_time_s\n1,100\n4,30\n")
        with pytest.raises(UsageError, match="kind of scaling"):
            require_stated(load_evidence((path,), stated=Stated()))
        (_, row) = scaling_rows(read_foreign(path, Stated(scaling="strong")).runs)
        assert row.speedup == pytest.approx(100 / 30)

    @pytest.mark.parametrize("name", ["time", "wall", "elapsed_s", "Wall Time"])
    def test_a_clock_gives_the_differences(self, tmp_path: Path, name: str) -> None:
        text = f"gpus,epoch,{name},loss\n" + "".join(f"1,{n},{60 + n * 10},0.5\n" for n in (1, 2, 3, 4))
        imported = read(write(tmp_path / "t.csv", text), key=KEY)
        (run,) = imported.runs
        assert [epoch.duration_ns for epoch in run.epochs] == [70e9, 10e9, 10e9, 10e9]
        assert any("counts from the start of the training" in remark for remark in imported.remarks)
        later = runs_of(tmp_path, text.replace("\n1,", "\n1,1")).values()
        assert [epoch.duration_ns for run in later for epoch in run.epochs] == [None, 10e9, 10e9, 10e9]

    @pytest.mark.parametrize("times", [(84.0, 84.3, 84.9, 85.2, 86.0), (84.1, 83.9, 90.0, 84.0), (10.0, 20.0)])
    def test_times_that_do_not_grow_by_far_are_of_an_epoch_each(self, tmp_path: Path, times: tuple[float, ...]) -> None:
        text = "gpus,epoch,time,loss\n" + "".join(f"1,{n},{time},0.5\n" for n, time in enumerate(times, start=1))
        (run,) = runs_of(tmp_path, text).values()
        assert [epoch.duration_ns for epoch in run.epochs] == [time * 1e9 for time in times]

    def test_a_clock_is_no_time_of_an_epoch(self, tmp_path: Path) -> None:
        text = "gpus,epoch,runtime,loss\n" + "".join(f"1,{n},{n * 10},0.5\n" for n in (1, 2, 3, 4))
        assert "runtime=epoch_time_s" in refusal(tmp_path, text)
        text = text.replace("runtime", "time")
        (run,) = runs_of(tmp_path, text, time="-").values()
        assert [epoch.duration_ns for epoch in run.epochs] == [None] * 4
        (run,) = runs_of(tmp_path, text, time="epoch_time_s").values()
        assert run.epochs[-1].duration_ns == 40e9

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("weak,1,100,2", "weak,1,100,1", ":3: epoch 1 appears twice"),
            ("weak,2,200,2", "weak,2,300,2", ":5: samples_per_epoch is '300'"),
            ("10.0", "NaN", ":2: wall_sec is 'NaN'"),
            ("10.0", "-10.0", ":2: wall_sec is '-10.0'"),
            ("weak,1,100,1", "weak,1,100,first", ":2: epoch is 'first'"),
        ],
    )
    def test_damage_is_refused(self, tmp_path: Path, old: str, new: str, says: str) -> None:
        columns = {"samples_per_epoch": "dataset_size"}
        assert says in refusal(tmp_path, self.TEXT.replace(old, new, 1), **columns)


class TestCollectives:
    def row(self, op: str = "all_reduce", **changes: Any) -> dict[str, Any]:
        return {
            "operation": op,
            "bytes": 4100,
            "latency_ms": 0.5125,
            "bandwidth_gbps": 0.008,
            "world_size": 4,
        } | changes

    def document(self, *rows: dict[str, Any]) -> dict[str, Any]:
        return {"backend": "nccl", "device": "cuda:0", "dtype": "float32", "iters": 50, "results": list(rows)}

    @pytest.mark.parametrize(
        ("rate", "meaning"),
        [
            (0.008, "payload bandwidth in GB/s"),
            (0.012, "bus bandwidth in GB/s"),
            (0.064, "payload bandwidth in Gbit/s"),
        ],
    )
    def test_what_a_bandwidth_means_is_found_by_its_times(self, tmp_path: Path, rate: float, meaning: str) -> None:
        (found,) = read(write(tmp_path / "n.json", self.document(self.row(bandwidth_gbps=rate))), key=KEY).comm_rows
        assert found.algbw_bytes_per_s == pytest.approx(4100 / 0.5125e-3)
        assert found.busbw_bytes_per_s == pytest.approx(4100 / 0.5125e-3 * 1.5)
        assert meaning in found.notes[0]
        assert (found.time_ns_mean, found.iterations, found.numel) == (pytest.approx(0.5125e6), 50, 1025)
        assert (found.device, found.backend, found.dtype) == ("cuda", "nccl", "float32")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("op,gpus,size_bytes,time_us\nAllGather,8,1048576,50\n", [("all_gather", 8, 2**20, 50e3)]),
            (  # megabytes are what fits the bandwidth
                "op,world_size,size_mb,time_ms,busbw\nall_reduce,16,100,0.647,304.03\nall_reduce,16,1000,4.52,434.99\n",
                [("all_reduce", 16, 100 * 2**20, 0.647e6), ("all_reduce", 16, 1000 * 2**20, 4.52e6)],
            ),
        ],
    )
    def test_a_csv(self, tmp_path: Path, text: str, expected: list[tuple[Any, ...]]) -> None:
        rows = read(write(tmp_path / "n.csv", text), key=KEY).comm_rows
        assert [(r.op, r.world_size, r.size_bytes, round(r.time_ns_mean or 0)) for r in rows] == expected

    def test_uneven_splits_are_left_out(self, tmp_path: Path) -> None:
        rows = [self.row("all_to_all", split_mode=mode) for mode in ("equal", "uneven")]
        imported = read(write(tmp_path / "n.json", self.document(*rows)), key=KEY)
        assert len(imported.comm_rows) == 1
        assert any("1 row of uneven splits left out" in note for note in imported.notes)

    @pytest.mark.parametrize(
        ("row", "says"),
        [
            ({"bandwidth_gbps": 0.009, "bytes": 8200, "latency_ms": 0.6}, "bandwidths contradict the times"),
            ({}, "results[1]: all_reduce of this size appears twice"),
            ({"operation": "all_magic"}, "operation is 'all_magic'"),
            ({"bytes": 0}, "bytes is '0'"),
        ],
    )
    def test_damage_is_refused(self, tmp_path: Path, row: dict[str, Any], says: str) -> None:
        assert says in refusal(tmp_path, json.dumps(self.document(self.row(), self.row(**row))), name="n.json")


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("gpus,samples/s\n", "no rows under the header"),
            ("gpus,samples/s\n1,10\n4\n", ":3: 1 cells, and the header has 2"),
            ("gpus,samples/s\n1,NaN\n", ":2: samples/s is 'NaN'"),
            ("gpus,samples/s\n1,-1\n", ":2: samples/s is '-1'"),
            ("gpus,samples/s\n1.5,1\n", ":2: gpus is '1.5'"),
            ("gpus,samples/s\n1,12x\n", ":2: samples/s is '12x'"),
            ("gpus,gpus,samples/s\n1,2,3\n", ":1: column 'gpus' appears twice"),
            ('gpus,samples/s\n1,"10\n', "not readable as CSV"),
            ("gpus,samples/s\n1,10\n\0\0\n", ":3: damaged"),
            ("gpus,accuracy,samples/s\n1,170,5\n", ":2: accuracy is '170'"),
        ],
    )
    def test_damage_names_line_and_column(self, tmp_path: Path, text: str, says: str) -> None:
        assert says in refusal(tmp_path, text)

    @pytest.mark.parametrize(
        ("text", "command"),
        [
            ("gpus,t\n1,10\n", "t=samples_per_s"),
            ("gpus,time\n1,10\n", "time=epoch_time_s"),
            ("n,tokens_per_s\n1,10\n", "n=world_size"),
            ("gpus,throughput\n1,10\n", "throughput=samples_per_s"),
            ("what,ranks,size_bytes,time_us\nall_gather_perf,2,8,5\n", "what=op"),
        ],
    )
    def test_what_to_type_is_named_and_works(self, tmp_path: Path, text: str, command: str) -> None:
        assert f"--columns {command} " in refusal(tmp_path, text)
        imported = read_foreign(tmp_path / "t.csv", Stated(columns=parse_columns(command)))
        assert imported.runs or imported.comm_rows

    def test_a_wide_table_is_to_be_written_long(self, tmp_path: Path) -> None:
        assert "one row per run as CSV" in refusal(tmp_path, "model,1 GPU,2 GPUs,4 GPUs\nresnet,10,19,37\n")
        says = refusal(tmp_path, "machine,num_gpu,ssd,gnmt,resnet50\nx_8xH100,8,10,19,37\n")
        assert says.index("one row per run as CSV") < says.index("--columns")

    @pytest.mark.parametrize(
        ("text", "says", "command"),
        [
            ("run,gpus,forward_ms,backward_ms,loss\na,1,10,20,2\n", "forward_ms, backward_ms are times", "NAME"),
            ("model,gpus,p50_ms,p90_ms,p99_ms\na,1,10,20,30\n", "p50_ms, p90_ms, p99_ms are times", "NAME"),
            ("run,step_1_ms,step_2_ms,step_3_ms\na,10,20,30\n", "step_1_ms to step_3_ms are a series", "step_1_ms"),
            ("run,gpus,acc,f1,auc,recall\na,1,10,20,30,1\n", "no column is a time or a throughput", "NAME"),
        ],
    )
    def test_a_table_of_one_row_a_run_is_not_to_be_written_as_one(
        self, tmp_path: Path, text: str, says: str, command: str
    ) -> None:
        refused = refusal(tmp_path, text)
        assert says in refused
        assert "one row per run" not in refused
        assert f"--columns {command}=" in refused

    def test_a_list_of_devices_is_no_table_of_runs(self, tmp_path: Path) -> None:
        text = "accelerator,name,mem_gb,fp16_tflops\nA100,A100-SXM4-80GB,80,312\nMI250X,MI250X,128,383\n"
        assert "no column is a time or a throughput" in refusal(tmp_path, text)

    def test_one_column_per_number_of_ranks_with_what_it_holds(self, tmp_path: Path) -> None:
        refused = refusal(tmp_path, "run,throughput_1gpu,throughput_2gpu\na,100,190\n")
        assert "one column per number of ranks (throughput_1gpu, throughput_2gpu)" in refused

    def test_columns_that_are_not_there_or_mean_nothing(self, tmp_path: Path) -> None:
        text = "gpus,tok_s\n1,10\n"
        assert "no column 'tok_z'; did you mean 'tok_s'?" in refusal(tmp_path, text, tok_z="tokens_per_s")
        with pytest.raises(UsageError, match="unknown meaning 'wrld_size'; did you mean 'world_size'"):
            read_foreign(tmp_path / "t.csv", Stated(columns={"gpus": "wrld_size"}))

    @pytest.mark.parametrize("text", ["", "gpus", "gpus=", "=world_size", "a=b,,c=d", "a=world_size,a=loss"])
    def test_columns_that_cannot_be_parsed(self, text: str) -> None:
        with pytest.raises(UsageError, match="--columns"):
            parse_columns(text)

    def test_a_damaged_file_of_a_folder_is_left_out(self, tmp_path: Path) -> None:
        write(tmp_path / "a.csv", "gpus,samples/s\n1,10\n")
        write(tmp_path / "b.csv", "gpus,samples/s\n1,ten 1\n")
        write(tmp_path / "c.csv", "gpus,samples/s\n1,10,3\n")
        found = read(tmp_path, key=KEY)
        assert len(found.runs) == 1
        assert any("b.csv:2" in note and "'ten 1'" in note for note in found.notes)
        assert any("c.csv:2" in note for note in found.notes)
        (tmp_path / "a.csv").unlink()
        (tmp_path / "c.csv").unlink()
        with pytest.raises(DataError, match=r"b\.csv:2"):
            read_foreign(tmp_path)


class TestModelsThatAreSplit:
    """Ranks that share a model get the same samples: the global batch is that of the copies of the model."""

    HEAD = "gpus,dp,tp,pp,micro_batch,grad_accum,global_batch,step_time_s\n"

    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ("256,4,4,16,1,4,16,2.0", None),
            ("256,,4,16,1,4,16,2.0", None),
            ("256,,,,1,4,1024,2.0", None),
            ("80,1,8,10,1,,2048,2.0", None),
            ("256,4,4,16,1,4,1024,2.0", "micro_batch x 4 data-parallel ranks x grad_accum = 16"),
            ("6,,,,4,,32,2.0", "a multiple of micro_batch x gpus = 24"),
        ],
    )
    def test_the_batch_is_checked_against_the_copies(self, tmp_path: Path, row: str, expected: str | None) -> None:
        text = f"{self.HEAD}{row}\n"
        if expected is not None:
            assert expected in refusal(tmp_path, text)
            return
        (run,) = runs_of(tmp_path, text).values()
        assert run.global_batch == int(row.split(",")[6])

    def test_a_strategy_that_splits_the_model_by_unknown_ways_is_not_checked(self, tmp_path: Path) -> None:
        text = "gpus,strategy,micro_batch,global_batch,step_time_s\n8,{},3,8,2.0\n"
        assert runs_of(tmp_path, text.format("TP+PP"))
        assert "a multiple of micro_batch x gpus = 24" in refusal(tmp_path, text.format("fsdp"))

    def test_other_splits_on_as_many_ranks_are_no_baselines_of_each_other(self, tmp_path: Path) -> None:
        text = "gpus,tp,pp,tokens_per_s\n8,8,1,100\n8,1,8,900\n16,8,1,190\n16,1,8,1000\n"
        rows = {row.run_id: row.speedup for row in scaling_rows(tuple(runs_of(tmp_path, text).values()))}
        assert sorted(value for value in rows.values() if value != 1) == [pytest.approx(10 / 9), pytest.approx(1.9)]


class TestCollectivesAsToolsPrintThem:
    HEAD = "op,world_size,size_bytes,time_us,busbw_gbps\n"

    def test_a_bandwidth_that_rounds_to_zero_and_times_of_four_digits(self, tmp_path: Path) -> None:
        rows = "all_reduce,8,8,164.3,0.00\nall_reduce,8,4194304,55.44,132.41\nall_reduce,8,16777216,124.0,236.82\n"
        found = read(write(tmp_path / "t.csv", self.HEAD + rows), key=KEY).comm_rows
        assert [row.time_ns_mean for row in found] == [pytest.approx(us * 1e3) for us in (164.3, 55.44, 124.0)]

    def test_rows_without_a_time_are_left_out_and_counted(self, tmp_path: Path) -> None:
        rows = "all_reduce,8,4194304,55.44,132.41\nall_reduce,8,8388608,,174.16\n"
        found = read(write(tmp_path / "t.csv", self.HEAD + rows), key=KEY)
        assert len(found.comm_rows) == 1
        assert any("1 row without a time left out" in note for note in found.notes)


class TestRepeats:
    """Samples of one run: mean and interval by Student's t, the highest peak."""

    ROWS = "1,resnet50,{},{},{}\n"

    def test_a_column_numbers_the_samples_of_a_run(self, tmp_path: Path) -> None:
        figures = [(100, 1000), (104, 1100), (96, 900)]
        text = "gpus,model,repeat,step_time_ms,peak_memory_mb\n" + "".join(
            self.ROWS.format(at, ms, mb) for at, (ms, mb) in enumerate(figures)
        )
        text += "2,resnet50,0,55,1000\n"
        one, two = runs_of(tmp_path, text).values()
        assert (one.step_ns.value, one.step_ns.n, one.peak_memory_bytes) == (100e6, 3, 1100 * 2**20)
        assert one.step_ns.high == pytest.approx(
            100e6 + 4.303 * 4e6 / 3**0.5
        )  # standard deviation 4 ms, t of 2 degrees
        assert any("3 repeats of one run" in note for note in one.notes)
        assert (two.step_ns.value, two.step_ns.low) == (55e6, None)

    def test_a_list_of_repeats_in_a_document_and_its_means_beside(self, tmp_path: Path) -> None:
        samples = [{"step_time_ms": ms, "peak_memory_mb": mb} for ms, mb in ((17.0, 500), (18.0, 520), (19.0, 660))]
        document = {"world_size": 2, "model": "gpt", "step_time_ms": 18.0, "peak_memory_mb": 560, "repeats": samples}
        (run,) = runs_of(tmp_path, json.dumps(document), name="run.json").values()
        assert (run.step_ns.value, run.step_ns.n, run.peak_memory_bytes) == (18e6, 3, 660 * 2**20)
        assert run.step_ns.low is not None

    def test_a_failed_repeat_is_said(self, tmp_path: Path) -> None:
        rows = "1,resnet50,0,100,1000\n1,resnet50,1,OOM,\n1,resnet50,2,102,1000\n"
        (run,) = runs_of(tmp_path, "gpus,model,repeat,step_time_ms,peak_memory_mb\n" + rows).values()
        assert (run.step_ns.value, run.step_ns.n, run.step_ns.low) == (101e6, 2, None)
        assert any("1 repeat failed" in note for note in run.notes)

    @pytest.mark.parametrize(
        ("cells", "last", "figure"),
        [
            (("100", "90"), "5", None),  # of 50, or of 512
            (("100", "90"), "", None),
            (("100.25", "90.50"), "5", None),
            (("100.25", "90.50"), "50.7", None),
            (("100.25", "90.50"), "50.75", 50.75e6),  # as many decimals as everywhere
            (("100.25", "90.5"), "50.75", None),
        ],
    )
    def test_the_last_cell_of_a_table_without_its_end_counts_where_it_is_whole(
        self, tmp_path: Path, cells: tuple[str, str], last: str, figure: float | None
    ) -> None:
        text = "gpus,model,step_time_ms\n" + "".join(f"{n},a,{cell}\n" for n, cell in enumerate(cells, 1))
        for end in ("", "\n"):
            imported = read(write(tmp_path / "t.csv", f"{text}4,a,{last}{end}"), key=KEY)
            step = {run.world_size: run.step_ns and run.step_ns.value for run in imported.runs}[4]
            assert step == (float(last) * 1e6 if end and last else figure)
            assert any("t.csv:4" in note for note in imported.notes) == (not end and figure is None and bool(last))

    def test_a_last_row_that_was_cut_off_earlier_is_left_out(self, tmp_path: Path) -> None:
        imported = read(write(tmp_path / "t.csv", "gpus,model,step_time_ms\n1,a,100\n2,a"), key=KEY)
        assert [run.world_size for run in imported.runs] == [1]
        assert any("t.csv:3" in note for note in imported.notes)

    def test_the_last_cell_of_a_markdown_table_without_its_bar_is_left_out(self, tmp_path: Path) -> None:
        whole = "| DDP | PyTorch | puhti | 4 | 2023-05-08 | 390.5 |\n"
        imported = read(write(tmp_path / "t.md", HEAD + whole + "| DDP | x | p | 8 | d | 7"), key=KEY)
        assert [run.samples_per_s and run.samples_per_s.value for run in imported.runs] == [390.5, None]
        assert any("t.md:4" in note for note in imported.notes)

    def test_the_header_of_a_second_table_in_a_file_is_no_row(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "gpus,model,step_time_ms\n1,a,100\ngpus,model,step_time_ms\n2,a,50\n")
        imported = read(path, key=KEY)
        assert [run.world_size for run in imported.runs] == [1, 2]
        assert any("t.csv:3: a second header" in note for note in imported.notes)


class TestCommas:
    @pytest.mark.parametrize(("first", "second"), [("512,5", "0,512"), ("0,125", "125,000"), ("1,5", "1.000")])
    def test_decimal_commas_are_read_where_they_can_be_nothing_else(
        self, tmp_path: Path, first: str, second: str
    ) -> None:
        text = f"gpus;step_time_s;rate\n1;{first};10\n2;{second};20\n"
        runs = runs_of(tmp_path, text.replace("rate", "samples_per_s"))
        times = [run.step_ns.value for run in runs.values() if run.step_ns]
        assert times == [float(each.replace(",", ".")) * 1e9 for each in (first, second)]
        assert read_foreign(tmp_path / "t.csv").notes == ("decimal commas are read in: step_time_s",)

    def test_a_comma_that_may_be_either_is_refused_where_commas_do_not_separate_cells(self, tmp_path: Path) -> None:
        assert "the comma may separate thousands or decimals" in refusal(
            tmp_path, "gpus;samples_per_s\n1;125,000\n2;238,806\n"
        )


def test_ranks_that_may_be_those_of_a_node_are_asked_for(tmp_path: Path) -> None:
    text = "nodes,gpus,tokens_per_s\n1,8,1000\n2,8,1900\n4,8,3500\n"
    assert "it may count the ranks of a node, and nodes varies" in refusal(tmp_path, text)
    assert {run.world_size for run in runs_of(tmp_path, text, gpus="world_size").values()} == {8}
    assert len(runs_of(tmp_path, "nodes,gpus,tokens_per_s\n1,8,1000\n2,16,1900\n")) == 2
