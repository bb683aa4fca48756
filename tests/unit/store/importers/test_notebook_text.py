"""What benchmark notebooks print."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError
from stepscope.results.scaling import scaling_rows

KEY = "notebook_text"
SHORT = """Model    Mode                 GPUs       Params  Avg Epoch Accuracy
──────────────────────────
small    single_gpu              1    1,462,538    0.0300s  0.1022
small    dp_naive                2    1,462,538    0.0200s  0.1013
"""
LONG = """Model    Mode                   GPUs     Params  Epoch(s)  Comm(s)    Thruput  Speedup     Acc
──────────────────────────
small    single_gpu                1      1.5M   0.0300s  0.0000s  1000000/s    1.00x 0.1022
small    ddp_builtin               2      1.5M   0.0240s  0.0000s  1250000/s    1.25x 0.1013
small    dp_naive                  2      1.5M   0.0200s  0.0050s  1500000/s    1.50x 0.1013
"""
LOG = """  GPU 0: NVIDIA A100 80GB PCIe (79.3 GB)
  GPU 1: NVIDIA A100 80GB PCIe (79.3 GB)
Model: small
  [1] Single GPU baseline...
  CMD: python train_single_gpu.py {"n_samples": 30000, "batch_size": 1024}...
    avg_epoch=0.0300s
  [2] DP Naive, 2 GPUs...
    avg_epoch=0.0200s, comm=0.0050s
"""
BLOCK = """============================
  {title}
============================
  Params Per Gpu              {params}
  Mem Model Mb                    {model_mb}
  Mem Peak Mb                    1204.44
  Fwd Ms                            3.95
  Bwd Ms                            6.85
  Step Ms                          {step}
  Tokens Per Sec               {rate}
  Loss                              7.58
============================
"""
BASE = BLOCK.format(
    title="BASELINE (No Tensor Parallelism) - 1 GPU",
    params="1,000,000",
    model_mb="3.90",
    step="10.00",
    rate="102400.00",
)
SPLIT = BLOCK.format(
    title="TENSOR PARALLELISM - 2 GPUs", params="500,000", model_mb="1.95", step="8.00", rate="128000.00"
)
SIZES = """======================
  ALL-REDUCE LATENCY (TP=4)
======================
  Size                             Elements       MB    Time (us)
  ------------------------------------------------------------
  Small (1K)                          1,024     0.00        100.0
  B=8,T=256,d=512                 1,048,576     2.10        200.0

  COMPUTE vs COMMUNICATION:
  All-reduce time:        45.5 us
