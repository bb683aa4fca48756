"""The command line that records a job's window with Nsight Systems: one `nsys profile` around each rank."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError, UsageError
from stepscope.launch.training_command import MODULE, PYTHON, python_beside, split_torchrun, words_of_torchrun

KINDS = ("cuda", "nvtx", "osrt", "cudnn", "cublas", "nccl")
"""What is traced, where the installed version knows it. Most versions have no kind for NCCL: its ranges come as NVTX."""
QUIET = (("--sample", "none"), ("--cpuctxsw", "none"))
"""Sampling of the processor slows the job and says nothing of its GPU."""
_RANKS = {
    "srun": "SLURM_PROCID", "mpirun": "OMPI_COMM_WORLD_RANK", "mpiexec": "OMPI_COMM_WORLD_RANK",
    "orterun": "OMPI_COMM_WORLD_RANK", "mpiexec.hydra": "PMI_RANK",
}  # fmt: skip


@record
class Nsys:
    """The installed nsys. help: what `nsys profile --help` says."""

    version: str
    help: str

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of KINDS that this version traces."""
        match = re.search(r"--trace\b.*?(?=\n\s*(?:-\w,|--)|\n\s*\n|\Z)", self.help, re.DOTALL)
        words = set(re.findall(r"[\w-]+", match[0])) if match else {"cuda", "nvtx"}
        return tuple(kind for kind in KINDS if kind in words)

    def line(self, output: str) -> list[str]:
        """Return `nsys profile` with its options, for the program that follows: only what lies between the calls of
        cudaProfilerStart and cudaProfilerStop is recorded, and the program goes on after them."""
        line = ["nsys", "profile", f"--trace={','.join(self.kinds)}", "--capture-range=cudaProfilerApi"]
        if "--capture-range-end" in self.help:
            line.append("--capture-range-end=stop")
        elif "--stop-on-range-end" in self.help:
            line += ["--stop-on-range-end=true", "--kill=none"]
        line += [f"{name}={value}" for name, value in QUIET if name in self.help]
        return [*line, "--force-overwrite=true", f"--output={output}"]


def installed() -> Nsys:
    """Return the installed nsys. Raises MissingError where there is none, or where it does not answer."""
    if shutil.which("nsys") is None:
        raise MissingError(
            "--nsys needs Nsight Systems",
            why="nsys is not installed, or not on PATH",
            fix="install it from developer.nvidia.com/nsight-systems, or leave --nsys out",
        )
    outputs = []
    for line in (["nsys", "--version"], ["nsys", "profile", "--help"]):
        try:
            done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingError(f"{' '.join(line)} does not answer", why=str(error), fix="repair nsys") from error
        outputs.append(done.stdout or done.stderr)
    match = re.search(r"\d+(?:\.\d+)+", outputs[0])
    return Nsys(version=match[0] if match else "of unknown version", help=outputs[1])


def around_ranks(command: Sequence[str], nsys: Nsys, folder: Path) -> list[str]:
    """Return ``command`` with nsys around the program of every rank, one report a rank in ``folder``.

    Raises UsageError where no part of the command is known to be that program.
    """
    first = Path(command[0]).name
    if begin := words_of_torchrun(command):
        given, program = split_torchrun(command[begin:])
        if not program:
            raise UsageError(
                "--nsys: this torchrun command names no script", fix="name it as a file, without --run-path"
            )
        return _without_python(command[:begin], [word for option in given for word in option], program, nsys, folder)
    if first == "accelerate" and "launch" in command:
        script = [i for i, word in enumerate(command) if word.endswith(".py")]
        module = [i + 1 for i, word in enumerate(command) if word in MODULE]
        if at := next(iter(script or module), 0):
            options = [word for word in command[1:at] if word not in MODULE]
            return _without_python(command[:1], options, [*([] if script else ["-m"]), *command[at:]], nsys, folder)
    if PYTHON.fullmatch(first):
        return [*nsys.line(str(folder / "rank-0")), *command]
    if first in _RANKS:
        python = next((i for i, word in enumerate(command) if PYTHON.fullmatch(Path(word).name)), None)
        if python is not None:
            return [*command[:python], *nsys.line(_report_path(folder, _RANKS[first])), *command[python:]]
    line = " ".join(nsys.line(_report_path(folder, "RANK")))
    raise UsageError(
        "--nsys: no part of this command is known to be the program of a rank",
        why="nsys must be around each rank's program, behind the launcher",
        fix=f"put this in front of that program yourself, and profile without --nsys: {line}",
    )


def _report_path(folder: Path, variable: str) -> str:
    return str(folder / f"rank-%q{{{variable}}}")


def _without_python(
    launcher: Sequence[str], options: Sequence[str], program: Sequence[str], nsys: Nsys, folder: Path
) -> list[str]:
    """Return a launcher that starts scripts with Python, told to start nsys, which starts Python."""
    line = nsys.line(_report_path(folder, "RANK"))
    if {"--no-python", "--no_python"} & {*options}:
        return [*launcher, *options, *line, *program]
    python = launcher[0] if PYTHON.fullmatch(Path(launcher[0]).name) else python_beside(launcher[0])
    return [*launcher, *options, "--no_python", *line, python, "-u", *program]
