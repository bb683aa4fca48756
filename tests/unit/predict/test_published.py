"""Published training runs: how rows are read, conventions recomputed, questions asked; on a small folder made here."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.validate.__main__ import main
from benchmarks.validate.conventions import recomputed
from benchmarks.validate.grade import document, met
from benchmarks.validate.questions import QUESTIONS

from stepscope.predict.step.layout import Cluster, Layout
from stepscope.predict.step.run_fit import Material
from stepscope.predict.step.run_layout import Asked, as_asked
from stepscope.predict.step.run_rows import read_training_rows
from stepscope.predict.step.step import predict_step

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "published"

COLUMNS = [
    *(
        "source",
        "row_id",
        "hardware",
        "accelerator",
        "n_gpus",
        "gpus_per_node",
        "inter_node",
        "model",
        "model_key",
        "params",
    ),
    *("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "micro_batch", "global_batch", "grad_accum"),
    *("precision", "dp", "tp", "pp", "cp", "ep", "vpp", "sharding", "activation_ckpt", "compile", "step_time_s"),
    *("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "hfu_pct", "flops_convention", "peak_tflops_assumed"),
    *("peak_mem_gb", "mem_unit", "status", "flags", "notes"),
]
MODELS = """\
model_key,params,layers,hidden,heads,kv_heads,head_dim,ffn,gated_mlp,vocab,tied_embeddings,n_experts,experts_per_token,moe_ffn,attention,source,notes
small,,16,2048,16,16,,8192,1,32000,0,,,,causal,,
latent,,4,1024,8,8,,4096,1,1000,0,16,2,512,"MLA (q_lora 256, kv_lora 64, qk 32+16, v 32)",,1 shared expert; first 1 layers
"""
USUAL: dict[str, Any] = {
    "source": "mine", "hardware": "8x H100", "accelerator": "H100_SXM", "n_gpus": 8, "gpus_per_node": 8, "model": "Small",
    "model_key": "small", "seq_len": 2048, "micro_batch": 2, "global_batch": 64, "precision": "bf16", "tp": 1, "pp": 1,
    "sharding": "zero1", "status": "ok",
}  # fmt: skip


def folder(place: Path, *rows: dict[str, Any]) -> Path:
    (place / "models.csv").write_text(MODELS)
    with (place / "mine.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        for number, row in enumerate(rows, start=1):
            table.writerow({**USUAL, "row_id": f"mine-{number:04}", **row})
    return place


def asked_of(place: Path, **row: Any) -> Asked | str:
    (found,) = read_training_rows(folder(place, {"tokens_per_s_per_gpu": 1000, **row}))[0]
    return as_asked(found)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"model_key": "unheard-of"}, "model dimensions not stated"),
        ({"accelerator": "TPU_v4"}, "'tpu-v4' is not in the accelerator table"),
        ({"precision": "NVFP9"}, "precision not modelled"),
        ({"seq_len": ""}, "sequence length not stated"),
        ({"micro_batch": ""}, "batch not stated"),
        ({"tp": "", "pp": ""}, "layout not stated"),
        ({"flags": "lora: frozen"}, "LoRA: frozen weights are not modelled"),
        ({"tp": 3}, "the source's layout cannot be: "),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    found = asked_of(tmp_path, **row)
    assert isinstance(found, str)
    assert found.startswith(why)


def test_a_row_becomes_model_cluster_and_layout(tmp_path: Path) -> None:
    found = asked_of(tmp_path, tp=2, sharding="fsdp:FULL_SHARD", activation_ckpt="full", precision="MXFP8", layers=8)
    assert isinstance(found, Asked)
    assert (found.model.layers, found.model.hidden, found.gpu) == (8, 2048, "h100-sxm")
    layout = found.layout
    assert (layout.dp, layout.tp, layout.zero, layout.recompute, layout.precision) == (4, 2, 3, "full", "fp8")


def test_speed_comes_from_the_step_time_and_a_gpt_from_its_printed_dimensions(tmp_path: Path) -> None:
    row = {"model_key": "", "model": "GPT-1B", "params": 1.269e9, "hidden": 2048, "vocab": "30k", "step_time_s": 2}
    (found,) = read_training_rows(folder(tmp_path, row))[0]
    assert found.tokens_per_s == 64 * 2048 / 2 / 8
    assert found.shape is not None
    assert (found.shape.layers, found.shape.vocab, found.shape.heads) == (24, 30000, 16)


def test_latent_attention_shared_experts_and_dense_layers_are_read_from_the_models_words(tmp_path: Path) -> None:
    (row,) = read_training_rows(folder(tmp_path, {"model_key": "latent"}))[0]
    assert row.shape is not None
    assert row.shape.latent is not None
    assert (row.shape.head_dim, row.shape.latent.q_rank, row.shape.shared, row.shape.dense_layers) == (48, 256, 1, 1)


def test_a_model_that_the_folder_does_not_describe_is_looked_up_by_name(tmp_path: Path) -> None:
    place = folder(tmp_path, {"model_key": "llama3-8b"}, {"model_key": "llama3-8c"})
    (place / "models.csv").unlink()
    known, other = read_training_rows(place)[0]
    assert known.shape is not None
    assert (known.shape.layers, known.shape.kv_heads) == (32, 8)
    assert other.shape is None


def test_a_value_that_is_not_a_number_leaves_its_row_out(tmp_path: Path) -> None:
    rows, unread = read_training_rows(folder(tmp_path, {"seq_len": "long"}, {}))
    assert [row.row_id for row in rows] == ["mine-0002"]
    assert unread == ["seq_len: a value that is not a number"]


NMM = 16 * (4 * 2048**2 + 3 * 2048 * 8192) + 32000 * 2048
CONVENTIONS = [
    ("6*Nmm+12*L*d*s non-causal", 6 * NMM + 12 * 16 * 2048 * 2048),
    ("6*Nmm+6*L*d*s causal", 6 * NMM + 6 * 16 * 2048 * 2048),
    ("4*Nmm-type LoRA", 4 * NMM),
]


@pytest.mark.parametrize(("convention", "flop"), CONVENTIONS)
def test_a_convention_is_recomputed_from_the_dimensions(convention: str, flop: float, tmp_path: Path) -> None:
    printed = {"flops_convention": convention, "tokens_per_s_per_gpu": 1e4, "mfu_pct": 30, "peak_tflops_assumed": 989}
    (row,) = read_training_rows(folder(tmp_path, printed))[0]
    assert recomputed(row) == pytest.approx((flop * 1e4, 0.3 * 989e12))


def test_a_convention_nobody_knows_is_said(tmp_path: Path) -> None:
    row = {"flops_convention": "guessed", "tokens_per_s_per_gpu": 1, "tflops_per_gpu": 1}
    (found,) = read_training_rows(folder(tmp_path, row))[0]
    assert recomputed(found) == "unknown convention: guessed"


def truth(gpus: int, **layout: Any) -> float:
    """Tokens/s per GPU that the model itself says: a folder of these is predicted without error."""
    from stepscope.predict.step.calibration import PUBLISHED
    from stepscope.predict.step.model import published_shape

    shape = next(s for row in csv.DictReader(MODELS.splitlines()) if (s := published_shape(row)))
    spread = Layout(seq_len=2048, micro_batch=2, zero=1, reduce_bytes=2, **layout)
    return predict_step(shape, Cluster.of("h100-sxm", gpus, gpus_per_node=8), spread, PUBLISHED).tokens_per_s_per_gpu


@pytest.fixture(name="answers", scope="module")
def answers_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every question of a folder whose rows are 1.25 times the model's own speed: what a row teaches corrects it all."""
    rows: list[dict[str, Any]] = []
    for n, tp in ((8, 1), (16, 1), (16, 2), (32, 1)):
        speed = truth(n, dp=n // tp, tp=tp, global_batch=8 * n)
        rows.append({"n_gpus": n, "tp": tp, "global_batch": 8 * n, "tokens_per_s_per_gpu": 1.25 * speed})
    rows.append({"seq_len": "", "tokens_per_s_per_gpu": 100})
    material = Material(folder(tmp_path_factory.mktemp("published"), *rows))
    return {question.key: (question, question.ask(material)) for question in QUESTIONS}


def test_one_row_corrects_what_a_constant_factor_can(answers: dict[str, Any]) -> None:
    for key, rows in (("scale-out", 2), ("new-layout", 2)):
        _, answer = answers[key]
        assert [row.error for row in answer.rows] == pytest.approx([0.0] * rows), key
    assert [row.error for row in answers["zero-shot"][1].rows] == pytest.approx([0.2] * 4)
    assert answers["zero-shot"][1].skipped["sequence length not stated"] == 1


def test_the_document_has_every_question_with_its_figures(answers: dict[str, Any]) -> None:
    found = {key: document(*item) for key, item in answers.items()}
    assert len(found) == 12
    entry = found["scale-out"]
    assert (entry["rows"], entry["mean_error"]) == (2, pytest.approx(0.0))
    assert entry["fitted_on"]["rows"] + entry["not_fitted_on"]["rows"] == 2
    assert all(bar["met"] for bar in entry["bars"])
    assert found["moe-one-row"]["rows"] == 0
    assert met(*answers["moe-one-row"]) is None


def test_what_a_table_leaves_out_or_gets_wrong_is_a_reason_and_no_traceback(tmp_path: Path) -> None:
    rows = folder(
        tmp_path, {"n_gpus": ""}, {"tokens_per_s_per_gpu": 1e9}, {"accelerator": "XPU9"}, {"seq_len": "long"}, {}
    )
    (rows / "models.csv").write_text(MODELS + "odd,,many,1,1,1,,1,1,1,1,,,,,,\n")
    (rows / "binary.csv").write_bytes(bytes(range(256)))
    (rows / "empty.csv").write_text("")
    material = Material(rows)
    assert material.not_whole.keys() | {a if isinstance(a, str) else "" for _, a in material.questions} == {
        "number of GPUs not stated", "a speed above the GPU's peak", "'xpu9' is not in the accelerator table",
        "seq_len: a value that is not a number", "no speed printed", "",
    }  # fmt: skip
    assert [question.ask(material).rows for question in QUESTIONS] == [()] * len(QUESTIONS)


def test_a_dense_model_is_read_from_the_rows_own_dimensions_where_they_give_its_parameters(tmp_path: Path) -> None:
    own = {
        "model_key": "", "model": "Zeta", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336,
        "vocab": 128256, "micro_batch": 1,
    }  # fmt: skip
    found = asked_of(tmp_path, **own, params=8.03e9)
    assert isinstance(found, Asked)
    assert (found.model.gated, found.model.tied) == (True, False)
    assert asked_of(tmp_path, **own, params=47e9) == "model dimensions not stated"


def test_a_data_parallel_job_only_tells_how_it_scales(tmp_path: Path) -> None:
    (tmp_path / "models.csv").write_text(MODELS)
    columns = (
        "source,row_id,hardware,accelerator,n_gpus,model,model_key,precision,seq_len,batch_per_gpu,throughput,unit"
    )
    runs = ["8,Small,small,bf16,512,16,500,sequences/s", "64,Small,small,bf16,512,16,3900,sequences/s"]
    runs += ["8,Net,,bf16,,16,900,images/s"]
    lines = [f"jobs,jobs-{i},DGX,A100_SXM_80GB,{run}" for i, run in enumerate(runs)]
    (tmp_path / "jobs.csv").write_text("\n".join([columns, *lines]) + "\n")
    material = Material(tmp_path)
    assert [asked.row.tokens_per_s for asked in material.timed] == [500 * 512 / 8, 3900 * 512 / 64]
    answers = {question.key: question.ask(material) for question in QUESTIONS}
    assert [len(answers[key].rows) for key in ("scale-out", "zero-shot", "new-layout")] == [1, 0, 0]
    assert answers["zero-shot"].skipped == {
        "share of padding not stated": 2, "throughput in images/s: not a model of tokens": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"sharding": "fsdp2"}, "fsdp2"),
        ({"sharding": "fsdp:FULL_SHARD/PURE"}, "composer"),
        ({"notes": "Megatron-LM 2024"}, "megatron"),
        ({"model_key": "small", "notes": "run with nanotron"}, "nanotron"),
        ({"source": "megatron-lm-2021", "accelerator": "A100_SXM_80GB"}, "megatron-2021"),
        ({"precision": "fp16", "activation_ckpt": "full", "accelerator": "A100_SXM_80GB"}, "megatron-2021"),
        ({"source": "my-nanotron"}, "nanotron"),
        ({}, None),
    ],
)
def test_the_code_that_ran_shows_in_the_rows_own_columns(row: dict[str, Any], code: str | None, tmp_path: Path) -> None:
    found = asked_of(tmp_path, **row)
    assert isinstance(found, Asked)
    assert found.stack == code


@pytest.mark.long
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared measurements are not here")
def test_the_published_half_reaches_the_bars_that_the_documentation_claims() -> None:
    material = Material(SHARED)
    assert [question.key for question in QUESTIONS if not met(question, question.ask(material))] == []


def test_the_command_shows_bars_errors_by_source_and_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = folder(tmp_path, {})
    (rows / "collectives_mine.csv").write_text(
        "source,accelerator,n_gpus,nodes,gpus_per_node,inter_node,collective,dtype,size_bytes,time_us,busbw_gbps\n"
        "mine,H100_SXM,8,1,8,,all_reduce,float,1024,15,\nmine,FANTASY,8,1,8,,all_reduce,float,1073741824,4200,\n"
    )
    assert main([str(rows)]) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("reach their bar", "all sources", "not compared"))
    assert main([str(rows), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(group["rows"] for group in told["overall"]) == 1
    assert len(told["questions"]) == len(QUESTIONS)
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert "nothing to compare" in capsys.readouterr().err
