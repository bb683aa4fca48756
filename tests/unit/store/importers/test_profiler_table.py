"""Tables that profilers print: parts of a step of Lightning's, shares of the device's time of torch's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.records.training import TrainingRun
from stepscope.results.open import load_evidence
from stepscope.store.importers import detect, read_foreign

OLD = """Profiler Report

Action              \t|  Mean duration (s)\t|  Total time (s)
-----------------------------------------------------------------
on_train_start      \t|  0.00088594     \t|  0.00088594
get_train_batch     \t|  0.02           \t|  20.0
on_batch_start      \t|  5.0865e-06     \t|  0.0050865
model_forward       \t|  0.03           \t|  30.0
model_backward      \t|  0.04           \t|  40.0
optimizer_step      \t|  0.01           \t|  10.0
"""
CLOSURE = """Action                 |  Mean duration (s)  |Num calls   |  Total time (s)  |  Percentage %  |
---------------------------------------------------------------------------------------------------
Total                  |  -                  |_           |  140.0           |  100 %         |
---------------------------------------------------------------------------------------------------
run_training_epoch     |  130.0              |1           |  130.0           |  92.8          |
run_training_batch     |  0.08               |1000        |  80.0            |  57.1          |
optimizer_step_and_closure_0 |  0.08         |1000        |  80.0            |  57.1          |
training_step_and_backward   |  0.07         |1000        |  70.0            |  50.0          |
backward               |  0.04               |1000        |  40.0            |  28.5          |
model_forward          |  0.03               |1000        |  30.0            |  21.4          |
get_train_batch        |  0.02               |1000        |  20.0            |  14.2          |
"""
NEW = """FIT Profiler Report

-----------------------------------------------------------------------------------------------------
|  Action                                           |  Mean duration (s) |  Num calls |  Total time (s) |  Percentage %  |
|  Total                                            |  -                 |  9001      |  140.0          |  100 %         |
|  run_training_epoch                               |  130.0             |  1         |  130.0          |  92.8          |
|  run_training_batch                               |  0.08              |  1000      |  80.0           |  57.1          |
|  [LightningModule]Net.optimizer_step              |  0.08              |  1000      |  80.0           |  57.1          |
|  [Strategy]DDPStrategy.backward                   |  0.04              |  1000      |  40.0           |  28.5          |
|  [Strategy]DDPStrategy.training_step              |  0.03              |  1000      |  30.0           |  21.4          |
|  [_TrainingEpochLoop].train_dataloader_next       |  0.02              |  1000      |  20.0           |  14.2          |
|  [Callback]ModelSummary.on_after_backward         |  1e-06             |  1000      |  0.001          |  0.0           |
|  [_EvaluationLoop].val_next                       |  0.5               |  40        |  20.0           |  14.2          |
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "report.txt"
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str) -> TrainingRun:
    path = write(tmp_path, text)
    match = detect(path)
    assert match is not None
    assert match[0] == "profiler_table"
    (run,) = read_foreign(path).runs
    return run


def findings(tmp_path: Path, text: str) -> list[Finding]:
    return [f for f in diagnose(load_evidence([write(tmp_path, text)])).findings if f.rule == "logged-parts"]


@pytest.mark.parametrize("text", [OLD, CLOSURE, NEW], ids=["old", "closure", "new"])
@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_a_batch_of_lightning_is_a_step_in_its_parts(tmp_path: Path, text: str, prefix: str) -> None:
    run = read(tmp_path, "".join(prefix + line + "\n" for line in text.splitlines()))
    assert run.step_ns is not None
    assert (run.step_ns.value, run.step_ns.n) == (pytest.approx(0.1e9), 1000)
    expected = {"data": 20e6, "forward": 30e6, "backward": 40e6, "optimizer": 10e6, "other": 0.0}
    assert run.parts_ns == pytest.approx(expected, abs=1e3)


def test_a_report_cut_before_its_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no action of a training batch"):
        read(tmp_path, "\n".join(NEW.splitlines()[:6]))


def table(*rows: tuple[str, ...], device: str | None = "CUDA", memory: bool = False) -> str:
    head = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
    head += [f"Self {device}", f"Self {device} %", f"{device} total", f"{device} time avg"] if device else []
    head += ["CPU Mem", "Self CPU Mem"] if memory else []
    head += ["# of Calls"]
    return "\n".join("  ".join(f"{cell:>16}" for cell in row) for row in (head, *rows)) + "\n"


def row(
    name: str, share: float, *, cpu: float = 0.1, device: bool = True, memory: bool = False, calls: int = 40
) -> tuple[str, ...]:
    host = (name, f"{cpu:.2f}%", "1.204ms", "2.10%", f"{cpu * 10 * calls:.3f}ms", f"{cpu * 10:.3f}ms")
    own = ("9.100ms", f"{share:.2f}%", "9.100ms", "227.500us") if device else ()
    return (*host, *own, *(("4 b", "-1.20 Kb") if memory else ()), str(calls))


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("device", ["CUDA", "XPU"])
def test_operators_and_kernels_of_communication_count_once(tmp_path: Path, device: str, *, memory: bool) -> None:
    rows = [
        row("nccl:all_reduce", 31.0, memory=memory),
        row("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKern...", 31.0, cpu=0, memory=memory),
        row("aten::mm", 40.0, memory=memory),
        row("Memcpy HtoD (Pageable -> Device)", 4.0, cpu=0, memory=memory),
    ]
    run = read(tmp_path, table(*rows, device=device, memory=memory))
    shares = {"communication": 0.31, "copies": 0.04, "aten::mm": 0.4, "nccl:all_reduce": 0.31}
    assert run.device_shares == pytest.approx(shares)
    assert (run.step_ns, run.parts_ns) == (None, {})
    (found,) = findings(tmp_path, table(*rows, device=device, memory=memory))
    assert (found.severity, found.stake_fraction) == ("warning", None)
    assert found.title.startswith("31% of the device's own time is communication")
    assert "hidden or not" in found.title


