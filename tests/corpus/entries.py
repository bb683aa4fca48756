"""The inputs and the commands whose numbers are held, as one list: a name, the words of a command, what it reads.

A word that begins with a group of inputs.py (``examples/ddp``) or with ``shared/`` is an input; ``out`` is a folder of the
entry's own, whose JSON and CSV files are part of what is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
FAST, LONG = "fast", "long"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One command line. speed: FAST runs in ``make test``, LONG with ``-m ""``."""

    name: str
    words: tuple[str, ...]
    speed: str = LONG

    @property
    def worded(self) -> tuple[str, ...]:
        """Parts of the document of which the words are compared, too: what is said of a job."""
        of_job = len(self.words) > 1 and self.words[1].startswith("jobs/")
        return ("verdict", "said", "state") if of_job and self.words[0] in ("diagnose", "watch") else ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Words that name an input: a group's name and a path below it."""
        from tests.corpus.inputs import GROUPS

        return tuple(word for word in self.words if word.partition("/")[0] in {*GROUPS, "shared"})


def _entry(speed: str, words: str, name: str = "") -> Entry:
    split = tuple(words.split())
    shown = "-".join(word.lstrip("-") for word in split if word not in ("--processes", "1", "--show", "all", "--all"))
    return Entry(name=name or shown.replace("/", "."), words=split, speed=speed)


def _looked_at(speed: str, place: str, *, report: bool = True) -> Iterator[Entry]:
    """What diagnose says of it, and the tables of its report."""
    short = place.replace("/", ".")
    yield _entry(speed, f"diagnose {place} --all", f"diagnose-{short}")
    if report:
        yield _entry(speed, f"report {place} --csv -o out", f"report-{short}")


def _traced(speed: str, place: str, *, report: bool = False) -> Iterator[Entry]:
    yield _entry(speed, f"trace {place} --show all --processes 1", f"trace-{place.replace('/', '.')}")
    yield from _looked_at(speed, place, report=report)


def _examples() -> Iterator[Entry]:
    for name in ("straggler", "naive", "ddp", "cut", "injected"):
        yield from _traced(
            LONG if name == "injected" else FAST, f"examples/{name}", report=name in ("straggler", "cut")
        )
    for name in ("hang", "bad-scaling", "logs", "sockets"):
        yield from _looked_at(FAST, f"examples/{name}", report=name == "logs")
    for name in ("bad-scaling", "sockets"):
        yield _entry(LONG, f"report examples/{name} --csv -o out", f"report-examples.{name}")
    yield _entry(LONG, "trace examples/bad-scaling/8-gpus --show all --processes 1")
    yield _entry(LONG, "trace examples/straggler --diff examples/injected --processes 1")
    yield _entry(FAST, "trace examples/ddp --diff-steps 10-12:13-15 --processes 1")
    yield _entry(
        FAST, "trace examples/ddp --flop 1000000000000 --hardware-flop 1300000000000 --processes 1", "trace-flop"
    )
    yield _entry(FAST, "compare examples/naive examples/ddp --all")
    yield _entry(LONG, "compare examples/naive examples/ddp examples/straggler --all")
    yield _entry(LONG, "compare examples/bad-scaling/1-gpu examples/bad-scaling/8-gpus --all")
    yield _entry(LONG, "compare examples/ddp examples/naive --fail-if trace_step_ns>3%", "compare-fails")


def _generated() -> Iterator[Entry]:
    shapes = "naive hidden gloo fsdp fsdp-waits tensor pipeline clocks"
    late = "straggler launches late-data late-sync late-python slow-rank"
    for name in f"{shapes} {late}".split():
        yield from _traced(FAST if name in ("gloo", "clocks") else LONG, f"built/{name}")
    names = "fsdp no-prefetch small-units root-unit copy-out offload pipeline experts tensor"
    for name in names.split():
        yield from _traced(LONG, f"sharded/{name}")
    yield _entry(LONG, "compare sharded/fsdp sharded/no-prefetch --all")


