"""No option is ignored: in every mode of every command it changes what comes out, or is refused with one line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.comm_rows import SIZES, calibration, fit, sweep
from tests.commands import Ran
from tests.trace_builder import build, write_job

from stepscope.cli import monitor_run
from stepscope.cli.command import _fields, spelled
from stepscope.cli.commands import REGISTRY
from stepscope.cli.commands.profile import Profile
from stepscope.cli.main import main
from stepscope.launch.job_window import WindowState
from stepscope.launch.notices import Notices
from stepscope.machine.collect import collect
from stepscope.records import codec
from stepscope.records.profile import JobEnd, ProfileRecord
from stepscope.records.trace_summary import RankPass
from stepscope.store.layout import ProfileLayout
from stepscope.traces.rank_pass import passes_of

pytestmark = pytest.mark.usefixtures("fresh_consoles")

TIME_ONLY = "changes how long it takes, not what comes out"
SAME = "is what this mode does anyway"

TRACE = {
    "show": ["--show", "budget"], "steps": ["--steps", "11"], "rank": ["--rank", "1"], "limit": ["--limit", "1"],
    "sort": ["--sort", "name"], "cell": ["--cell", "x"], "rank_of": ["--rank-of", "rank-1.json=7"],
    "flop": ["--flop", "1e9"], "hardware_flop": ["--hardware-flop", "1e9"], "merge": ["--merge", "OUT/merged.json.gz"],
    "open_": ["--open"],
    "region": ["--region", "ProfilerStep=optimizer"], "diff": ["--diff", "old"], "diff_steps": ["--diff-steps", "10:12"],
    "processes": ["--processes", "1"], "cache": ["--cache"], "csv": ["--csv", "OUT/csv"],
    "fail_if": ["--fail-if", "FAILING"], "json": ["--json"], "ranks": ["--ranks", "0"], "window": ["--window", "2"],
    "executor": ["--executor", "dask://127.0.0.1:1"],  # nobody listens there
    "communication": ["--communication", "mm_kernel"], "class_": ["--class", "classes.txt"],
}  # fmt: skip
READ = {
    "world_size": ["--world-size", "old=1,new=4"], "scaling": ["--scaling", "weak"], "columns": ["--columns", "val_loss=-"],
    "target_accuracy": ["--target-accuracy", "0.5"], "drop_epochs": ["--drop-epochs", "3"], "cell": ["--cell", "x"],
    "executor": ["--executor", "dask://127.0.0.1:1"],
    "communication": ["--communication", "mm_kernel"], "class_": ["--class", "classes.txt"],
}  # fmt: skip
HOSTS = {"hosts": ["--hosts", "a,a"], "ssh": ["--ssh", "ssh -4"], "remote_python": ["--remote-python", "python3.12"]}
SAMPLES: dict[str, dict[str, list[str]]] = {
    "trace": TRACE,
    "diagnose": {
        **READ, "rules": ["--rules", "noisy-runs"], "explain": ["--explain", "straggler"], "protocol": ["--protocol"],
        "everything": ["--all"], "fail_if": ["--fail-if", "finding_count != 99"], "json": ["--json"],
    },
    "report": {
        **READ, "output": ["--output", "OUT/elsewhere"], "html": ["--html"], "png": ["--png"], "svg": ["--svg"],
        "pdf": ["--pdf"], "csv": ["--csv"], "tex": ["--tex"], "md": ["--md"], "txt": ["--txt"],
        "datasets": ["--datasets", "none"], "title": ["--title", "mine"], "json": ["--json"],
        "force": ["--force"],
    },
    "compare": {
        "run": ["--run"], "rounds": ["--rounds", "5"], "output": ["--output", "OUT/ab"], "data_dir": ["--data-dir", "."],
        "set_": ["--set", "base.lr=1"], "metric": ["--metric", "epoch_ns"], "world_size": ["--world-size", "old=1,new=4"],
        "scaling": ["--scaling", "weak"], "columns": ["--columns", "val_loss=-"], "drop_epochs": ["--drop-epochs", "3"],
        "fail_if": ["--fail-if", "epoch_ns > 0"], "md": ["--md"], "json": ["--json"], "everything": ["--all"],
        "communication": ["--communication", "mm_kernel"], "class_": ["--class", "classes.txt"],
    },
    "predict": {
        "collective": ["--collective", "all_gather"], "size": ["--size", "1M"], "sizes": ["--sizes", "1K,1M"],
        "gpus": ["--gpus", "16"], "gpu": ["--gpu", "a100-sxm-80gb"], "gpus_per_node": ["--gpus-per-node", "4"],
        "network": ["--network", "infiniband-ndr"], "adapters": ["--adapters", "1"], "sharp": ["--sharp"],
        "algorithm": ["--algorithm", "ring"], "caller": ["--caller", "torch"], "dtype": ["--dtype", "bf16"],
        "calib": ["--calib", "calib.json"], "validate": ["--validate", "."], "buckets": ["--buckets", "."],
        "cell": ["--cell", "x"], "json": ["--json"], "model": ["--model", "gpt-125m"], "layout": ["--layout", "zero=3"],
        "memory": ["--memory"],
        "measured": ["--measured", "16=150000"], "what_if": ["--what-if", "batch=2x"], "chart": ["--chart", "OUT/chart.svg"],
        "from_": ["--from", "new"], "scaling": ["--scaling", "strong"], "output": ["--output", "OUT/dry"],
        "batch_from": ["--batch-from", "calib.json"], "timeout": ["--timeout", "9"], "calibrate": ["--calibrate", "new"],
    },
    "plan": {
        "from_": ["--from", "new"],
        "model": ["--model", "gpt-125m"], "gpu": ["--gpu", "a100-sxm4-80gb"], "gpus": ["--gpus", "32"],
        "layout": ["--layout", "tp=2"], "gpus_per_node": ["--gpus-per-node", "4"], "json": ["--json"],
        "network": ["--network", "ethernet-25g"], "adapters": ["--adapters", "1"], "sharp": ["--sharp"],
        "matrix": ["--matrix", "OUT/matrix.yaml"], "calib": ["--calib", "calib.json"],
    },
    "bench": {
        "preset": ["--preset", "imdb"], "list_": ["--list"], "show": ["--show"], "plan": ["--plan"],
        "output": ["--output", "OUT/run"], "set_": ["--set", "base.model.size=tiny"], "warmup": ["--warmup", "3"],
        "steps": ["--steps", "7"], "emulate_network": ["--emulate-network", "1gbit:2"], "data_dir": ["--data-dir", "."],
        "download": ["--download"], "profile": ["--profile"], "tensorboard": ["--tensorboard", "OUT/tb"],
        "rerun": ["--rerun", "failed"], "force": ["--force"], "json": ["--json"], "model": ["--model", "models:build"],
        "batch": ["--batch", "8"], "strategies": ["--strategies", "ddp"], "ranks": ["--ranks", "2"],
        "input": ["--input", "3x8x8"], "inject": ["--inject", "jitter"], "only": ["--only", "memory"],
        "share": ["--share", "2/3"], **HOSTS,
    },
    "comm": {
        "ops": ["--ops", "all_gather"], "sizes": ["--sizes", "1K"], "dtype": ["--dtype", "bf16"],
        "reduce_op": ["--reduce-op", "max"], "ranks": ["--ranks", "3"], "backend": ["--backend", "nccl"],
        "device": ["--device", "cuda"], "mode": ["--mode", "async:2"], "in_place": ["--in-place", "no"],
        "pattern": ["--pattern", "bi"], "root": ["--root", "1"], "pacing": ["--pacing", "back-to-back"],
        "warmup": ["--warmup", "3"], "iters": ["--iters", "7"], "ci": ["--ci", "0.1"], "budget": ["--budget", "1s"],
        "timeout": ["--timeout", "9s"], "check": ["--no-check"], "pairs": ["--pairs"], "matmul": ["--matmul"],
        "overlap": ["--overlap"], "env": ["--env", "A=1,2"], "emulate_network": ["--emulate-network", "1gbit:2"],
        "nccl_debug": ["--nccl-debug", "all"], "threads": ["--threads", "1"], "output": ["--output", "OUT/run"],
        "plan": ["--plan"], "charts": ["--charts"], "format_": ["--format", "csv"], "force": ["--force"],
        "json": ["--json"], **HOSTS,
    },
    "hardware": {"json": ["--json"]}, "mcp": {}, "skill": {},
    "schema": {"names": ["--list"]},
    "calibrate": {"output": ["--output", "OUT/c.json"], "charts": ["--charts"], "json": ["--json"]},
    "demo": {"output": ["--output", "OUT/demo"], "data_dir": ["--data-dir", "."], "json": ["--json"]},
    "doctor": {
        "json": ["--json"], "strict": ["--strict"], "torch_timeout": ["--torch-timeout", "9"], "quick": ["--quick"],
        "ranks": ["--ranks", "3"], **HOSTS,
    },
    "example": {"inject": ["--inject", "slow_rank=3:40%"]},
    "profile": {
        "steps": ["--steps", "5"], "wait": ["--wait", "7"], "warmup": ["--warmup", "2"], "duration": ["--duration", "3"],
        "after": ["--after", "4"], "ranks": ["--ranks", "1"], "shapes": ["--shapes"], "stacks": ["--stacks"],
        "memory": ["--memory"], "flops": ["--flops"], "modules": ["--modules"], "attach": ["--attach", "RUN"],
        "tables": ["--tables"],
        "output": ["--output", "OUT/p"], "step_optimizer": ["--step-optimizer", "2"], "nccl_debug": ["--nccl-debug"],
        "tensorboard": ["--tensorboard", "OUT/tb"], "nsys": ["--nsys"],
        "verdict": ["--verdict", "stderr"], "hang_after": ["--hang-after", "9"], "fail_if": ["--fail-if", "input > 20 %"],
    },
    "run": {
        "output": ["--output", "OUT/r"], "step_optimizer": ["--step-optimizer", "2"], "nccl_debug": ["--nccl-debug"],
        "memory": ["--memory"], "hang_after": ["--hang-after", "9"],
        "monitor": ["--monitor"], "verdict": ["--verdict", "stderr"], "export": ["--export", "prometheus:OUT/prom"],
        "fail_if": ["--fail-if", "input > 20 %"],
        "deep": ["--deep", "off"], "join": ["--join"], "notify": ["--notify", "http://127.0.0.1:9/nobody"],
    },
    "export": {"to": ["--to", "prometheus:OUT/prom"]},
    "slurm": {  # tests/unit/cli/test_slurm.py has them change a script
        "output": ["--output", "OUT/jobs"], "submit": ["--submit"], "layout": ["--layout", "array"],
        "at_once": ["--at-once", "2"], "nodes": ["--nodes", "2"], "gpus_per_node": ["--gpus-per-node", "4"],
        "ranks_per_node": ["--ranks-per-node", "2"], "cpus_per_node": ["--cpus-per-node", "8"], "time": ["--time", "30"],
        "partition": ["--partition", "gpu"], "account": ["--account", "team"], "sbatch": ["--sbatch", "--qos=high"],
        "setup": ["--setup", "module load cuda"], "python": ["--python", "python3.12"],
        "container_image": ["--container-image", "IMAGE"], "apptainer": ["--apptainer", "IMAGE"],
        "mount": ["--mount", "/data"], "requeue": ["--requeue", "3"], "warn": ["--warn", "60"], "force": ["--force"],
    },
    "k8s": {  # tests/unit/launch/test_kubernetes.py has them in a manifest
        "image": ["--image", "IMAGE"], "kind": ["--kind", "trainjob"], "name": ["--name", "mine"],
        "namespace": ["--namespace", "team"], "nodes": ["--nodes", "2"], "gpus_per_node": ["--gpus-per-node", "4"],
        "ranks_per_node": ["--ranks-per-node", "2"], "cpus_per_node": ["--cpus-per-node", "8"],
        "memory_per_node": ["--memory-per-node", "64Gi"], "claim": ["--claim", "shared"], "runtime": ["--runtime", "mine"],
    },
    "tune": {  # tests/unit/matrix/test_tuning.py and tests/dist/test_tuned_jobs.py have them change what is tried
        "cell": ["--cell", "x"], "trials": ["--trials", "3"], "budget": ["--budget", "60s"], "allow": ["--allow", "batch"],
        "max_loss_change": ["--max-loss-change", "5%"], "calib": ["--calib", "calib.json"],
        "knob": ["--knob", "batch=--batch-size:8..64"], "hook_knobs": ["--hook-knobs", "none"], "start": ["--start", "9s"],
        "plan": ["--plan"], "set_": ["--set", "base.lr=1"], "data_dir": ["--data-dir", "."],
        "output": ["--output", "OUT/tuned"], "json": ["--json"],
    },
    "watch": {"every": ["--every", "3"], "once": ["--once"], "html": ["--html", "OUT/live.html"], "json": ["--json"]},
}  # fmt: skip
"""A value of every option that is not its default."""

SCALED = ["metrics/old", "metrics/new", "--world-size", "old=1,new=2"]
MODES: dict[str, tuple[str, list[str]]] = {
    "trace": ("trace", ["trace", "new"]),
    "trace --json": ("trace", ["trace", "new", "--json"]),
    "trace --show": ("trace", ["trace", "new", "--show", "steps,collectives"]),
    "trace --csv": ("trace", ["trace", "new", "--csv", "OUT/first"]),
    "trace --merge": ("trace", ["trace", "new", "--merge", "OUT/first.json.gz"]),
    "trace --diff": ("trace", ["trace", "new", "--diff", "old"]),
    "trace --diff --json": ("trace", ["trace", "new", "--diff", "old", "--json"]),
    "trace --diff-steps": ("trace", ["trace", "new", "--diff-steps", "10-13:12-15"]),
    "diagnose": ("diagnose", ["diagnose", *SCALED]),
    "diagnose --json": ("diagnose", ["diagnose", *SCALED, "--json"]),
    "diagnose --protocol": ("diagnose", ["diagnose", *SCALED, "--protocol"]),
    "diagnose --explain": ("diagnose", ["diagnose", "--explain", "launch-bound"]),
    "diagnose --rules list": ("diagnose", ["diagnose", "--rules", "list"]),
    "report": ("report", ["report", *SCALED, "-o", "OUT/report", "--md"]),
    "compare": ("compare", ["compare", *SCALED]),
    "predict --collective": ("predict", [
        "predict", "--collective", "all_reduce", "--size", "64M", "--gpus", "64", "--gpu", "h100-sxm", "--network",
        "infiniband-hdr",
    ]),
    "predict --from": ("predict", ["predict", "--from", "new", "--gpus", "8,64"]),
    "predict --calib": ("predict", [
        "predict", "--collective", "all_reduce", "--size", "1K", "--gpus", "2", "--calib", "calib.json",
    ]),
    "predict --model": ("predict", [
        "predict", "--model", "llama2-7b", "--gpu", "h100-sxm", "--gpus", "16,64", "--layout", "sp=off,tp=2", "--network",
        "infiniband-hdr",
    ]),
    "plan": ("plan", [
        "plan", "--model", "gpt-1.3b", "--gpu", "h100-sxm", "--gpus", "16", "--network", "infiniband-hdr", "--layout",
        "gbs=64,sp=off",
    ]),
    "bench --list": ("bench", ["bench", "--list"]),
    "bench --show": ("bench", ["bench", "--preset", "quick", "--show"]),
    "bench --plan": ("bench", ["bench", "--preset", "quick", "--plan"]),
    "bench --plan --json": ("bench", ["bench", "--preset", "quick", "--plan", "--json"]),
    "comm --plan": ("comm", ["comm", "--ops", "all_reduce,broadcast,send_recv", "--plan"]),
    "hardware": ("hardware", ["hardware"]),
    "schema": ("schema", ["schema", "run"]),
}  # fmt: skip

EXEMPT: dict[tuple[str, str], str] = {
    ("*", "processes"): TIME_ONLY,
    ("*", "cache"): "leaves files in the cache folder, which tests/e2e/test_trace.py looks at",
    ("trace", "csv"): "shown by its files", ("trace --diff", "diff"): SAME, ("trace --diff --json", "diff"): SAME,
    ("trace --show", "sort"): "refused", ("trace --csv", "csv"): "shown by its files",
    ("diagnose --json", "everything"): SAME,
    ("diagnose --json", "protocol"): "refused",
    ("report", "md"): SAME, ("report", "force"): "no report lies there",
    ("compare", "everything"): "so few figures are shown one by one",
    ("compare", "columns"): "the loss of the columns is left out on both sides",
    ("predict --collective", "caller"): "changes figures of launch-bound sizes only",
    ("predict --model", "chart"): "shown by its file", ("plan", "matrix"): "shown by its file",
    ("plan", "sharp"): "concerns all-reduces, of which the layouts shown have none between nodes",
    ("predict --collective", "dtype"): "tells only whether a size is a whole number of elements",
    ("bench --plan", "emulate_network"): "cells are named by what differs between them; --json has it",
    ("bench --plan", "inject"): "cells are named by what differs between them; --json has it",
    **{
        (mode, option): why
        for mode in ("bench --plan", "bench --plan --json")
        for option, why in {
            "data_dir": "the synthetic data need no folder", "rerun": "no run to resume here",
            "force": "no run to resume here", "output": "no run to resume here",
            "warmup": "the time of a plan is bounded by its budget",
        }.items()
    },
    **{
        (mode, option): "no run here has a baseline"
        for mode in ("diagnose", "diagnose --json", "diagnose --protocol", "report")
        for option in ("world_size", "scaling", "target_accuracy", "drop_epochs")
    },
}  # fmt: skip
"""(mode, option) that need not change what comes out, and why."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traced jobs, two epoch tables and a calibration."""
    folder = tmp_path_factory.mktemp("data")
    for name, forward in (("old", 100_000), ("new", 150_000)):
        write_job(build(world=2, steps=8, forward_ns=forward), folder / name)
        (folder / "metrics" / name).mkdir(parents=True)
        rows = [f"{n},{1 / n},{10 + n % 3 / 10 + forward / 1e5},{1 / n},0.{30 + n}" for n in range(1, 13)]
        table = "\n".join(["epoch,train_loss,train_time,val_loss,val_acc", *rows])
        (folder / "metrics" / name / "metrics.csv").write_text(table + "\n", encoding="utf-8")
    rows_ = sweep(sizes=SIZES)
    made = calibration(fit(rows_, alpha_us=50, rate=2e9))
    (folder / "classes.txt").write_text("copies mm_kernel\n", encoding="utf-8")
    (folder / "calib.json").write_bytes(codec.encode(made))
    return folder


