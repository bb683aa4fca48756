"""Makes the folders of jobs and matrices that the corpus reads: ``python -m tests.corpus.making [--list] [NAME...]``.

Every folder is that of a real run on this machine, packed as jobs/NAME.tar.xz; how its job or its cells were judged to have
ended, and from what, is a line of ends.jsonl. Paths and the name of the host are replaced. README.md says more.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.own_jobs.planted import PLANTED
from benchmarks.own_jobs.running import LAUNCHERS, SETTINGS

HERE = Path(__file__).parent
INTO = Path(os.environ.get("MADE_INTO", HERE))
PACKED, ENDS = INTO / "jobs", INTO / "ends.jsonl"
CHECKOUT = HERE.parents[1]
PYTHON = sys.executable
ENDING = str(CHECKOUT / "benchmarks" / "_ending_job.py")
OWN = CHECKOUT / "benchmarks" / "own_jobs" / "jobs"
TUNED = [PYTHON, str(CHECKOUT / "tests" / "e2e" / "tuned_job.py"), "--batch-size", "8", "--fails", "0"]
HOST = "localhost"
LONGEST_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Made:
    """A folder. words: of the command, OUT stands for the folder. stop: what is done to the command once it is running."""

    name: str
    words: tuple[str, ...]
    stop: Callable[[subprocess.Popen[bytes], Path], None] | None = None
    files: tuple[tuple[str, str], ...] = ()
    fake_torch: bool = False


def _torchrun(ranks: int, *words: str, restarts: int = 0) -> tuple[str, ...]:
    again = ("--max-restarts", str(restarts)) if restarts else ()
    return (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *again, *words)


def _profiled(name: str, command: tuple[str, ...], *options: str) -> Made:
    return Made(name=name, words=("profile", *options, "-o", "OUT", "--verdict", "verdict.txt", "--", *command))


def _run(name: str, command: tuple[str, ...], *options: str, **more: object) -> Made:
    words = ("run", *options, "-o", "OUT", "--verdict", "verdict.txt", "--", *command)
    return Made(name=name, words=words, **more)  # type: ignore[arg-type]


def _interrupted(after_s: float, signum: int = signal.SIGINT) -> Callable[[subprocess.Popen[bytes], Path], None]:
    def stop(process: subprocess.Popen[bytes], out: Path) -> None:
        limit = time.monotonic() + 90
        while not list(out.glob(".stepscope/diary-*.bin")) and time.monotonic() < limit:
            time.sleep(0.2)
        time.sleep(after_s)
        process.send_signal(signum)

    return stop


AUTO = ("late_rank", "few_workers")
OF_MANY_EVENTS = ("generator_loader", "python_bound", "fsdp2_small_units")
LEFT = ("clean_hf_trainer", "clean_lightning", "rollouts_each", "clean_fixed", "crash", "exit_1", "hang", "killed",
        "import_error", "slow_rank_of_2", "clean_sp")  # fmt: skip


def _own() -> Iterator[Made]:
    """The planted jobs of benchmarks/own_jobs."""
    for job in PLANTED:
        if job.name not in LEFT:
            options = () if job.name in AUTO else ("--steps", "2" if job.name in OF_MANY_EVENTS else "5")
            yield _profiled(job.name.replace("_", "-"), tuple(job.command()), *options)
    for name, words in {
        "watched-backward": ("watched.py", "--plant", "backward", "--steps", "200"),
        "watched-stall": ("watched.py", "--plant", "stall", "--steps", "200"),
        "watched-leak": ("watched.py", "--plant", "leak", "--steps", "300"),
        "planted-later": ("planted_later.py", str(OWN / "clean_ddp.py"), "600", "300"),
        "late-rank-run": ("late_rank.py",),
    }.items():
        yield _run(name, _torchrun(2, str(OWN / words[0]), *words[1:]))
    yield _run("evaluation-run", _torchrun(2, str(OWN / "evaluation.py")), "--deep", "off")
    yield _profiled("window-too-late", _torchrun(2, str(OWN / "clean_ddp.py")), "--wait", "5000")
    yield _profiled("one-rank-of-two", _torchrun(2, str(OWN / "late_rank.py")), "--ranks", "1", "--steps", "5")
    yield _profiled("with-memory-and-modules", _torchrun(2, str(OWN / "clean_fsdp2.py")),
                    "--memory", "--modules", "--steps", "4")  # fmt: skip
    one = f"{PYTHON} {OWN / 'three_steps.py'}"
    yield _run("trained-twice", ("sh", "-c", f"{one}; {one}"))


def _ends() -> Iterator[Made]:
    """The ends of benchmarks/ends.py."""
    how = {
        "raise": ("raise", "30", "1"), "raise-all": ("raise", "30", "-1"), "import": ("import", "30", "1"),
        "exit": ("exit", "30", "1"), "os-exit": ("os-exit", "30", "1"), "segv": ("SIGSEGV", "40", "1"),
        "kill": ("SIGKILL", "30", "1"), "term": ("SIGTERM", "30", "1"), "launcher-kill": ("launcher-SIGKILL", "30", "1"),
        "launcher-term": ("launcher-SIGTERM", "30", "1"), "stepscope-int": ("stepscope-SIGINT", "30", "1"),
        "worker": ("worker", "30", "1"), "memory": ("memory", "30", "1"), "oom": ("oom", "30", "1"),
        "timeout-sleeps": ("hang-sleep", "30", "1", "4"), "timeout-data": ("hang-data", "30", "1", "4"),
        "early": ("ends-early", "30", "1", "4"),
    }  # fmt: skip
    for name, words in how.items():
        made = _run if name in ("raise", "kill", "oom", "timeout-sleeps", "exit", "memory") else _profiled
        yield made(f"end-{name}", _torchrun(2, ENDING, *words))
    yield _run("end-timeout-loops-3", _torchrun(3, ENDING, "hang-loop", "30", "1", "4"))
    yield _run("end-hang", _torchrun(2, ENDING, "hang-sleep", "30", "1"), "--hang-after", "5", stop=_interrupted(20))
    yield _run("end-restarts", _torchrun(2, ENDING, "raise", "40", "1", restarts=1))
    yield _run("end-stepscope-killed", _torchrun(2, ENDING, "", "30", "1"), stop=_interrupted(6, signal.SIGKILL))
    yield _run("end-interrupted", _torchrun(2, ENDING, "", "30", "1"), stop=_interrupted(5))
    yield _run("end-missing-script", (PYTHON, "missing.py"))
    yield _run("end-syntax", (PYTHON, "train.py"), files=(("train.py", "this is no Python"),))
    yield _run("end-before-training", (PYTHON, "train.py"),
               files=(("train.py", "import torch; open('/nothing/of/this/name')"),))  # fmt: skip


MATRIX = """version: 1
base: {{workload: mlp, {model}dataset: synthetic, dataset_options: {{samples: 512}},
       lr: 0.05, global_batch: 32, steps: {steps}, world_size: 2}}
{cells}
measure: {{warmup: 2, budget_s: 2, timeout_s: {timeout}{measure}}}
launch: {{threads_per_rank: 1, device: cpu}}
"""
ALONE = "include: [{strategy: single, world_size: 1}]"
GPT = "workload: gpt, model: {num_layers: 2, d_model: 64, n_heads: 2, vocab_size: 256, max_seq_len: 32}"
DEEP = "workload: deep_mlp, model: {depth: 6, width: 128}, loss: mse"
PLUGIN = (
    ("plugins/faulty_plugin-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: faulty-plugin\nVersion: 1.0\n"),
    (
        "plugins/faulty_plugin-1.0.dist-info/entry_points.txt",
        "[stepscope.workloads]\nfaulty = faulty_plugin:WORKLOAD\n"
        "[stepscope.rank.workloads]\nfaulty = faulty_plugin_rank:build\n",
    ),
)


def _matrix(name: str, cells: str, *, steps: int = 20, timeout: int = 60, measure: str = "", stop: Any = None) -> Made:
    model = "" if "workload: " in cells else "model: {size: tiny}, "
    text = MATRIX.format(cells=cells, model=model, steps=steps, timeout=timeout, measure=measure and f", {measure}")
    files = (("matrix.yaml", text), *PLUGIN)
    return Made(name=f"bench-{name}", words=("bench", "matrix.yaml", "-o", "OUT"), files=files, stop=stop)


def _faulty(*kinds: str, strategy: str = "ddp", **options: int) -> str:
    model = json.dumps({"kind": "none", **options})
    return f"  - {{workload: faulty, model: {model}, strategy: {strategy}, axes: {{model.kind: {json.dumps(kinds)}}}}}"


def _benches() -> Iterator[Made]:
    """Matrices of quick cells, and what goes wrong in cells."""
    yield _matrix("strategies", f"axes: {{strategy: [naive, interleaved, bucketed, ddp, zero1, fsdp2]}}\n{ALONE}")
    yield _matrix("scaling", f"axes: {{strategy: [ddp], world_size: [2, 4]}}\n{ALONE}", steps=30)
    yield _matrix("accumulation", f"axes: {{strategy: [naive, ddp], accumulation: [1, 2, 4]}}\n{ALONE}")
    yield _matrix("precision", f"axes: {{strategy: [ddp], precision: [fp32, bf16, amp_bf16]}}\n{ALONE}")
    yield _matrix("replicates", f"axes: {{strategy: [naive, ddp], seed: [1, 2, 3]}}\n{ALONE}")
    yield _matrix("profiled", f"axes: {{strategy: [naive, ddp]}}\n{ALONE}", measure="profile: true")
    yield _matrix(
        "comm", "axes: {strategy: [ddp]}\ncomm: {ops: 'all_reduce,all_gather', sizes: '1K:1M:32', budget_s: 0.3}"
    )
    cells = (
        f"  - {{{GPT}, optimizer: adam, strategy: fsdp2, axes: {{activation_checkpointing: [none, selective, full]}}}}"
    )
    yield _matrix("checkpointing", f"include:\n{cells}")
    cells = f"""  - {{{DEEP}, strategy: pipeline, mesh: {{pp: 2}}, axes: {{strategy_options.schedule: [gpipe, 1f1b]}}}}
  - {{{DEEP}, strategy: single, world_size: 1}}"""
    yield _matrix("pipeline", f"include:\n{cells}")
    cells = f"  - {{{GPT}, strategy: tensor_parallel, mesh: {{tp: 2}}}}\n  - {{{GPT}, strategy: ddp}}"
    yield _matrix("tensor-parallel", f"include:\n{cells}")
    cells = f"  - {{{DEEP}, axes: {{strategy: [bucketed, ddp], strategy_options.bucket_cap_mb: [0.1, 1, 25]}}}}"
    yield _matrix("buckets", f"include:\n{cells}\nequal_buckets: once")
    cells = "  - {strategy: ddp, steps: null, epochs: 3}\n  - {strategy: single, world_size: 1, steps: null, epochs: 3}"
    yield _matrix("epochs", f"include:\n{cells}")
    sections = """include:
  - {section: [training, memory, scaling], strategy: single, world_size: 1}
  - {section: memory, strategy: single, world_size: 1, axes: {global_batch: [64, 128]}}
  - {section: [training, scaling], strategy: ddp}"""
    yield _matrix("sections", f"{sections}\ncomm: {{ops: all_reduce, sizes: '1K:64K:8', budget_s: 0.2}}")
    kinds = ("raise", "exit", "quiet_exit", "kill", "cuda_oom", "watchdog", "diverge", "hang")
    other = _faulty("other_op", "other_size", strategy="naive", at=4)
    yield _matrix("faults", f"include:\n{_faulty(*kinds)}\n{other}\n  - {{strategy: bucketed}}", timeout=6)
    yield _matrix("slow", f"include:\n{_faulty('slow', 'none')}", timeout=5, steps=40)
    yield _matrix("oom", f"include:\n{_faulty('host_oom', 'cuda_oom')}\n  - {{strategy: ddp}}")
    hangs = f"include:\n  - {{strategy: bucketed}}\n{_faulty('hang')}\n  - {{strategy: fsdp2}}"
    yield _matrix("interrupted", hangs, stop=_stopped_in_cell)
    yield Made(name="comm", words=("comm", "--ranks", "2", "--device", "cpu", "--ops", "all_reduce,broadcast,all_to_all",
                                   "--sizes", "1K:1M:32", "--budget", "0.3", "-o", "OUT"))  # fmt: skip
    knobs = ("--knob", "batch=--batch-size:8,16,48", "--knob", "unit=--fails:1,2")
    words = ("tune", "--budget", "300ms", "--allow", "batch", *knobs, "-o", "OUT", "--", *TUNED)
    yield Made(name="tune", words=words, fake_torch=True)


def _stopped_in_cell(process: subprocess.Popen[bytes], out: Path) -> None:
    limit = time.monotonic() + 60
    while len(list(out.glob("cells/*/heartbeat-00000"))) < 2 and time.monotonic() < limit:
        time.sleep(0.2)
    time.sleep(3)
    process.send_signal(signal.SIGINT)


ALL = (*_own(), *_ends(), *_benches())


def environment(folder: Path, *, fake_torch: bool) -> dict[str, str]:
    """As own_jobs gives it, with the faulty workload of the tests beside."""
    clean = {
        name: value for name, value in os.environ.items() if name not in LAUNCHERS and not name.startswith("STEPSCOPE")
    }
    paths = [
        folder / "plugins",
        CHECKOUT,
        CHECKOUT / "tests" / "e2e",
        *([CHECKOUT / "tests" / "fake_torch"] if fake_torch else []),
    ]
    return {**clean, **SETTINGS, "PYTHONPATH": ":".join(map(str, paths)), "XDG_CACHE_HOME": str(folder / "cache")}


def make(made: Made, ends: Path) -> None:
    """Run it, and pack its folder; what was judged goes to ``ends``."""
    with tempfile.TemporaryDirectory(prefix="made-") as place:
        folder = Path(place)
        for name, text in made.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        line = [PYTHON, "-m", "tests.corpus.capturing", str(folder / "ends.jsonl"),
                *(str(folder / made.name) if word == "OUT" else word for word in made.words)]  # fmt: skip
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(
                line,
                cwd=folder,
                env=environment(folder, fake_torch=made.fake_torch),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                if made.stop is not None:
                    made.stop(process, folder / made.name)
                process.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                _say(f"{made.name}: no end in {LONGEST_S:.0f} s")
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for pid in _ranks(folder):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        root = folder / made.name
        if not root.is_dir():
            _say(f"{made.name}: nothing; {(folder / 'stderr').read_text()[-600:]}")
            return
        size = pack(root, PACKED / f"{made.name}.tar.xz", folder)
        if (folder / "ends.jsonl").exists():
            texts = (folder / "ends.jsonl").read_text().splitlines()
            with ends.open("a") as file:
                for text in texts:
                    file.write(json.dumps({"name": made.name, **json.loads(anonymous(text.encode(), folder))}) + "\n")
        _say(f"{made.name}: code {process.returncode}, {size / 1024:.0f} KiB")


def _ranks(folder: Path) -> Iterator[int]:
    """Processes of the job that still run: those that work in its folder."""
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if path.resolve().is_relative_to(folder):
                yield int(path.parent.name)


def anonymous(data: bytes, folder: Path) -> bytes:
    """Without paths of this machine."""
    for path, word in ((folder, "/job"), (OWN, "/train"), (CHECKOUT / ".venv", "/env"), (CHECKOUT, "/stepscope"),
                       (Path(sys.base_prefix), "/usr")):  # fmt: skip
        data = data.replace(str(path).encode(), word.encode())
    return data


def pack(root: Path, target: Path, folder: Path) -> int:
    """Write the archive; traces lie in it with level 0 of gzip, so that xz can pack them. Its size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in sorted(each for each in root.rglob("*") if each.is_file() and not each.is_symlink()):
            data = path.read_bytes()
            data = (
                gzip.compress(anonymous(gzip.decompress(data), folder), 0, mtime=0)
                if path.suffix == ".gz"
                else anonymous(data, folder)
            )
            about = tarfile.TarInfo(str(path.relative_to(root)))
            about.size, about.mtime, about.mode = len(data), 1_763_000_000, 0o644
            archive.addfile(about, io.BytesIO(data))
    import lzma

    target.write_bytes(lzma.compress(raw.getvalue(), preset=9))
    return target.stat().st_size


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Make what is named, all without a name."""
    names = sys.argv[1:]
    if names == ["--list"]:
        _say("\n".join(each.name for each in ALL))
        return
    if os.uname().nodename != HOST:  # in a namespace of its own with another name
        here = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            f'hostname {HOST} && exec "$@"',
            "sh",
            PYTHON,
            "-m",
            "tests.corpus.making",
            *names,
        ]
        os.execvp(here[0], here)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    for each in ALL:
        if not names or each.name in names:
            kept = ENDS.read_text().splitlines() if ENDS.exists() else []
            ENDS.write_text("".join(f"{line}\n" for line in kept if json.loads(line).get("name") != each.name))
            make(each, ENDS)


if __name__ == "__main__":
    main()
