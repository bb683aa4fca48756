"""``doctor --quick`` on hand-made steps: what it says of ranks, without starting any."""

from __future__ import annotations

import pytest
from tests.bench_evidence import Own, bench, environment, failed, made

from stepscope.cli.commands.doctor import Doctor
from stepscope.cli.doctor_run import document, run_quick
from stepscope.cli.main import main
from stepscope.core.errors import UsageError
from stepscope.matrix.load import matrix_of
from stepscope.matrix.machine import Machine
from stepscope.matrix.quick_check import QuickCheck, assess, matrix_text, summary
from stepscope.records import codec
from stepscope.records.plan import CommOp
from stepscope.store.yaml_loader import parse_yaml

PLAN = (CommOp(op="all_reduce", numel=1 << 20, dtype="float32", phase="after_backward"),)


def quick(*, own: Own | None = None, world_size: int = 2, comm_ms: float = 3.0, steps: int = 40) -> QuickCheck:
    cell = made("q", own=own, world_size=world_size, comm_ms=comm_ms, steps=steps, strategy="naive")
    (evidence,) = bench(cell).cells
    return assess(evidence, environment(), PLAN, wall_ns=10**10)


def status(found: QuickCheck) -> dict[str, str]:
    return {v.title: v.outcome.status for v in found.verdicts}


def test_even_ranks_are_healthy_and_the_collective_has_its_rate() -> None:
    found = quick(world_size=4)
    assert status(found) == {"training": "pass", "ranks": "pass", "collective": "pass", "threads": "pass"}
    assert summary(found) == "healthy"
    assert found.collective is not None
    assert found.collective.time_ns == pytest.approx(3e6)
    assert found.collective.busbw_bytes_per_s == pytest.approx(4 * 2**20 / 3e-3 * 1.5)


def test_a_slow_rank_is_a_failure_and_says_where() -> None:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["backward_compute"] *= 1.6 if rank == 1 else 1.0

    found = quick(own=own, world_size=4)
    assert status(found)["ranks"] == "fail"
    assert summary(found).startswith("not healthy: straggler: rank 1 on node-a takes 1.37x")
    plain = document(found)
    assert plain["healthy"] is False
    assert plain["ranks"][1]["excess_fraction"] == pytest.approx(36 / 97, abs=0.01)
    assert plain["ranks"][0]["waiting_ns_median"] == pytest.approx(36e6, rel=0.05)
    assert plain["ranks"][1]["waiting_ns_median"] == 0
    codec.encode_document(plain)


def test_a_collective_that_varies_is_a_warning() -> None:
    cell = made("q", strategy="naive", jitter=0)
    slow = made("q", strategy="naive", jitter=0, comm_ms=12)
    ranks = tuple(
        type(a)(header=a.header, steps=(*a.steps[:30], *b.steps[30:]))
        for a, b in zip(cell.result.samples, slow.result.samples, strict=True)
    )
    mixed = type(cell)(run=cell.run, result=type(cell.result)(
        spec=cell.result.spec, status=cell.result.status, samples=ranks, summaries=cell.result.summaries
    ))  # fmt: skip
    found = assess(bench(mixed).cells[0], environment(), PLAN, wall_ns=1)
    assert status(found)["collective"] == "warn"
    assert summary(found) == "healthy, 1 warning"


def test_a_run_that_failed_is_not_healthy() -> None:
    cell = bench(failed("q", "error", "rank 1 on node-a: it broke", strategy="naive")).cells[0]
    found = assess(cell, environment(), PLAN, wall_ns=1)
    assert status(found) == {"training": "fail"}
    assert "rank 1 on node-a: it broke" in summary(found)
    assert document(found)["ranks"] == []


def test_too_few_steps_are_said() -> None:
    found = quick(steps=12)
    assert status(found)["ranks"] == "skip"
    assert "too few steps" in summary(found)


@pytest.mark.parametrize(
    ("machine", "ranks", "world", "strategy"),
    [
        (Machine(num_gpus=0, usable_cores=2), None, 2, "naive"),
        (Machine(num_gpus=8, usable_cores=64), None, 8, "naive"),
        (Machine(num_gpus=1, usable_cores=8), None, 1, "single"),
        (Machine(num_gpus=0, usable_cores=2), 5, 5, "naive"),
    ],
)
def test_ranks_are_the_gpus_or_two(machine: Machine, ranks: int | None, world: int, strategy: str) -> None:
    matrix = matrix_of(parse_yaml(matrix_text(machine, ranks), source="test"), name="q")
    (cell,) = matrix.cells
    assert (cell.settings.world_size, cell.settings.strategy) == (world, strategy)


def test_inside_a_launcher_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="starts its own ranks"):
        run_quick(Doctor(torch_timeout=1))


def test_ranks_without_quick_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--ranks", "2"])
    assert ended.value.code == 2
    assert "--ranks belongs to --quick" in capsys.readouterr().err


def test_one_rank_is_compared_with_nobody() -> None:
    cell = bench(made("q", world_size=1, strategy="single")).cells[0]
    found = assess(cell, environment(), (), wall_ns=1)
    assert status(found) == {"training": "pass", "ranks": "skip", "threads": "pass"}
    assert document(found)["collective"] is None
