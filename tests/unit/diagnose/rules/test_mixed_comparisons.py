"""Tables whose runs differ in more than their ranks, count one process only, or share no data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Diagnosis
from stepscope.records.imported import Stated
from stepscope.records.nouns import Scaling
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

RATING = {"impossible-figures", "negative-scaling", "good-scaling", "scaling-loss"}


def table(folder: Path, text: str, *, scaling: Scaling | None = None) -> Evidence:
    path = folder / "runs.csv"
    path.write_text(text)
    return load_evidence((path,), stated=Stated(scaling=scaling))


def fired(said: Diagnosis) -> set[str]:
    return {finding.rule for finding in said.findings}


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        ("gpus,strategy,samples/s\n2,ZeRO-3,20\n8,ZeRO-1,150\n", "strategy"),
        ("gpus,strategy,tokens/s\n4,fsdp,9000\n16,ddp,20000\n", "strategy"),
        ("gpus,strategy,step_time_ms,micro_batch\n1,fsdp,100,4\n4,ddp,70,16\n", "strategy"),
        ("gpus,zero_stage,samples/s\n2,3,100\n8,1,700\n", "zero_stage"),
        ("gpus,precision,samples/s\n1,fp32,100\n8,bf16,1500\n", "precision"),
        ("gpus,zero stage,step_time_s,global_batch\n2,3,2.0,64\n8,1,0.3,64\n", "zero stage"),
        ("gpus,config,it/s,batch\n2,ZeRO-2 offload,1.5,8\n8,DDP,3.1,8\n", "config"),
        ("gpus,strategy,images/s\n1,DDP fp32,100\n4,DDP fp16,900\n", "strategy"),
        ("gpus,batch_size,samples/s\n1,32,100\n4,512,300\n", "batch"),
    ],
)
def test_what_differs_beside_the_ranks_is_said_first_and_no_rule_rates_the_ratio(
    tmp_path: Path, text: str, differs: str
) -> None:
    said = diagnose(table(tmp_path, text))
    assert said.findings[0].rule == "settings-differ"
    assert f"differ in {differs}" in said.findings[0].title
    assert not fired(said) & RATING


@pytest.mark.parametrize(
    "text",
    [
        "gpus,strategy,samples/s\n1,single,20\n8,DDP,150\n",
        "gpus,strategy,samples/s\n2,ddp 2 gpus,40\n8,DDP 8 GPUs,150\n",
        "gpus,strategy,batch_size,samples/s\n1,ddp,32,20\n8,ddp,256,150\n",
        "gpus,batch_size,samples/s\n2,64,20\n8,16,75\n",
    ],
)
def test_what_more_ranks_bring_along_is_no_other_setting(tmp_path: Path, text: str) -> None:
    said = diagnose(table(tmp_path, text))
    assert "settings-differ" not in fired(said)
    assert "good-scaling" in fired(said)


@pytest.mark.parametrize("column", ["runtime_s", "seconds", "Total Time (s)"])
def test_a_rate_of_one_process_is_summed_where_times_show_it(tmp_path: Path, column: str) -> None:
    evidence = table(tmp_path, f"gpus,{column},images/s\n1,100,20\n2,58,17.24\n8,17.5,14.29\n")
    assert [round(run.samples_per_s.value, 1) for run in evidence.runs if run.samples_per_s] == [20.0, 34.5, 114.3]
    assert any("rate of one process" in remark and "5.72x" in remark for remark in evidence.remarks)
    assert "negative-scaling" not in fired(diagnose(evidence))


@pytest.mark.parametrize(
    "rows",
    ["1,100,20\n2,58,34.5\n8,17.5,114.3\n", "1,100,20\n2,100,19\n8,104,18\n", "1,100,20\n", "4,100,20\n4,50,40\n"],
    ids=["of all ranks", "weak scaling", "one run", "as many ranks"],
)
def test_a_rate_that_times_do_not_show_to_be_of_one_process_stays(tmp_path: Path, rows: str) -> None:
    text = f"gpus,runtime_s,samples/s\n{rows}"
    stated = [float(row.split(",")[2]) for row in rows.split()]
    assert [run.samples_per_s.value for run in table(tmp_path, text).runs if run.samples_per_s] == pytest.approx(stated)


EPOCHS = "gpus,strategy,epoch_time_s\n1,single,40\n1,deepspeed,44\n8,deepspeed,43\n8,ddp,6.2\n"


def test_an_epoch_that_gets_no_shorter_beside_a_strategy_that_scales_is_not_shared_out(tmp_path: Path) -> None:
    said = diagnose(table(tmp_path, EPOCHS, scaling="strong"))
    (first, *others) = said.findings
    assert first.rule == "duplicated-data"
    assert first.title.startswith("deepspeed: an epoch does not get shorter on 8 ranks")
    assert not [finding for finding in others if "deepspeed on 8" in (finding.subject or "")]


@pytest.mark.parametrize(
    ("old", "new"),
    [("8,ddp,6.2", "8,ddp,38"), ("8,deepspeed,43", "8,deepspeed,7"), ("8,ddp,6.2\n", "")],
    ids=["nothing scales", "both scale", "no other strategy"],
)
def test_without_a_strategy_that_scales_it_may_be_communication(tmp_path: Path, old: str, new: str) -> None:
    said = diagnose(table(tmp_path, EPOCHS.replace(old, new), scaling="strong"))
    assert "duplicated-data" not in fired(said)


def test_cells_of_one_matrix_are_not_taken_for_other_settings(tmp_path: Path) -> None:
    evidence = table(tmp_path, "gpus,strategy,samples/s\n2,fsdp,20\n8,ddp,150\n")
    ours = replace(evidence, runs=tuple(replace(run, workload="mlp") for run in evidence.runs))
    assert "settings-differ" not in fired(diagnose(ours))