def _runs() -> Iterator[Entry]:
    for name in ("cells", "study", "epochs", "comm", "settings", "windows", "diary"):
        yield from _looked_at(FAST if name in ("cells", "study", "comm", "diary") else LONG, f"runs/{name}")
    yield _entry(FAST, "compare runs/cells runs/slower --all")
    yield _entry(LONG, "compare runs/study runs/epochs --all")
    yield _entry(LONG, "trace runs/windows --show all --processes 1")
    yield _entry(FAST, "calibrate runs/curves -o out/calib.json", "calibrate-curves")
    yield _entry(LONG, "calibrate runs/comm -o out/calib.json", "calibrate-comm")


def _small() -> Iterator[Entry]:
    """Every kind of input, in its smallest form."""
    quick = ("nccl_tests/all_reduce.log", "titan/titan.log", "epochs/metrics.csv", "csv/runs.csv", "bench")
    others = (
        "nccl_debug/job.log", "deepspeed/deepspeed.log", "megatron/job.out", "topology/topo.txt", "tsv/runs.tsv",
        "markdown/runs.md", "jsonl/runs.jsonl", "wandb/chart.csv", "lightning/metrics.csv", "trainer/trainer_state.json",
        "trace_gz", "rows/results.jsonl", "comm", "calibration/calib.json", "snapshots/snapshot.pickle", "flight",
        "flight_json", "nsys/rank0.sqlite", "board", "packed/titan.log.gz",
    )  # fmt: skip
    for name in quick:
        yield from _looked_at(FAST, f"sound/{name}", report=False)
    for name in others:
        yield from _looked_at(LONG, f"sound/{name}", report=name == "snapshots/snapshot.pickle")
    yield _entry(LONG, "trace sound/nsys/rank0.sqlite --show all --processes 1")


def _shared() -> Iterator[Entry]:
    quick = ("edge-cpu-gloo-rank34of300", "edge-cuda-sync-alexnet-a100", "edge-mi250-runtime-stream-arg")
    traces = ("dlrm-v100-8rank", "nccl-meta-a100-rank0of2", "ns-resolution-v100", "resnet-ddp-mi300-rank0of8")
    for name in quick:
        yield from _traced(FAST, f"shared/traces/{name}")
    for name in (*traces, "sampled-2of128"):
        yield from _traced(LONG, f"shared/traces/{name}", report=name == "dlrm-v100-8rank")
    for name in ("a100_add_prefetch", "a100_transpose_505kernels", "rtx2080ti_x2_add_um"):
        yield from _traced(LONG, f"shared/nsys_sqlite/{name}.sqlite")
    logs = (
        "a100x8_allgather a100x8_allreduce a100x8_alltoall gh200x8_cxi_plugin_allreduce h100x16_a3mega_allreduce "
        "h100x8_dgxcloud_allreduce h200x16_runai_allreduce p4d_srun_label_allreduce rccl_mi300_2node_allreduce"
    )
    for name in logs.split():
        yield from _looked_at(FAST if "h100" in name else LONG, f"shared/nccl_tests/{name}.log", report="h100" in name)
    for name in ("a100pcie_x2_nccl2.27.7.log", "v100x16_4node_nccl.txt", "v100x4_32gb_nccl2.7.8.txt"):
        yield from _looked_at(LONG, f"shared/nccl_debug/{name}", report=False)
    for name in ("gpu_error_1st", "lock_gil_1st"):
        yield from _looked_at(FAST, f"shared/flight_recorder/{name}", report=False)
    for name in ("gpt_ctx256_forward", "gpt_medium_ctx128_inference", "gpt_medium_ctx128_training"):
        yield from _looked_at(LONG, f"shared/memory_snapshots/{name}.pickle", report="training" in name)
    for name in ("a100x8_nv12_pairs_two_numa", "h100x8_nv18", "rtx5090x2_phb_with_p2p_matrix", "v100x4_nv2_full_mesh"):
        yield from _looked_at(LONG, f"shared/topo/{name}.txt", report=False)
    for name in ("h100_pairwise_nvlink_all_reduce", "mi300_llama70b_fsdp_nccl_summary_implicit_sync"):
        yield from _looked_at(LONG, f"shared/collective_tables/{name}.csv", report=False)
    yield from _results()