def test_a_table_without_much_communication_names_its_largest_operator(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, table(row("aten::mm", 60.0), row("nccl:all_reduce", 5.0)))
    assert found.severity == "info"
    assert found.title.startswith("aten::mm is the largest operator: 60%")


def test_copies_are_named(tmp_path: Path) -> None:
    rows = [row("aten::copy_", 41.0), row("Memcpy HtoD (Pageable -> Device)", 40.0, cpu=0), row("aten::mm", 30.0)]
    (found,) = findings(tmp_path, table(*rows))
    assert found.title.startswith("40% of the device's own time is copies")


@pytest.mark.parametrize(
    "loader",
    [
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter...",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
    ],
)
def test_a_step_and_its_waiting_for_data_are_those_of_the_profiler(tmp_path: Path, loader: str) -> None:
    rows = [
        row("ProfilerStep*", 0.0, cpu=10.0, device=False, calls=4),
        row(loader, 0.0, cpu=3.0, device=False, calls=4),
        row("aten::addmm", 0.0, cpu=40.0, device=False),
    ]
    run = read(tmp_path, table(*rows, device=None))
    assert run.step_ns is not None
    assert run.step_ns.value == 100e6
    assert run.parts_ns == pytest.approx({"data": 30e6, "other": 70e6})
    assert run.device == "cpu"


SPANS = [
    row("ProfilerStep*", 96.0, cpu=0, calls=4),
    row("nccl:all_gather", 31.0, cpu=0),
    row("void at::native::vectorized_elementwise_kernel<4, at...", 9.0, cpu=0),
    row("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsSto...", 31.0, cpu=0),
    row("FusedAttention", 22.0),
    row("aten::mul", 9.0),
    row("ProfilerStep*", 0.0, cpu=20.0, calls=4),
    row("nccl:all_gather", 31.0),
]


def test_spans_on_the_device_are_neither_operators_nor_counted_twice(tmp_path: Path) -> None:
    run = read(tmp_path, table(*SPANS))
    assert run.device_shares == pytest.approx(
        {"communication": 0.31, "nccl:all_gather": 0.31, "FusedAttention": 0.22, "aten::mul": 0.09}
    )
    assert run.step_ns is not None
    assert run.step_ns.value == 200e6


def test_spans_that_the_sum_of_shares_holds_are_taken_out_of_it(tmp_path: Path) -> None:
    rows = [row("ProfilerStep*", 50.0, cpu=0), row("ncclKernel_AllReduce_RING_LL", 20.0, cpu=0)]
    run = read(tmp_path, table(*rows, row("sgemm_128x64", 30.0, cpu=0), row("aten::mm", 30.0)))
    assert run.device_shares == pytest.approx({"communication": 0.4, "aten::mm": 0.6})


@pytest.mark.parametrize("between", [" ", " | "])
def test_columns_may_stand_close_together(tmp_path: Path, between: str) -> None:
    text = "\n".join(re.sub(r"\s{2,}", between, line) for line in table(*SPANS, memory=False).splitlines())
    assert read(tmp_path, text).device_shares == read(tmp_path, table(*SPANS)).device_shares


def test_tables_of_several_ranks_and_orders_are_not_mixed(tmp_path: Path) -> None:
    tables = [table(row("aten::mm", share), row("gloo:all_reduce", 20.0)).splitlines() for share in (30.0, 60.0)]
    lines = [f"[rank{rank}]: {line}" for pair in zip(*tables, strict=True) for rank, line in enumerate(pair)]
    run = read(tmp_path, "\n".join([*lines, "", table(row("aten::add", 3.0))]))
    assert run.device_shares == pytest.approx({"communication": 0.2, "aten::mm": 0.6, "gloo:all_reduce": 0.2})


def test_the_columns_of_old_versions(tmp_path: Path) -> None:
    cpu = "Self CPU total %  Self CPU total  CPU total %  CPU total  CPU time avg"
    head = f"Name  {cpu}  CUDA total %  CUDA total  Number of Calls"
    run = read(tmp_path, f"{head}\nmm  1.20%  3.1ms  1.20%  3.100ms  31.000us  64.00%  90.000ms  100\n")
    assert (run.device_shares, run.device) == ({"mm": 0.64}, "cuda")


def test_a_table_without_a_whole_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no operator's time"):
        read(tmp_path, table() + "    aten::mm    0.91%   8")


def test_a_table_whose_columns_of_the_device_were_cut_off_is_refused(tmp_path: Path) -> None:
    text = table(row("aten::mm", 60.0), row("Memcpy HtoD (Pageable -> Device)", 30.0, cpu=0))
    with pytest.raises(DataError, match="no operator's time"):
        read(tmp_path, "\n".join(line[: 6 * 18] for line in text.splitlines()))