"""


def test_tables_give_strategies_and_strong_scaling(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "t.txt", SHORT + "\n" + LONG), key=KEY)
    runs = by_id(imported)
    naive, ddp = runs["small-naive"], runs["small-ddp"]
    assert (naive.world_size, naive.num_parameters, naive.scaling, naive.baseline_id) == (
        2, 1462538, "strong", "small-single",
    )  # fmt: skip
    assert naive.settings["exposed_comm_ns_per_epoch"] == 5e6
    assert "exposed_comm_ns_per_epoch" not in ddp.settings  # 0.0000 s: not timed
    assert any("not measured" in note for note in ddp.notes)
    assert ddp.num_parameters is None  # the long table rounds it
    assert {row.run_id: row.speedup for row in scaling_rows(imported.runs)} == {
        "small-single": 1.0, "small-naive": 1.5, "small-ddp": 1.25,
    }  # fmt: skip


def test_the_log_tells_hardware_and_samples(tmp_path: Path) -> None:
    runs = by_id(read(write(tmp_path / "l.txt", LOG), key=KEY))
    single = runs["small-single"]
    assert (single.hardware, single.dataset_size) == ("NVIDIA A100 80GB PCIe", 30000)
    assert single.samples_per_s is not None
    assert single.samples_per_s.value == pytest.approx(1e6)
    assert runs["small-naive"].epoch_ns is not None
    assert runs["small-naive"].settings["exposed_comm_ns_per_epoch"] == 5e6


def test_texts_of_one_folder_are_put_together(tmp_path: Path) -> None:
    write(tmp_path / "l.txt", LOG)
    write(tmp_path / "t.txt", LONG)
    naive = by_id(read(tmp_path, key=KEY))["small-naive"]
    assert naive.samples_per_s is not None
    assert (naive.hardware, naive.samples_per_s.value) == ("NVIDIA A100 80GB PCIe", 1.5e6)


def test_texts_that_differ_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "l.txt", LOG.replace("0.0200s", "0.0300s"))
    write(tmp_path / "t.txt", LONG)
    with pytest.raises(DataError, match=r"epoch_s of small dp_naive is 0\.02, and .*l\.txt:8 says 0\.03"):
        read(tmp_path, key=KEY)


def test_tensor_parallel_blocks(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "tp.txt", BASE + "Launching with 2 GPUs...\n" + SPLIT), key=KEY)
    base, split = imported.runs
    assert (base.strategy, base.num_parameters, base.world_size) == ("single", 1000000, 1)
    assert (split.strategy, split.num_parameters, split.scaling) == ("tensor_parallel", None, "strong")
    assert split.peak_memory_bytes == round(1204.44 * 2**20)
    (_, row) = scaling_rows(imported.runs)
    assert (row.speedup, row.efficiency) == (1.25, 0.625)


def test_other_tokens_a_step_are_no_strong_scaling(tmp_path: Path) -> None:
    more = SPLIT.replace("128000.00", "129000.00")
    assert read(write(tmp_path / "tp.txt", BASE + more), key=KEY).runs[1].scaling is None


def test_memory_in_an_unknown_unit_is_not_given(tmp_path: Path) -> None:
    (run,) = read(write(tmp_path / "tp.txt", BASE.replace("3.90", "4.10")), key=KEY).runs
    assert run.peak_memory_bytes is None
    assert any("cannot be told" in note for note in run.notes)


def test_all_reduce_times_by_size(tmp_path: Path) -> None:
    rows = read(write(tmp_path / "s.txt", SIZES), key=KEY).comm_rows
    assert [(row.size_bytes, row.numel, row.time_ns_mean, row.world_size) for row in rows] == [
        (2048, 1024, 1e5, 4), (2097152, 1048576, 2e5, 4),
    ]  # fmt: skip
    assert rows[1].busbw_bytes_per_s == pytest.approx(2097152 / 200e-6 * 1.5)
    assert "an element has 2 bytes" in rows[0].notes[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LONG.replace("1.50x", "1.90x"), ":5: Speedup contradicts"),
        (LONG.replace("0.0200s", "nans"), ":5: damaged row"),
        (LONG.replace("0.0200s", "0.0000s"), ":5: Epoch(s) is '0.0000'"),
        (LONG.splitlines()[0], "no rows"),
        (BASE.replace("  Step Ms                          10.00\n", ""), "the block has no Step Ms"),
        (BASE.replace("10.00", "NaN"), ":9: Step Ms is 'NaN'"),
        (SIZES.replace("TP=4", "TP=0"), ":2: number of GPUs is '0'"),
        (SPLIT.replace("- 2 GPUs", "- 0 GPUs"), ":2: number of GPUs is '0'"),
        (LOG.replace("Naive, 2", "Naive, 0"), ":8: number of GPUs is '0'"),
        (BASE + BASE, "2 blocks without tensor parallelism"),
        (SIZES.split("  Small")[0], "no rows under the title"),
        (SIZES.replace("2.10", "9.99"), "no element size fits"),
        (
            SIZES.replace("  B=8,T=256,d=512                 1,048,576     2.10        200.0\n", ""),
            "several fit",
        ),
    ],
)
def test_damage_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "t.txt", text)
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