def _results() -> Iterator[Entry]:
    """Results of other tools, and published tables."""
    folders = (
        "5DParallel_notebook_outputs", "MiniTrainBench_8xA100", "bigscience_megatron_v100", "codeharris_multi-gpu-ddp",
        "cs336_sharded_optimizer_2gpu", "csc_ml-benchmarks", "distributed-mlp_workers", "fsdp-benchmark_2xL40S",
        "lambda_deeplearning-benchmark",
    )  # fmt: skip
    refused = ("5DParallel_notebook_outputs", "codeharris_multi-gpu-ddp", "lambda_deeplearning-benchmark")
    for name in folders:
        yield from _looked_at(
            FAST if name == "MiniTrainBench_8xA100" else LONG, f"shared/results/{name}", report=name not in refused
        )
    epochs = "shared/results/codeharris_multi-gpu-ddp/experiments"
    one, four = f"{epochs}/exp020_imdb_single_gpu_20ep", f"{epochs}/exp021_imdb_ddp_single_node_20ep"
    stated = "exp020_imdb_single_gpu_20ep=1,exp021_imdb_ddp_single_node_20ep=4"
    yield _entry(FAST, f"diagnose {one} {four} --world-size {stated} --scaling strong", "diagnose-epochs-stated")
    stated = "exp021=4,exp044=4"
    yield _entry(
        LONG, f"report shared/results/codeharris_multi-gpu-ddp --world-size {stated} --csv -o out", "report-codeharris"
    )
    yield _entry(LONG, f"compare {one} {four} --all", "compare-epochs")
    tables = (
        "bigscience_a100 ddp_scaling dgxc_benchmarking internevo llm_foundry megatron_bridge megatron_lm "
        "nanotron_ultrascale torchtitan vtrain_single"
    )
    for name in tables.split():
        yield from _looked_at(LONG, f"shared/published/{name}.csv", report=name in ("ddp_scaling", "llm_foundry"))
    yield _entry(LONG, "calibrate shared/published/nanotron_ultrascale.csv -o out/calib.json", "calibrate-nanotron")
    yield _entry(LONG, "diagnose shared/results/nebius_16xH100 --columns metric_name=op", "diagnose-nebius")
    asked = "diagnose shared/published/megatron_bridge.csv --columns global_batch=-"
    yield _entry(LONG, asked, "diagnose-megatron-bridge-without-batch")


def _jobs() -> Iterator[Entry]:
    """Folders of measured jobs and matrices (jobs/README.md)."""
    quick = ("late-rank", "evaluation", "end-raise", "end-timeout-sleeps", "bench-faults")
    tabled = (
        "late-rank evaluation end-raise end-restarts few-workers garbage clean-fsdp2 pipeline trained-twice watched-leak "
        "late-rank-run"
    )
    traced = (
        "late-rank few-workers clean-fsdp2 with-memory-and-modules pipeline one-rank-of-two naive-reduction no-no-sync"
    )
    watched = (
        "late-rank evaluation end-raise end-restarts watched-leak end-hang trained-twice bench-faults bench-scaling"
    )
    for name in _job_names():
        speed = FAST if name in quick else LONG
        yield from _looked_at(speed, f"jobs/{name}", report=name in tabled.split() or name.startswith("bench-"))
    for name in traced.split():
        yield _entry(LONG, f"trace jobs/{name} --show all --processes 1", f"trace-jobs.{name}")
    for name in watched.split():
        yield _entry(FAST if name == "watched-leak" else LONG, f"watch jobs/{name}", f"watch-jobs.{name}")
    pairs = (
        ("late-rank", "clean-ddp"), ("watched-backward", "watched-stall"), ("evaluation", "evaluation-run"),
        ("end-raise", "end-restarts"), ("bench-strategies", "bench-accumulation"), ("clean-fsdp2", "fsdp2-small-units"),
    )  # fmt: skip
    for one, other in pairs:
        speed = FAST if one == "late-rank" else LONG
        yield _entry(speed, f"compare jobs/{one} jobs/{other} --all", f"compare-jobs.{one}-{other}")
    yield _entry(LONG, "diagnose jobs/clean-ddp jobs/late-rank --all", "diagnose-two-jobs")
    yield _entry(LONG, "predict --from jobs/late-rank --gpus 2,8", "predict-from-jobs.late-rank")
    yield _entry(LONG, "predict --from jobs/bench-scaling --gpus 8", "predict-from-jobs.bench-scaling")
    yield _entry(LONG, "calibrate jobs/comm -o out/calib.json", "calibrate-jobs.comm")


