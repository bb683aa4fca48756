"""Clocks that differ are said, with how far, and whether that was corrected."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.trace_builder import Clock
from tests.trace_evidence import found, generated, traced

from stepscope.diagnose.rules.clock_skew import RULE
from stepscope.records.trace_collectives import Contradicted
from stepscope.results.evidence import Evidence


def test_a_clock_that_is_ahead_is_named_with_how_far(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, world=3, steps=5, clocks={1: Clock(offset_ns=3_000_000)}))
    assert "1 of 3 ranks" in finding.title
    assert "3.00 ms" in finding.title
    assert finding.severity == "info"
    assert finding.evidence[0].startswith("rank 1 is 3.00 ms ahead of rank 0")
    assert "--merge" in (finding.advice[0].command or "")


def test_a_clock_behind_is_told_from_one_ahead(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, world=3, steps=5, clocks={1: Clock(offset_ns=-3_000_000)}))
    assert "3.00 ms behind rank 0" in finding.evidence[0]


def test_a_drift_beyond_what_quartz_does_is_a_warning(tmp_path: Path) -> None:
    evidence = generated(
        tmp_path, world=2, steps=40, clocks={1: Clock(offset_ns=500_000, drift_ppm=400)}, transfer_ns=50_000
    )
    finding = found(RULE, evidence)
    assert finding.severity == "warning"
    assert any("ppm" in line for line in finding.evidence)


def test_clocks_that_contradict_the_collectives_make_waiting_doubtful(tmp_path: Path) -> None:
    finding = found(RULE, contradicted(generated(tmp_path, world=3)))
    assert finding.severity == "warning"
    assert "contradict the collectives" in finding.title


def contradicted(evidence: Evidence) -> Evidence:
    summary = evidence.traces[0].summary
    assert summary.collectives is not None
    clocks = summary.collectives.clocks
    fits = tuple(Contradicted(**asdict(f) | {"status": "unknown"}) if f.rank == 2 else f for f in clocks.fits)
    return traced(replace(summary, collectives=replace(summary.collectives, clocks=replace(clocks, fits=fits))))


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (("a", "a"), "these ranks share a host and its clock"),
        (("a", "b"), "synchronise the hosts' clocks: chrony"),
        ((None, None), "if these ranks run on several hosts"),
    ],
)
def test_clocks_of_hosts_are_blamed_only_where_the_hosts_differ(
    tmp_path: Path, hosts: tuple[str | None, ...], said: str
) -> None:
    evidence = generated(tmp_path, world=2, steps=5, clocks={1: Clock(offset_ns=3_000_000)})
    summary = evidence.traces[0].summary
    placed = tuple(replace(p, facts=replace(p.facts, host=host)) for p, host in zip(summary.ranks, hosts, strict=True))
    finding = found(RULE, traced(replace(summary, ranks=placed)))
    assert said in finding.advice[-1].text