@pytest.fixture(scope="module")
def environment() -> Any:
    return replace(collect(with_torch=False), unavailable={"torch": "not asked for"})


@pytest.fixture(scope="module")
def passes() -> Callable[..., RankPass]:
    """``passes_of`` that reads each of the traces once for each way to read it."""
    read: dict[str, RankPass] = {}

    def once(path: Path, **how: Any) -> RankPass:
        key = f"{path.absolute()} {sorted((name, value) for name, value in how.items() if name != 'advanced')}"
        if key not in read:
            read[key] = passes_of(path, **how)
        return read[key]

    return once


@pytest.fixture(autouse=True)
def _here(data: Path, environment: Any, passes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    monkeypatch.setattr("stepscope.traces.job.passes_of", passes)
    monkeypatch.setattr("stepscope.cli.report_run.usable_cores", lambda: 1)
    monkeypatch.setattr("stepscope.cli.perfetto.show", lambda _, place: sys.stdout.write(f"opened at {place}\n"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("stepscope.matrix.machine.collect", lambda **_: environment)


_VARIES = re.compile(r'"created": "[^"]*"|"command": \[[^\]]*\]|runs/\S+')


def outcome(words: list[str], place: Path, ran: Ran) -> tuple[int, str, str, dict[str, int]]:
    """Exit code, both streams without times and places, and the files written with their sizes."""
    place.mkdir()
    failing = "step_ns > 0" if any(word.startswith("--diff") for word in words) else "window_ns > 0"
    typed = [word.replace("OUT", str(place)).replace("FAILING", failing) for word in words]
    code, *said = ran(*typed)
    out, err = (_VARIES.sub("", text).replace(str(place), "OUT") for text in said)
    files = {str(p.relative_to(place)): p.stat().st_size for p in sorted(place.rglob("*")) if p.is_file()}
    return code, out, err, files


@pytest.mark.parametrize("mode", MODES)
def test_every_option_is_obeyed_or_refused(mode: str, tmp_path: Path, ran: Ran) -> None:
    command, base = MODES[mode]
    plain = outcome(base, tmp_path / "base", ran)
    assert plain[0] == 0, plain[2]
    ignored = []
    for option, words in SAMPLES[command].items():
        if words[0] in base and words[0] not in ("--fail-if", "--rank-of", "--set", "--env"):
            typed = [*base[: base.index(words[0])], *words, *base[base.index(words[0]) + len(words) :]]
        else:
            typed = [*base, *words]
        code, out, err, files = outcome(typed, tmp_path / option, ran)
        if code in (2, 3):
            assert out == "", f"{mode} {words}: printed before it was refused"
            assert "error: " in err
        elif (code, out, err, files) == plain and typed != base:
            ignored.append(option)
    unsaid = [each for each in ignored if (mode, each) not in EXEMPT and ("*", each) not in EXEMPT]
    assert unsaid == [], f"{mode} ignores {unsaid}"


def test_every_command_is_in_the_table() -> None:
    assert REGISTRY.shipped == SAMPLES.keys()


def profiled(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """All that ``profile`` or ``run`` hand on of their options, or the refusal."""
    seen: list[object] = []

    def prepare(layout: ProfileLayout, record: ProfileRecord, **how: object) -> dict[str, str]:
        seen.extend((layout.root.name if "-o" in words or "--output" in words else "", replace(record, argv=()), how))
        return {}

    class Child:
        pid = 1

        def poll(self) -> int:
            return 0

        wait = poll

    def verdict(*_: object, options: Profile, **__: object) -> None:
        seen.extend((options.tensorboard, options.memory, options.verdict, options.tables))

    def hang_watch(_: object, after_s: float | None) -> SimpleNamespace:
        seen.append(after_s)
        return SimpleNamespace(look=lambda: None, hang=None)

    for name, stand_in in (
        ("prepare", prepare),
        ("start", lambda *_: Child()),
        ("signals_passed_on", lambda _: nullcontext()),
        ("wake", lambda _, request: seen.append(request) or 1),
    ):
        monkeypatch.setattr(f"stepscope.launch.hooked_job.{name}", stand_in)
    nothing = WindowState(expected=None, reports=())
    end = JobEnd(kind="ok", code=0)
    for name, stand_in in (
        ("wait_for_window", lambda *given: seen.append(given[2]) or nothing),
        ("is_gone", lambda _: False),
        ("RankWatch", lambda *_: nullcontext()),
        ("HangWatch", hang_watch),
        ("ended", lambda *_, **__: end),
        ("_left_traces", lambda *_: True),
        ("_verdict", verdict),
        ("_around_ranks", lambda command, _: ["nsys", *command]),
        ("job_folder", lambda output, kind, _: ProfileLayout(output or Path(kind))),
    ):
        monkeypatch.setattr(f"stepscope.cli.profile_run.{name}", stand_in)
        if hasattr(monitor_run, name):
            monkeypatch.setattr(monitor_run, name, stand_in)
    for module in ("profile_run", "monitor_run"):
        monkeypatch.setattr(f"stepscope.cli.{module}.check_job", lambda given, *_: seen.append(given))
    for name in ("results_at", "_show"):
        monkeypatch.setattr(monitor_run, name, lambda *given, **how: seen.append((given, how)) or nullcontext())
    monkeypatch.setattr("os.nice", lambda _: None)
    monkeypatch.setattr(monitor_run, "DeepLooks", lambda _, mode: seen.append(mode))
    monkeypatch.setattr(monitor_run, "_opened", lambda _, targets: seen.append(targets))
    monkeypatch.setattr(
        monitor_run, "Notices", lambda layout, receivers: seen.append(receivers) or Notices(layout, receivers)
    )
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ("refused",) if ended.value.code == 2 else tuple(seen)


@pytest.mark.parametrize(
    ("mode", "refused"),
    [
        (["profile"], {"after", "attach"}),
        (["profile", "--duration", "9"], {"steps", "wait", "step_optimizer", "attach", "nsys"}),
        (
            ["profile", "--attach", "JOB"],
            {"output", "nccl_debug", "step_optimizer", "duration", "after", "nsys", "hang_after"},
        ),
        (
            ["profile", "--nsys"],
            {"shapes", "stacks", "memory", "flops", "modules", "tensorboard", "after", "duration", "attach"},
        ),
        (["run"], {"join"}),
        (["run", "--no-monitor"], {"hang_after", "verdict", "export", "fail_if", "deep", "join", "notify"}),
    ],
    ids=["profile", "profile --duration", "profile --attach", "profile --nsys", "run", "run --no-monitor"],
)
def test_options_of_a_hooked_job_are_obeyed_or_refused(
    mode: list[str], refused: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = [] if "--attach" in mode else ["--", "true"]
    plain = profiled([*mode, *job], monkeypatch)
    assert plain[0] != "refused"
    found = set()
    for option, words in SAMPLES[mode[0]].items():
        typed = [f"--no-{option}"] if option in ("shapes", "monitor") else words
        if typed[0] in mode:
            continue
        answer = profiled([*mode, *typed, *job], monkeypatch)
        assert answer != plain, f"{mode} ignores {option}"
        found |= {option} if answer == ("refused",) else set()
    assert found == refused


@pytest.mark.parametrize("command", SAMPLES)
def test_every_option_of_a_command_is_in_the_table(command: str) -> None:
    options = REGISTRY.load(command).options
    for field in _fields(options).values():  # what goes with it is named by fields
        assert {*(field.only or "").split(), *field.without.split(), *field.needs.split()} <= _fields(options).keys()
    named = {name for name in _fields(options) if re.match("--[a-z]", spelled(options, name))}
    assert named <= SAMPLES[command].keys()
    for name in named - {"check"}:
        assert SAMPLES[command][name][0] == spelled(options, name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trace", "new", "--diff", "old", "--merge", "m", "--show", "idle"], "--diff does not go with --show, --merge"),
        (["trace", "new", "--json", "--limit", "3"], "--json does not go with --limit: it lists every row"),
        (["trace", "new", "--show", "budget", "--sort", "calls"], "--show without 'operators' does not go with --sort"),
        (["trace", "new", "--cell", "x"], "--cell 'x': new is not a run folder of `stepscope bench`"),
        (["trace", "new", "--rank-of", "rank-9.json=1"], "no trace 'rank-9.json' was read"),
        (["trace", "new", "--sort", "callz"], "did you mean 'calls'"),
        (["compare", "metrics/old", "metrics/new", "--rounds", "8"], "compare without --run does not go with --rounds"),
        (["compare", "--run", "a.yaml", "b.yaml", "--columns", "a=-"], "--run does not go with --columns"),
        (["diagnose", "new", "--explain", "straggler"], "--explain does not go with PATHS"),
        (["bench", "--list", "--preset", "quick"], "--list does not go with --preset"),
        (["bench", "--preset", "quick", "--show", "--plan"], "--show does not go with --plan"),
        (["predict", "--buckets", ".", "--calib", "calib.json", "--gpus", "4"], "--buckets does not go with --gpus"),
        (["predict", "--validate", "."], "--validate is not an option of predict any more"),
        (["report", "metrics/new", "--md", "--title", "x"], "--title is the heading of the page: add --html"),
        (["schema", "run", "--list"], "--list does not go with NAME"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_one_line(words: list[str], message: str, ran: Ran) -> None:
    code, out, err = ran(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_diff_obeys_its_condition_and_writes_its_tables(tmp_path: Path, ran: Ran) -> None:
    slower = ["trace", "new", "--diff", "old", "--csv", str(tmp_path / "csv"), "--json"]
    for condition, code in (("step_ns > 5%", 6), ("step_ns > 500%", 0), ("comm_ns > 5%", 0)):
        said = ran(*slower, "--fail-if", condition)
        assert (said.code, json.loads(said.out)["command"][0]) == (code, "stepscope")
    assert {p.name for p in (tmp_path / "csv").iterdir()} == {
        f"diff_{kind}-rank-{rank}.csv" for kind in ("parts", "kernels", "operators") for rank in (0, 1)
    }