def _job_names() -> tuple[str, ...]:
    return tuple(sorted(path.name.removesuffix(".tar.xz") for path in JOBS.glob("*.tar.xz")))


def _predicted() -> Iterator[Entry]:
    collectives = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    for op in collectives:
        asked = f"predict --collective {op} --sizes 1K:1G:16 --gpus 8"
        yield _entry(FAST, f"{asked} --gpu h100-sxm", f"predict-{op}-h100")
        yield _entry(LONG, f"{asked} --gpu a100-sxm4-80gb --gpus 64 --caller torch", f"predict-{op}-a100")
    yield _entry(
        FAST, "predict --collective all_reduce --size 25MiB --gpus 2 --calib runs/calib.json", "predict-calibrated"
    )
    layouts = {
        "llama3-8b-fsdp": "llama3-8b --gpus 16,128,1024 --layout zero=3,mbs=1,seq=8192",
        "llama3-8b-tp-pp": "llama3-8b --gpus 64 --layout tp=2,pp=4,zero=1,mbs=1,gbs=512",
        "llama3-70b": "llama3-70b --gpus 512 --layout tp=8,pp=4,mbs=1,gbs=1024",
        "llama3-8b-measured": "llama3-8b --gpus 16,128 --layout zero=3,mbs=1,seq=8192 --measured 16=120000",
        "llama3-8b-memory": "llama3-8b --gpus 8 --layout zero=3,mbs=1,seq=8192 --memory",
    }
    for name, words in layouts.items():
        yield _entry(FAST, f"predict --model {words} --gpu h100-sxm", f"predict-{name}")
    changes = ("gpu=h200-sxm", "batch=2x", "precision=bf16", "overlap=perfect", "bucket=8MiB", "link=pcie")
    nodes = "--gpus-per-node 4 --network infiniband-hdr"
    yield _entry(FAST, f"predict --from examples/ddp --gpus 2,8,64,1024 {nodes}", "predict-from-ddp")
    yield _entry(FAST, f"predict --from examples/straggler --gpus 8,64 {nodes} --scaling strong", "predict-from-strong")
    yield _entry(LONG, "predict --from sharded/fsdp --gpus 4,16,64", "predict-from-fsdp")
    yield _entry(LONG, "predict --from shared/traces/dlrm-v100-8rank --gpus 8,32", "predict-from-dlrm")
    for change in changes:
        asked = f"predict --from examples/ddp --gpus 64 {nodes} --what-if {change}"
        yield _entry(FAST if change == "batch=2x" else LONG, asked, f"predict-what-if-{change.replace('=', '-')}")
    yield _entry(LONG, "plan --model llama3-8b --gpu h100-sxm --gpus 64")
    yield _entry(FAST, "plan --model llama3-8b --gpu a100-sxm4-80gb --gpus 16 --layout gbs=512,seq=8192")
    yield _entry(LONG, "plan --model llama3-70b --gpu h100-sxm --gpus 256")


def _plans() -> Iterator[Entry]:
    """Matrices, devices, schemas."""
    training = "quick shallowspeed checkpointing strong-scaling weak-scaling precision"
    presets = f"{training} zero-stages pipeline-microbatches tp-vs-dp"
    for name in presets.split():
        yield _entry(LONG, f"bench --preset {name} --plan --set launch.device=cpu", f"bench-plan-{name}")
    yield _entry(FAST, "hardware")
    yield _entry(FAST, "hardware h100-sxm")
    for module in ("cells", "collectives", "runs", "traces"):
        yield _entry(FAST if module in ("cells", "runs") else LONG, f"rules {module}")


def _all() -> tuple[Entry, ...]:
    parts = (_examples, _generated, _runs, _small, _shared, _jobs, _predicted, _plans)
    there = {f"jobs/{name}" for name in _job_names()}
    every = (entry for part in parts for entry in part())
    return tuple(each for each in every if all(not i.startswith("jobs/") or i in there for i in each.inputs))


ENTRIES = _all()
