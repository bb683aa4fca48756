"""Published rows shuffled, renamed, cut, or damaged: each is graded or counted, and nothing raises."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.validate.__main__ import main
from benchmarks.validate.grade import document
from benchmarks.validate.questions import QUESTIONS

from stepscope.predict.step.run_fit import Material

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "published"
Tables = dict[str, list[dict[str, str]]]

ACCOUNTED = ("zero-shot", "family-factor", "new-layout", "scale-out", "moe-one-row", "mfu-convention", "memory")
"""Questions of which every row of the folder is graded or counted as skipped."""

MODELS = {
    "models.csv": [
        {
            "model_key": "small", "layers": "16", "hidden": "2048", "heads": "16", "kv_heads": "16", "ffn": "8192",
            "gated_mlp": "1", "vocab": "32000", "tied_embeddings": "0", "n_experts": "", "attention": "causal",
        }
    ]
}  # fmt: skip
RUN = {
    "source": "mine", "row_id": "", "hardware": "8x H100", "accelerator": "H100_SXM", "n_gpus": "8", "gpus_per_node": "8",
    "model": "Small", "model_key": "small", "seq_len": "2048", "micro_batch": "2", "global_batch": "64",
    "precision": "bf16", "dp": "8", "tp": "1", "pp": "1", "sharding": "zero1", "activation_ckpt": "none",
    "step_time_s": "", "tokens_per_s_per_gpu": "9000", "tflops_per_gpu": "", "mfu_pct": "30",
    "flops_convention": "6*Nmm+12*L*d*s non-causal", "peak_tflops_assumed": "989", "peak_mem_gb": "30", "mem_unit": "GB",
    "status": "ok", "flags": "", "notes": "",
}  # fmt: skip
RUNS: Tables = {
    **MODELS,
    "mine.csv": [
        {**RUN, "row_id": f"mine-{n}", "n_gpus": str(8 * n), "dp": str(8 * n), "global_batch": str(64 * n)}
        for n in (1, 2, 4)
    ],
}


def saved(place: Path, tables: Tables) -> Path:
    for name, rows in tables.items():
        with (place / name).open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), restval="", extrasaction="ignore")
            table.writeheader()
            table.writerows(rows)
    return place


def asked(place: Path) -> dict[str, dict[str, Any]]:
    """The questions' documents, by key; as JSON has them, so that NaN cannot hide."""
    material = Material(place)
    found = {q.key: json.loads(json.dumps(document(q, q.ask(material)), allow_nan=False)) for q in QUESTIONS}
    for entry in found.values():
        figures = [entry[name] for name in ("mean_error", "median_error")]
        assert figures == [None, None] if entry["rows"] == 0 else None not in figures, entry["key"]
    return found


def counted(entry: dict[str, Any]) -> int:
    return int(entry["rows"]) + sum(each["rows"] for each in entry["skipped"])


def changed(tables: Tables, change: Callable[[dict[str, str]], dict[str, str]]) -> Tables:
    return {name: rows if name == "models.csv" else [change(row) for row in rows] for name, rows in tables.items()}


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"n_gpus": ""}, "number of GPUs not stated"),
        ({"n_gpus": "many"}, "n_gpus: a value that is not a number"),
        ({"n_gpus": "inf"}, "n_gpus: a value that is not a number"),
        ({"tp": "0"}, "tp is not a whole number of 1 or more"),
        ({"micro_batch": "1.5"}, "micro_batch is not a whole number of 1 or more"),
        ({"tokens_per_s_per_gpu": "-1"}, "tokens_per_s_per_gpu is below zero"),
        ({"tokens_per_s_per_gpu": ""}, "no speed printed"),
        ({"tokens_per_s_per_gpu": "1e9"}, "a speed above the GPU's peak"),
        ({"status": "oom"}, "did not run"),
        ({"accelerator": ""}, "accelerator not stated"),
        ({"model_key": "huge", "model": "Huge"}, "model dimensions not stated"),
        ({"seq_len": "nan"}, "sequence length not stated"),
    ],
)
def test_an_odd_row_is_counted_with_its_reason(odd: dict[str, str], why: str, tmp_path: Path) -> None:
    tables = {**RUNS, "mine.csv": [*RUNS["mine.csv"], {**RUN, "row_id": "mine-9", **odd}]}
    found = asked(saved(tmp_path, tables))
    assert {"reason": why, "rows": 1} in found["zero-shot"]["skipped"]
    assert found["zero-shot"]["rows"] == 3
    assert {key: counted(found[key]) for key in ACCOUNTED} == dict.fromkeys(ACCOUNTED, 4)


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ({"n_gpus": "8.0", "global_batch": "1,024"}, {"global_batch": "1024"}),
        ({"seq_len": " 2048 ", "mfu_pct": "30%"}, {}),
        ({"peak_mem_gb": "30000", "mem_unit": "MB"}, {}),
        ({"tokens_per_s_per_gpu": "9k"}, {}),
    ],
)
def test_a_number_is_read_however_it_is_written(written: dict[str, str], means: dict[str, str], tmp_path: Path) -> None:
    graded = []
    for name, row in (("as", written), ("is", means)):
        (tmp_path / name).mkdir()
        graded.append(asked(saved(tmp_path / name, {**MODELS, "mine.csv": [{**RUN, "row_id": "mine-1", **row}]})))
    for key in ACCOUNTED:
        assert graded[0][key] == graded[1][key]


