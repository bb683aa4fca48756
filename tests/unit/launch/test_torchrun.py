"""The launcher's command line and environment are pure."""

import sys
from pathlib import Path

from stepscope.launch.torchrun import command, environment


def test_one_torchrun_starts_the_rank_half_with_a_spec() -> None:
    line = command(Path("/run/spec.json"), world_size=4, log_dir=Path("/run/logs"))
    assert line[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert line[line.index("--nproc-per-node") + 1] == "4"
    assert line[line.index("--max-restarts") + 1] == "0"
    assert line[-3:] == ["-m", "stepscope.rank", "/run/spec.json"]


def test_stale_launcher_variables_of_a_shell_do_not_reach_the_ranks() -> None:
    base = {"PATH": "/bin", "RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "elsewhere", "NCCL_DEBUG": "INFO"}
    ranks = environment(base, threads_per_rank=2, extra={"NCCL_DEBUG": "WARN"})
    assert "RANK" not in ranks
    assert "MASTER_ADDR" not in ranks
    assert (ranks["OMP_NUM_THREADS"], ranks["NCCL_DEBUG"], ranks["PATH"]) == ("2", "WARN", "/bin")
