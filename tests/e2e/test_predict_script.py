"""`stepscope predict -- COMMAND`: from the script to its figures, and how it ends where a script has no step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.runs import Here

pytest.importorskip("torch")

SCRIPT = """
import os, parts
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
model = DistributedDataParallel(model, device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    loss = model(torch.randn(64, 512, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
    os.makedirs("out", exist_ok=True)
    open("out/log.txt", "a").write("step")
torch.save(model.state_dict(), "model.pt")
"""
GPUS = ("--gpus", "16", "--gpu", "h100-sxm", "--network", "infiniband-ndr")
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8")
WEIGHTS = 2 * 512 * 2048 + 512 + 2048


def test_a_script_is_predicted_and_leaves_its_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "parts.py").write_text("import torch")
    stepscope = Here(tmp_path)
    before = set(tmp_path.iterdir())
    done = stepscope("predict", *GPUS, "--json", "-o", "dry", "--", *LAUNCHER, "train.py")
    assert done.code == 0, done.err
    assert set(tmp_path.iterdir()) - before == {tmp_path / "dry"}  # no model.pt
    (step,) = done.json()["predictions"]
    assert step["ranks"] == 16
    assert step["memory"]["by_kind"]["parameters"] == 4 * WEIGHTS
    assert step["memory"]["by_kind"]["optimizer"] == pytest.approx(8 * WEIGHTS, rel=0.001)  # and its counters of steps
    sent = sum(row["size_bytes"] for row in step["traffic"] if row["op"] == "all_reduce")
    assert sent == 4 * WEIGHTS
    again = stepscope("predict", "dry", "--json")
    assert again.json()["predictions"] == done.json()["predictions"]
    assert "train.py on 16 x H100" in stepscope("diagnose", "dry").out


def test_a_mistake_of_the_script_is_a_sentence_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nx = 1\nraise ValueError('no data here')\n")
    stepscope = Here(tmp_path)
    done = stepscope("predict", *GPUS, "-o", "dry", "--", *LAUNCHER, "train.py")
    assert done.code == 3
    assert "train.py:3" in done.err
    assert "Traceback" not in done.err
    assert stepscope("predict", "dry").code == 3  # the folder says the same
    named = stepscope("predict", "--gpus", "12", "--gpu", "h100-sxm", "--", *LAUNCHER, "train.py")
    assert named.code == 2
    assert "12 GPUs do not fill nodes of 8" in named.err


def test_ctrl_c_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    line = [sys.executable, "-m", "stepscope", "predict", *GPUS, "-o", "dry", "--", sys.executable, "train.py"]
    child = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    pid, deadline = tmp_path / "pid", time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "the script's processes have ended" in said
    assert not Path(f"/proc/{pid.read_text()}").exists()
    assert json.loads((tmp_path / "dry" / "dryrun.json").read_text())["gpus"] == [16]