def test_a_table_without_rows_leaves_every_question_unanswered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.csv").write_text(",".join(RUN) + "\n")
    assert main([str(tmp_path), "--json"]) == 0
    questions = json.loads(capsys.readouterr().out)["questions"]
    assert [(q["rows"], q["mean_error"], q["coverage"]) for q in questions] == [(0, None, None)] * len(QUESTIONS)


def test_a_peak_in_a_unit_that_nobody_knows_is_no_peak(tmp_path: Path) -> None:
    found = asked(saved(tmp_path, changed(RUNS, lambda row: {**row, "mem_unit": "pages"})))
    assert found["memory"]["skipped"] == [{"reason": "a peak in pages", "rows": 3}]


@pytest.mark.parametrize("column", [name for name in RUN if name not in {"accelerator", "n_gpus"}])
def test_a_table_without_a_column_is_read_as_far_as_it_goes(column: str, tmp_path: Path) -> None:
    tables = changed(RUNS, lambda row: {name: value for name, value in row.items() if name != column})
    found = asked(saved(tmp_path, tables))
    assert {key: counted(found[key]) for key in ACCOUNTED} == dict.fromkeys(ACCOUNTED, 3)


def test_names_of_sources_and_rows_and_further_columns_change_no_figure(tmp_path: Path) -> None:
    def other(row: dict[str, str]) -> dict[str, str]:
        return {**row, "source": "theirs", "row_id": "same", "weather": 'rain, "heavy"'}

    found = []
    for name, tables in (("as", RUNS), ("is", changed(RUNS, other))):
        (tmp_path / name).mkdir()
        found.append(asked(saved(tmp_path / name, tables)))
    for key in ACCOUNTED:
        first, second = ({k: entry[key][k] for k in ("rows", "mean_error", "coverage")} for entry in found)
        assert first == second


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared measurements are not here")
@pytest.mark.parametrize("damage", ["shuffled", "renamed", "unknown GPU", "unknown model", "junk", "no models"])
def test_published_tables_survive_damage(damage: str, tmp_path: Path) -> None:
    pick = random.Random(0)
    tables: Tables = {}
    for file in sorted(SHARED.glob("*.csv")):
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        tables[file.name] = rows if file.name == "models.csv" else pick.sample(rows, -(-len(rows) // 60))
    (tmp_path / "as").mkdir()
    (tmp_path / "is").mkdir()
    usual = asked(saved(tmp_path / "as", tables))

    def hurt(row: dict[str, str]) -> dict[str, str]:
        if damage == "renamed":
            return {**row, "source": row["source"][::-1], "row_id": "1"}
        if damage == "unknown GPU" and "accelerator" in row:
            return {**row, "accelerator": "XPU9"}
        if damage == "unknown model" and "model" in row:
            return {**row, "model": "nobody's", "model_key": "nobody's", "hidden": ""}
        if damage == "junk":
            odd = ("", "0", "-1", "inf", "1e400", "abc", "12%", "1,000", "\u00bd", "999999999999")
            return {name: pick.choice(odd) if pick.random() < 0.1 else value for name, value in row.items()}
        return row

    tables = changed(tables, hurt)
    if damage == "no models":
        del tables["models.csv"]
    if damage == "shuffled":
        tables = {name: pick.sample(rows, len(rows)) for name, rows in tables.items()}
    found = asked(saved(tmp_path / "is", tables))
    assert {key: counted(found[key]) for key in ACCOUNTED[:4]} == {key: counted(usual[key]) for key in ACCOUNTED[:4]}
    if damage == "shuffled":
        assert {key: entry["mean_error"] for key, entry in found.items()} == {
            key: pytest.approx(entry["mean_error"]) for key, entry in usual.items()
        }
    if damage.startswith("unknown"):
        assert found["zero-shot"]["rows"] == 0
