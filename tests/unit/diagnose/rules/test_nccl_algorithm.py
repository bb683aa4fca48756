from __future__ import annotations

import pytest
from tests.comm_rows import MIB, collective
from tests.evidence import evidence

from stepscope.diagnose.rules.nccl_algorithm import RULE
from stepscope.records.comm import CommRow
from stepscope.records.finding import Quiet, Skipped

RING, TREE = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}


def row(us: float, env: dict[str, str] | None = None, *, size: int = 4 * MIB) -> CommRow:
    """Known to 1%."""
    return collective(size, us, env=env or {}, device="cuda", backend="nccl", world_size=8)


def test_a_setting_that_beats_the_default_fires_with_the_sizes() -> None:
    rows = (
        row(400), row(300, RING), row(420, TREE),
        row(800, size=8 * MIB), row(640, RING, size=8 * MIB), row(900, TREE, size=8 * MIB),
    )  # fmt: skip
    (found,) = RULE.check(evidence(comm=rows))
    assert found.title == "all_reduce on 8 ranks: NCCL_ALGO=Ring is 33% faster than NCCL's choice at 4 MiB"
    assert found.evidence == (
        "4 MiB: default 1.33x the time of NCCL_ALGO=Ring",
        "8 MiB: default 1.25x the time of NCCL_ALGO=Ring",
    )
    assert found.advice[0].command == "export NCCL_ALGO=Ring"


def test_a_default_that_wins_is_quiet() -> None:
    outcome = RULE.check(evidence(comm=(row(300), row(310, RING), row(420, TREE))))
    assert isinstance(outcome, Quiet)
    assert "at most 1.00x" in outcome.looked_at


def test_a_tie_for_the_first_place_with_the_default_is_quiet() -> None:
    """The default's interval reaches into the winner's."""
    wide = collective(4 * MIB, 330, device="cuda", backend="nccl", world_size=8, time_ns_low=290e3, time_ns_high=370e3)
    assert isinstance(RULE.check(evidence(comm=(wide, row(300, RING)))), Quiet)


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (row(300),),
        (row(300, RING), row(400, TREE)),
        (row(300), row(200, {"OMP_NUM_THREADS": "4"})),
    ],
)
def test_without_a_sweep_over_nccls_settings_it_says_how_to_make_one(rows: tuple[CommRow, ...]) -> None:
    outcome = RULE.check(evidence(comm=rows))
    assert isinstance(outcome, Skipped)
    assert outcome.command is not None
    assert "--env NCCL_ALGO=Ring,Tree" in outcome.command
