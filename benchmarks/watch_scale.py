"""Thousands of ranks: what ``watch`` and ``diagnose`` take of generated diaries; whether what is slow is named right.

``python -m benchmarks.watch_scale [REPEATS] [RANKS,...]``; defaults: 100 of each kind, 64,512,4096 (10 minutes).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from tests.diaries import Planted, drawn_slow, own_times, simulate, write_record

from benchmarks._report import heading
from stepscope.results.slow_ranks import slow_ranks

REPEATS, RANKS, PER_HOST = 100, (64, 512, 4096), 8
LOOKS, FILE_STEPS, TIMED = 5, 500, 100
FACTOR, SPREAD = 1.1, 0.05
KINDS = ("clean", "rank", "host", "rail")


def main(arguments: list[str] | None = None) -> None:
    asked = arguments if arguments is not None else sys.argv[1:]
    repeats = int(asked[0]) if asked else REPEATS
    ranks = tuple(map(int, asked[1].split(","))) if asked[1:] else RANKS
    heading(f"{max(ranks):,} ranks on {max(ranks) // PER_HOST} hosts, {FILE_STEPS} steps each, one host 20% slow")
    with tempfile.TemporaryDirectory() as folder:
        job = write_record(Path(folder) / "job")
        slow = Planted(hosts={max(ranks) // PER_HOST // 2: 1.2})
        simulate(job, ranks=max(ranks), steps=FILE_STEPS, seed=1, per_host=PER_HOST, slow=slow)
        for words in (("watch", job, "--once"), ("watch", job, "--json"), ("diagnose", job)):
            looks = [_measured(*map(str, words)) for _ in range(LOOKS)]
            seconds = sorted(each[0] for each in looks)[LOOKS // 2]
            first = looks[0][2].splitlines()[0][:60]
            if words[-1] == "--json":
                first = json.loads(looks[0][2])["verdict"]["headline"][:60]
            print(f"{words[0]} {words[-1] if len(words) > 2 else ''}: {seconds:.2f} s (median of {LOOKS}; CPU "
                  f"{min(each[3] for each in looks):.2f} s at least), "
                  f"{max(each[1] for each in looks) / 1e6:.0f} MB; bar: 2 s, 300 MB; says: {first}", flush=True)  # fmt: skip
    heading(f"named right: factor {FACTOR}, lognormal spread {SPREAD:.0%}, {TIMED} steps")
    for count in ranks:
        rng, right = np.random.default_rng(count), Counter[str]()
        for kind in KINDS * repeats:
            slow, wanted = drawn_slow(rng, kind, ranks=count, per_host=PER_HOST, factor=FACTOR)
            times = own_times(rng, ranks=count, per_host=PER_HOST, steps=TIMED, slow=slow, spread=SPREAD)
            right[kind] += {each.about for each in slow_ranks(times) if each.kind == "chronic"} == wanted
        said = ", ".join(f"{kind} {right[kind]} of {repeats}" for kind in KINDS)
        print(f"{count:,} ranks: {said}; bar: 99 of 100 each", flush=True)


def _measured(*words: str) -> tuple[float, float, str, float]:
    """(seconds, bytes of memory at most, stdout, CPU seconds) of a command."""
    started = time.monotonic()
    command = [str(Path(sys.executable).with_name("stepscope")), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return time.monotonic() - started, usage.ru_maxrss * 1024, said, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
