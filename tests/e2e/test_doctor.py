"""``doctor`` and ``hardware`` as a user runs them, with a torch that does not import, and with real ranks (``--quick``)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.runs import Cli, Here, wait_for

pytestmark = pytest.mark.e2e

TOPO = "\\tGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\nGPU0\\t X \\tNV12\\t0-3\\t0\\nGPU1\\tNV12\\t X \\t4-7\\t1\\n"


def stub_torch(folder: Path, code: str) -> str:
    """A PYTHONPATH on which ``import torch`` runs ``code``."""
    package = folder / "stub" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    return str(package.parent)


def by_key(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {check["key"]: check for check in document["checks"]}


def test_doctor_prints_every_section_and_ends_with_0(fresh_cli: Cli) -> None:
    done = fresh_cli("doctor")
    assert (done.code, done.err) == (0, "")
    for title in ("environment", "GPUs", "links", "network", "launcher", "checks"):
        assert f"\n{title}\n" in f"\n{done.out}"
    assert "PASS" in done.out
    assert " passed, " in done.out.splitlines()[0]
    assert "\x1b" not in done.out
    assert not [line for line in done.out.splitlines() if line != line.rstrip()]


def test_doctor_json_is_one_document_with_environment_links_and_checks(cli: Cli, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '{TOPO}'\n")
    program.chmod(0o755)
    done = cli(
        "doctor", "--json", PATH=f"{program.parent}:{os.environ['PATH']}", NCCL_DEBUG="INFO",
        NCCL_API_KEY="do-not-print-me", SLURM_JOB_ID="5", SLURM_NTASKS_PER_NODE="4",
    )  # fmt: skip
    assert done.code == 0, done.err
    document = done.json()
    assert document["schema"] == "stepscope.doctor/1"
    parts = {"schema", "tool_version", "created", "command", "environment", "links", "checks", "summary"}
    assert set(document) == parts
    assert document["links"]["gpu_pairs"] == [{"a": "GPU0", "b": "GPU1", "kind": "NV", "nvlinks": 12}]
    assert document["links"]["nvlink_islands"] == [["GPU0", "GPU1"]]
    assert document["links"]["nvswitch"] is None
    assert document["links"]["gpus"][1]["numa_affinity"] == [1]
    assert document["environment"]["variables"]["NCCL_API_KEY"] == "***"
    assert "do-not-print-me" not in done.out
    checks = by_key(document)
    assert checks["debug_variables"]["status"] == "warn"
    assert checks["debug_variables"]["fix"] == "unset NCCL_DEBUG"
    assert checks["slurm_tasks"]["status"] == "warn"
    assert checks["torch"]["status"] == "pass"
    assert sum(document["summary"].values()) == len(document["checks"])
    assert all(check["fix"] for check in document["checks"] if check["status"] in ("warn", "fail"))


def test_under_a_launcher_one_rank_of_a_host_reports(cli: Cli) -> None:
    quiet = cli("doctor", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert (quiet.code, quiet.out) == (0, "")
    assert "local rank 0 reports for this host" in quiet.err
    report = cli("doctor", RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", NCCL_DEBUG="INFO")
    first = report.out.splitlines()[0]
    number = int(first.split(" warning")[0].split()[-1])
    assert f"{number} warning{'' if number == 1 else 's'}, " in first


def test_a_failed_check_is_printed_and_only_strict_makes_it_the_exit_code(cli: Cli) -> None:
    plain = cli("doctor", RANK="5", WORLD_SIZE="2")
    assert plain.code == 0
    assert "FAIL  rank variables" in plain.out
    assert "unset RANK WORLD_SIZE" in plain.out
    strict = cli("doctor", "--strict", "--json", RANK="5", WORLD_SIZE="2")
    assert strict.code == 6
    assert by_key(strict.json())["stale_world"]["status"] == "fail"
    assert "1 failed: rank variables" in strict.err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "torch is not installed"),
        ("raise ImportError('libtorch_cpu.so: cannot open shared object file')", "libtorch_cpu.so"),
        ("import signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import time; time.sleep(100)", "took over 2 s"),
    ],
    ids=["missing", "broken", "crashing", "hanging"],
)
def test_a_torch_that_does_not_import_is_a_failed_check_and_the_rest_is_there(
    cli: Cli, tmp_path: Path, code: str, said: str
) -> None:
    """The probe's process imports it, and nobody else."""
    marker = tmp_path / "imported-by"
    noted = f"import os\nwith open({str(marker)!r}, 'a') as f: f.write(f'{{os.getppid()}} ')\n{code}"
    done = cli("doctor", "--json", "--torch-timeout", "2", PYTHONPATH=stub_torch(tmp_path, noted))
    assert done.code == 0, done.err
    document = done.json()
    assert document["environment"]["torch"] is None
    assert said in document["environment"]["unavailable"]["torch"]
    checks = by_key(document)
    assert checks["torch"]["status"] == ("warn" if "not installed" in said else "fail")
    assert checks["torch"]["fix"]
    assert checks["gloo"]["status"] == "skip"
    assert checks["memory"]["status"] in ("pass", "warn", "fail")
    assert len(marker.read_text().split()) == 1


