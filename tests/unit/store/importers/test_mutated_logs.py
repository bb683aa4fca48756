"""Whatever happens to the lines of a log: no figure is imported that no whole line of it holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests import nccl_log, nccl_tests_log
from tests.damage.held import READERS, false_claims
from tests.damage.structure import mutated
from tests.unit.store.importers import test_job_logs as jobs
from tests.unit.store.importers import test_megatron_log as megatron

from stepscope.core.errors import DataError, UsageError
from stepscope.records.imported import Imported
from stepscope.store.importers import detect, read_foreign

SHORT, LONG, CHUNK = 150, 6000, 150


def _nccl(scale: int) -> str:
    talk = nccl_log.Talk(nranks=4 * scale, per_host=4 * scale)
    lines = [line for text in talk.texts() for line in text]
    lines += [
        talk.say(0, f"AllReduce: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..{high}}}")
        for size, algorithm, protocol, high in ((1048576, "TREE", "LL128", 11), (67108864, "RING", "SIMPLE", 23))
    ]
    return "\n".join([*lines, ""])


def _logs(scale: int) -> dict[str, str]:
    """Two different logs of each kind: all their figures differ."""
    sizes = [(1 << n, (21.37 + (1 << n) / 2.1e5) * scale) for n in range(10, 26, 3)]
    steps = [(n, 123.4 * scale + 7.7 * n * n) for n in (1, 2, 3, 5)]
    titan = [jobs.titan(n, f"{57_311 * scale + 1_237 * n:,}", loss=f"{7 - n / 10 + scale / 100:.4f}") for n, _ in steps]
    timers = [line for n, ms in steps for line in jobs.timer(10 * n, round(1e4 / ms, 3))]
    iterations = [megatron.iteration(10 * n, f"{ms:.1f}", more=f"lm loss: {n}.{scale}E+00 | ") for n, ms in steps]
    return {
        "nccl_tests": nccl_tests_log.log(sizes, ranks=4 * scale),
        "nccl_debug": _nccl(scale),
        "megatron_log": megatron.HEAD + "".join(iterations),
        "torchtitan_log": "\n".join([*jobs.head(), *titan, ""]),
        "deepspeed_log": "\n".join([*jobs.CONFIG, *timers, ""]),
    }


LOGS, OTHERS = _logs(1), _logs(2)


WORLDS = [("ranks", 4), ("ranks", 8)]
"""Whatever columns are swapped, these are the sizes that the jobs had."""


def imported(path: Path) -> Imported | None:
    """What is read; None where nobody knows the file, or its reader refuses it."""
    if detect(path) is None:
        return None
    try:
        return read_foreign(path)
    except (DataError, UsageError):
        return None


def found_false(seeds: range, folder: Path) -> tuple[list[str], int]:
    """(what is false, how many logs were read)."""
    false, read = [], 0
    for seed in seeds:
        rng = random.Random(seed)
        kind = sorted(LOGS)[seed % len(LOGS)]
        other = (OTHERS if rng.random() < 0.7 else LOGS)[rng.choice((kind, kind, "nccl_debug", "megatron_log"))]
        text, how = mutated(LOGS[kind], rng, other)
        path = folder / f"{seed}.log"
        path.write_text(text, newline="")
        one = imported(path)
        if one is None or one.format not in READERS:
            continue
        read += 1
        moved = ("swap_columns" in how or "change_units" in how) and "write_over" not in how
        before = (
            () if moved and one.format == kind in ("nccl_tests", "megatron_log") else (LOGS[one.format],)
        )  # figures mean something else now
        claims = false_claims(one.format, one, text, *before, OTHERS[one.format])
        claims = [each for each in claims if each not in WORLDS]
        false += [f"seed {seed}, {kind} read as {one.format}, {how}: {claims[:3]} in {path}"] if claims else []
    return false, read


def test_a_log_as_it_was_written_is_claimed_whole_and_nothing_else(tmp_path: Path) -> None:
    for kind, text in LOGS.items():
        path = tmp_path / f"{kind}.log"
        path.write_text(text)
        one = imported(path)
        assert one.format == kind
        assert not false_claims(kind, one, text)
        assert len(false_claims(kind, one, "")) > 1, "that its lines hold what it claims is found by these lines alone"


@pytest.mark.parametrize("first", range(0, SHORT, CHUNK))
def test_a_torn_log_gives_no_false_figure(first: int, tmp_path: Path) -> None:
    false, read = found_false(range(first, first + CHUNK), tmp_path)
    assert not false, "\n".join(false)
    assert read > CHUNK / 2


@pytest.mark.long
@pytest.mark.parametrize("first", range(SHORT, LONG, CHUNK))
def test_more_torn_logs_give_no_false_figure(first: int, tmp_path: Path) -> None:
    false, _ = found_false(range(first, first + CHUNK), tmp_path)
    assert not false, "\n".join(false)
