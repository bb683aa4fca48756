"""Copies that nothing hides: from where to where, and what to do about each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_evidence import by_hand, found, generated, kernels

from stepscope.diagnose.rules.exposed_memcpy import RULE

WORK = "void at::native::vectorized_elementwise_kernel<4>"


def test_pageable_copies_fire_and_pinning_is_advised() -> None:
    finding = found(RULE, by_hand(*kernels(("Memcpy HtoD (Pageable -> Device)", 300), (WORK, 700))))
    assert finding.title == "30% of the window is exposed copies, mostly host to device (pageable memory)"
    assert finding.severity == "problem"
    assert finding.evidence == ("1 copy host to device (pageable) at 1.00 GB/s: 300 us of them exposed",)
    assert "pin_memory=True" in finding.advice[0].text


def test_copies_back_are_advised_otherwise() -> None:
    finding = found(RULE, by_hand(*kernels(("Memcpy DtoH (Device -> Pageable)", 300), (WORK, 700))))
    assert ".item()" in finding.advice[0].text


def test_pinned_copies_are_told_to_run_beside_the_work(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, world=2, copy_ns=2_000_000))
    assert "pageable" not in finding.title
    assert "non_blocking" in finding.advice[0].text


def test_pages_that_the_driver_moves_are_no_copies_of_a_loader() -> None:
    finding = found(RULE, by_hand(*kernels(("Memcpy DtoH (Unified)", 300), (WORK, 700))))
    assert "(unified memory)" in finding.title
    assert "cudaMemPrefetchAsync" in finding.advice[0].text
    assert not any(".item()" in advice.text for advice in finding.advice)


@pytest.mark.parametrize(
    ("name", "said"), [("Memcpy DtoD (Device -> Device)", ".contiguous()"), ("Memset (Device)", "zero_grad")]
)
def test_what_stays_on_the_device_is_never_told_to_pin(name: str, said: str) -> None:
    """A few pageable copies beside it change nothing: the largest kind decides."""
    finding = found(RULE, by_hand(*kernels((name, 300), ("Memcpy HtoD (Pageable -> Device)", 30), (WORK, 670))))
    assert said in finding.advice[0].text
    assert not any("pin" in advice.text for advice in finding.advice)
