"""One small, sound input of every kind that stepscope reads, and the commands that read it.

make(folder): every input below ``folder``, by kind; commands(kind, path, sound, out): argument lists of the command line.
"""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path

from tests import calibration_rows, comm_rows, memory_pickles, nccl_log, nccl_tests_log
from tests.trace_builder import build, write_job
from tests.unit.cli.test_calibrate import run_folder as comm_folder
from tests.unit.results.test_open import run_folder as bench_folder
from tests.unit.store.importers import test_job_logs as jobs
from tests.unit.store.importers import test_loggers as loggers
from tests.unit.store.importers import test_megatron_log as megatron
from tests.unit.store.importers import test_table as tables
from tests.unit.store.test_flight_recorder import entry, nccl
from tests.unit.store.test_topology_importer import MATRIX
from tests.unit.traces import test_nsys as nsys

from stepscope.records import codec

SIZES = [(1 << n, 20.0 + (1 << n) / 2e5) for n in range(10, 24, 2)]
EPOCHS = "epoch,train_loss,val_loss,val_acc,train_time\n" + "".join(
    f"{n},{2 - n / 10:.2f},{2.1 - n / 10:.2f},{0.5 + n / 100:.2f},{19.5 + n / 100:.2f}\n" for n in range(1, 9)
)


def _logs() -> dict[str, str]:
    nccl_lines = [line for text in nccl_log.Talk().texts() for line in text]
    titan = [*jobs.head(), *(jobs.titan(step) for step in range(1, 6))]
    deepspeed = [*jobs.CONFIG, *(line for step in (10, 20, 30) for line in jobs.timer(step, 80.0))]
    results = {1: 100, 2: 190, 4: 350}
    return {
        "nccl_tests/all_reduce.log": nccl_tests_log.log(SIZES),
        "nccl_debug/job.log": "\n".join(nccl_lines) + "\n",
        "titan/titan.log": "\n".join(titan) + "\n",
        "deepspeed/deepspeed.log": "\n".join(deepspeed) + "\n",
        "megatron/job.out": megatron.HEAD + "".join(megatron.iteration(n) for n in (10, 20, 30, 40)),
        "topology/topo.txt": MATRIX,
        "epochs/metrics.csv": EPOCHS,
        "csv/runs.csv": "gpus,model,samples_per_s\n" + "".join(f"{n},resnet50,{v}\n" for n, v in results.items()),
        "tsv/runs.tsv": "gpus\tmodel\tsamples_per_s\n" + "".join(f"{n}\tresnet50\t{v}\n" for n, v in results.items()),
        "markdown/runs.md": tables.HEAD
        + "".join(f"| DDP | PyTorch | puhti | {n} | 2023-05-08 | {v} |\n" for n, v in results.items()),
        "jsonl/runs.jsonl": "".join(json.dumps({"gpus": n, "tokens_per_s": v}) + "\n" for n, v in results.items()),
        "wandb/chart.csv": loggers.TestWandb.HEAD + "0,2.5,2.4,2.6,3,3,3\n10,2,2,2,3,3,3\n",
        "lightning/metrics.csv": loggers.TestLightning.METRICS,
        "trainer/trainer_state.json": json.dumps(loggers.state()),
        "matrix/m.yaml": (Path(__file__).parents[2] / "src/stepscope/presets/quick.yaml").read_text(),
    }


def make(folder: Path) -> dict[str, Path]:
    """Every kind's input below ``folder``: a file or a folder each."""
    found = {}
    for name, text in _logs().items():
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        found[path.parent.name] = path
    job = build(shape="ddp", world=2, steps=3, layers=2)
    for kind, ending in (("trace", ".json"), ("trace_gz", ".json.gz")):
        (folder / kind).mkdir()
        found[kind] = write_job(job, folder / kind, ending=ending)
    found["bench"] = bench_folder(folder / "bench").root
    found["results"] = folder / "rows" / "results.jsonl"
    found["results"].parent.mkdir()
    shutil.copyfile(found["bench"] / "results.jsonl", found["results"])
    found["comm"] = comm_folder(folder / "comm", calibration_rows.sweep())
    rows = comm_rows.sweep()
    found["calib"] = folder / "calibration" / "calib.json"
    found["calib"].parent.mkdir()
    found["calib"].write_bytes(codec.encode(comm_rows.calibration(comm_rows.fit(rows, alpha_us=50.0, rate=2e9))))
    found["snapshot"] = folder / "snapshots" / "snapshot.pickle"
    found["snapshot"].parent.mkdir()
    mib = memory_pickles.MIB
    memory_pickles.dump(
        found["snapshot"],
        [memory_pickles.segment(memory_pickles.live(3 * mib, at=0, where="/me/model.py:12 forward"),
                                memory_pickles.free(17 * mib))],
        [memory_pickles.alloc(0, 3 * mib, "/me/model.py:12 forward")],
    )  # fmt: skip
    found["flight"] = folder / "flight"
    found["flight"].mkdir()
    for rank in (0, 1):
        dump = nccl(*(entry(n, state="completed" if n < 3 + rank else "scheduled") for n in range(4 + rank)))
        (found["flight"] / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    found["flight_json"] = folder / "flight_json"
    found["flight_json"].mkdir()
    (found["flight_json"] / "nccl_trace_rank_0.json").write_text(json.dumps(nccl(entry())))
    found["nsys"] = folder / "nsys" / "rank0.sqlite"
    found["nsys"].parent.mkdir()
    nsys.export(found["nsys"], *nsys.STRINGS, *nsys.KERNELS, *nsys.CALLS)
    found["tensorboard"] = loggers.events(folder / "board", *loggers.TestTensorBoard().curve(0, 1, 2)).parent
    packed = folder / "packed" / "titan.log.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(found["titan"].read_bytes()))
    return found | {"log_gz": packed}


_TRACES = ("trace", "trace_gz", "nsys")


def commands(kind: str, path: Path, sound: Path, out: Path) -> list[list[str]]:
    """The command lines that read an input of this kind; ``sound``: what it was before."""
    at = str(path)
    report = ["report", at, "-o", str(out), "--txt", "--csv", "--html"]
    if kind == "matrix":
        return [["bench", at, "--show"]]
    found = [["diagnose", at], ["diagnose", at, "--all", "--json"], ["compare", at, str(sound)], [*report, "--json"]]
    if kind in _TRACES:
        found += [["trace", at, "--processes", "1", "--show", "all"], ["trace", at, "--processes", "1", "--json"]]
    if kind == "calib":
        asked = ["--collective", "all_reduce", "--size", "1MiB", "--gpus", "2"]
        found.append(["predict", *asked, "--calib", at])
    if kind == "comm":
        found.append(["calibrate", at, "-o", str(out / "calib.json"), "--json"])
    return found