def test_hardware_lists_the_table_and_the_links(here: Here) -> None:
    done = here("hardware")
    assert done.code == 0
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line.strip()}
    assert rows["h100-sxm"][1:] == ["80", "3350", "66.9", "494.7", "989.4", "989.4", "1979", "–", "450"]
    assert rows["v100-sxm2-16gb"][4] == "–"
    assert rows["infiniband-ndr"][1:3] == ["50.0", "GB/s"]
    document = here("hardware", "--json").json()
    assert document["schema"] == "stepscope.hardware/1"
    assert {"h100-sxm", "mi300x", "rtx-4090"} <= {entry["key"] for entry in document["accelerators"]}
    assert all(entry["source"] and entry["date"] for entry in document["accelerators"])
    assert {"pcie5-x16", "nvlink4-x18"} <= {link["key"] for link in document["links"]}


def test_hardware_looks_a_gpu_up_by_the_name_torch_prints(here: Here) -> None:
    done = here("hardware", "NVIDIA A10G")
    assert done.code == 0
    assert all(words in done.out for words in ("70 TFLOP/s dense", "source", "not the A10"))
    (entry,) = here("hardware", "NVIDIA", "H100", "80GB", "HBM3", "--json").json()["accelerators"]
    assert entry["key"] == "h100-sxm"
    assert entry["peak_dense_flops_per_s"]["bf16"] == pytest.approx(989.4e12)
    assert entry["link"]["bytes_per_s_per_direction"] == 450e9


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("H100", "'h100-pcie'"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "another part with a peak of its own: 'rtx-4090'"),
        ("x", "not in the"),
    ],
)
def test_an_unknown_gpu_is_a_usage_error_with_a_suggestion_and_no_peak(here: Here, name: str, said: str) -> None:
    done = here("hardware", name)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "fix: " in done.err


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("stepscope-quick-")]


def test_two_ranks_train_for_some_seconds_and_leave_nothing(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    done = cli("doctor", "--quick", "--ranks", "2", "--json", TMPDIR=str(place))
    assert done.code == 0, done.err
    found = done.json()
    assert found["schema"] == "stepscope.doctor_quick/1"
    assert (found["world_size"], found["device"], found["backend"]) == (2, "cpu", "gloo")
    assert found["steps"] > 0  # how many is a matter of how busy the cores are
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert all(rank["own_ns_median"] > 0 for rank in found["ranks"])
    assert found["collective"]["size_bytes"] == 4 * 4 * 512 * 512
    assert {check["title"] for check in found["checks"]} == {"training", "ranks", "collective", "threads"}
    assert found["checks"][0]["status"] == "pass"
    assert leftovers(place) == []
    assert not (tmp_path / "stepscope-runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_and_leaves_nothing(cli: Cli, tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    process = cli.start("doctor", "--quick", TMPDIR=str(place))
    beat = wait_for(lambda: list(place.glob("stepscope-quick-*/run/cells/*/heartbeat-00001")), process)
    assert beat
    ranks = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "nothing is left behind" in err
    assert out == ""
    assert leftovers(place) == []
    limit = time.monotonic() + 5
    while any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks):
        assert time.monotonic() < limit, "ranks are still running"
        time.sleep(0.05)
