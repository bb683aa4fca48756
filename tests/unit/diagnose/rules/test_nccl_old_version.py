from __future__ import annotations

import pytest
from tests.evidence import evidence

from stepscope.diagnose.rules.nccl_old_version import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.nccl import NcclDebug
from stepscope.results.evidence import Evidence


def said(*versions: str, hardware: tuple[str, ...] = ()) -> Evidence:
    log = NcclDebug(
        versions=versions, communicators=(), messages=(), hosts=(), net_plugins=(), no_plugin=(), settings=(), files=(),
        notes=(),
    )  # fmt: skip
    return evidence(nccl=(log,), hardware=hardware)


def test_a_listed_version_fires_with_its_circumstances_and_workaround() -> None:
    (found,) = RULE.check(said("2.18.1+cuda12.1"))
    assert found.title == "NCCL 2.18.1+cuda12.1: all_reduce can give wrong data (LL128 is not safe there)"
    assert found.evidence[0].startswith("where: H100 machines")
    assert found.advice[1].command == "export NCCL_PROTO=^LL128"


def test_a_new_version_is_quiet() -> None:
    assert isinstance(RULE.check(said("2.29.7+cuda13.0")), Quiet)


@pytest.mark.parametrize(("version", "fires"), [("2.8.3", True), ("2.8.4", False), ("2.18.3", False), ("2.10.3", True)])
def test_the_version_that_mended_it_is_quiet(version: str, fires: bool) -> None:
    assert isinstance(RULE.check(said(version)), tuple) is fires


@pytest.mark.parametrize(("gpu", "fires"), [("NVIDIA GH200 120GB", True), ("NVIDIA H100 80GB HBM3", False)])
def test_a_bug_of_arm_hosts_fires_there_only(gpu: str, fires: bool) -> None:
    outcome = RULE.check(said("2.27.7", hardware=(f"8 x {gpu} on 2 hosts",)))
    assert isinstance(outcome, tuple) is fires
    if isinstance(outcome, tuple):
        assert [advice.command for advice in outcome[0].advice] == [None], "no workaround is known, none is announced"


def test_without_a_version_it_is_skipped() -> None:
    assert isinstance(RULE.check(evidence()), Skipped)
    assert isinstance(RULE.check(said("unknown")), Skipped)
