"""A training job for tests of `stepscope profile`: optimizer steps of a few milliseconds, and one thing that goes wrong."""

import os
import subprocess
import sys
import tempfile
import time


def launch(world: int, mode: str) -> int:
    """Ranks as torchrun starts them; the exit code of the first that fails."""
    with tempfile.TemporaryDirectory() as meeting:
        common = {**os.environ, "WORLD_SIZE": str(world), "MEETING": meeting}
        line = [sys.executable, __file__, mode]
        ranks = [subprocess.Popen(line, env={**common, "RANK": str(rank)}) for rank in range(world)]
        return next((code for code in [rank.wait() for rank in ranks] if code), 0)


def fork_ranks(world: int, mode: str) -> int:
    """Ranks as multiprocessing forks them, from a process that has imported torch."""
    import multiprocessing

    import torch

    assert torch.__version__
    with tempfile.TemporaryDirectory() as meeting:
        os.environ.update(WORLD_SIZE=str(world), MEETING=meeting)
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=as_rank, args=(rank, mode)) for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    return next((rank.exitcode for rank in ranks if rank.exitcode), 0)


def as_rank(rank: int, mode: str) -> None:
    os.environ["RANK"] = str(rank)
    train(mode)


def meet(step: int) -> None:
    """Every rank ends a step when all have come to its end, as after an all-reduce."""
    place, rank, world = os.environ["MEETING"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    open(f"{place}/{rank}-{step}", "w").close()  # noqa: PTH123
    while not all(os.path.exists(f"{place}/{other}-{step}") for other in range(world)):  # noqa: PTH110
        if os.path.exists(os.environ.get("TELL", "")):  # noqa: PTH110
            return
        time.sleep(0.002)


def train(mode: str) -> None:
    import torch
    from torch.autograd.profiler import profile

    optimizer, other = torch.optim.SGD(), torch.optim.SGD()
    model = None
    if mode == "forwards":
        from torch.nn.modules.module import Module

        model = Module()
    own = profile()
    step, last = 0, int(os.environ.get("STEPS", "40"))
    while step < last:
        time.sleep(0.002 if last < 1000 else 0.01)  # a job that is waited for leaves the processor to others
        step += 1
        if "MEETING" in os.environ and not (mode == "rank 1 killed" and step > 10):
            meet(step)
        if mode == "own profiler" and step == 11:
            own._prepare_trace()
            own._start_trace()
        if mode == "own profiler" and step == 14:
            own.__exit__()
        if mode == "profiled from the start" and step == 2:
            own._prepare_trace()
        if mode == "two optimizers":
            other.step()
        if mode == "raises" and step == 12:
            raise RuntimeError("the job's own failure")
        if mode == "exits" and step == 12:
            sys.exit(7)
        if mode == "out of memory":
            torch.cuda.allocate(50_000)
        if mode == "killed" and step == 11:
            os.kill(os.getpid(), 9)
        if mode == "rank 1 killed" and step == 11 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        if mode == "forks" and step == 3 and os.fork() == 0:
            for _ in range(100):
                optimizer.step()
            sys.exit(0)
        if mode == "until told" and os.path.exists(os.environ["TELL"]):  # noqa: PTH110
            break
        if model is not None:
            model()
        elif mode != "no step":
            optimizer.step()
    sys.stdout.write(f"trained {step} steps\n")


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        sys.exit(launch(int(sys.argv[2]), sys.argv[3]))
    if sys.argv[1] == "fork ranks":
        sys.exit(fork_ranks(int(sys.argv[2]), sys.argv[3]))
    train(sys.argv[1])
