"""planted_later.py SCRIPT STEPS FROM: the job of SCRIPT, with so many steps.

After FROM of them rank 1 computes longer before each forward pass, by a quarter of the step so far, and rank 0 keeps 1 MiB
more in every step. FROM 0: nothing is planted.
"""

import os
import re
import sys
import time
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

LONGER = 0.25
steps, inside, kept, times = [0], [0], [], []
script, count, begin = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank, matrix = int(os.environ.get("RANK", "0")), torch.ones(192, 192)


def stepped(*_: object) -> None:
    steps[0] += 1
    if steps[0] <= begin:
        times.append(time.perf_counter())
    elif begin and rank == 0:
        kept.append(torch.ones(1 << 18))


def enter(*_: object) -> None:
    inside[0] += 1
    if inside[0] == 1 and begin and steps[0] >= begin and rank == 1 and torch.is_grad_enabled():
        end = time.perf_counter() + LONGER * (times[-1] - times[len(times) // 2]) / (len(times) - 1 - len(times) // 2)
        while time.perf_counter() < end:
            matrix @ matrix


def left(*_: object) -> None:
    inside[0] -= 1


register_optimizer_step_post_hook(stepped)
register_module_forward_pre_hook(enter)
register_module_forward_hook(left, always_call=True)
sys.path.insert(0, str(script.parent))
sys.argv = [str(script), "--clean"]
source = re.sub(r"(range\(|max_steps=)\d{3,}", rf"\g<1>{count}", script.read_text())
source = re.sub(r"max_epochs=\d+", f"max_epochs={count // 20}", source)
exec(compile(source, str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
