"""What ranks of an emulated network are told, and how their end is reported."""

import signal
import subprocess
import sys
from pathlib import Path

from stepscope.launch.netns.world import Rank, command_of_ranks, end_ranks, environments, failure_report
from stepscope.launch.verdict import exit_codes, first_seen


def test_a_rank_knows_its_place_on_its_host_and_in_the_world() -> None:
    found = environments((0, 0, 1, 1, 1))
    assert [(e["RANK"], e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"], e["GROUP_RANK"]) for e in found] == [
        ("0", "0", "2", "0"), ("1", "1", "2", "0"), ("2", "0", "3", "1"), ("3", "1", "3", "1"), ("4", "2", "3", "1"),
    ]  # fmt: skip
    assert {e["WORLD_SIZE"] for e in found} == {"5"}
    assert {(e["MASTER_ADDR"], e["GLOO_SOCKET_IFNAME"]) for e in found} == {("10.77.0.1", "eth0")}


def ended(rank: int, code: int) -> Rank:
    line = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"import sys; sys.stdin.close(); exit({code})"
    process = subprocess.Popen([sys.executable, "-c", line])
    process.wait()
    return Rank(rank, rank % 2, rank // 2, process)


def test_the_report_of_a_failure_is_read_as_torchruns_is() -> None:
    ranks = [ended(0, -15), ended(1, 0), ended(2, -9), ended(3, 7)]
    report = failure_report(ranks, ranks[3])
    assert exit_codes(report) == {0: -15, 2: -9, 3: 7}
    assert first_seen(report) == 3


def test_a_rank_that_ignores_sigterm_is_killed() -> None:
    line = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.PIPE)
    process.stdout.readline()
    end_ranks([Rank(0, 0, 0, process)], grace_s=0.2)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


def test_the_launcher_gets_the_ranks_command_after_its_own_options() -> None:
    line = command_of_ranks(
        "1gbit:2", parent=7, world_size=4, log_dir=Path("/run/logs"), error_file=Path("/run/e"), argv=["prog", "--flag"]
    )
    assert line[:3] == [sys.executable, "-m", "stepscope.launch.netns.world"]
    assert line[line.index("--world-size") + 1] == "4"
    assert line[-3:] == ["--", "prog", "--flag"]
