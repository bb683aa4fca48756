"""What makes a layout fit, what one change does, and where scaling bends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.errors import UsageError
from stepscope.predict.step.alternatives import changed, knee, remedies
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Cluster, Layout, layout_text, parse_layout
from stepscope.predict.step.model import find_model
from stepscope.predict.step.step import StepPrediction, predict_step
from stepscope.predict.what_if import WhatIf

MODEL = find_model("llama3-8b")
CLUSTER = Cluster.of("h100-sxm", 64, network="infiniband-ndr")


def test_remedies_fit_and_the_cheapest_is_first() -> None:
    full = predict_step(MODEL, CLUSTER, Layout(dp=64, micro_batch=4, global_batch=256, seq_len=8192))
    assert not full.fits
    found = remedies(full)
    assert all(r.prediction.fits for r in found)
    assert [r.slower for r in found] == sorted(r.slower for r in found)
    assert len({r.prediction.layout for r in found}) == len(found) > 1


def test_what_one_change_does() -> None:
    layout, calibration = Layout(dp=64, zero=3, micro_batch=2, global_batch=128, seq_len=4096), StepCalibration()
    before = predict_step(MODEL, CLUSTER, layout, calibration)

    def after(what: WhatIf) -> StepPrediction:
        return predict_step(MODEL, *changed(CLUSTER, layout, calibration, what))

    assert after(WhatIf(gpu="b200")).step_s < 0.7 * before.step_s
    assert after(WhatIf(link="ethernet-25g")).step_s > 2 * before.step_s
    assert after(WhatIf(link="pcie")).budget.dp > before.budget.dp
    assert after(WhatIf(batch=2)).layout.micro_batch == 4
    assert after(WhatIf(batch=0.5)).layout.global_batch == 64
    assert after(WhatIf(precision="fp8")).step_s < before.step_s
    assert after(WhatIf(overlap="perfect")).budget.dp <= before.budget.dp
    with pytest.raises(UsageError, match="bucket"):
        after(WhatIf(bucket_bytes=1))
    with pytest.raises(UsageError, match="no whole micro-batches"):
        after(WhatIf(batch=0.3))


def test_the_knee_is_where_speed_per_gpu_falls_below_four_fifths() -> None:
    def at(gpus: int) -> StepPrediction:
        layout = Layout(dp=gpus, zero=3, global_batch=512, seq_len=2048)
        return predict_step(MODEL, Cluster.of("h100-sxm", gpus, network="infiniband-ndr"), layout)

    bend = knee(at(8), at)
    assert bend is None or at(2 * bend).tokens_per_s_per_gpu < 0.8 * at(8).tokens_per_s_per_gpu
    slow = Cluster.of("h100-sxm", 8, network="ethernet-10g")

    def on_ethernet(gpus: int) -> StepPrediction:
        layout = Layout(dp=gpus, zero=3, global_batch=512, seq_len=2048)
        return predict_step(MODEL, replace(slow, gpus=gpus), layout)

    assert knee(on_ethernet(8), on_ethernet) == 8


def test_a_layout_is_read_and_dp_deduced() -> None:
    asked = parse_layout(("tp=4,pp=2,zero=1", "mbs=2,acc=8,seq=8192,recompute=full,sync=each,sp=off"), MODEL)
    layout = asked.on(64)
    assert (layout.dp, layout.tp, layout.pp, layout.zero, layout.seq_len) == (8, 4, 2, 1, 8192)
    assert (layout.global_batch, layout.micro_batches) == (128, 8)
    assert layout.sync_each
    assert not layout.sequence_parallel
    assert asked.on(8).global_batch == 16
    assert not asked.assumed
    assert parse_layout((layout_text(layout),), MODEL).on(64).tp == 4
    assert parse_layout((), MODEL).assumed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpp=2", "did you mean 'tp'"),
        ("tp=two", "whole number"),
        ("tp=2,tp=4", "given twice"),
        ("gbs=8,acc=2", "gbs and acc both given"),
        ("sp=yes", "sp=on or sp=off"),
        ("recompute=ful", "did you mean 'full'"),
    ],
)
def test_a_mistyped_layout_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layout((text,), MODEL)
    assert said in str(caught.value)


def test_gpus_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="not a multiple of tp x pp x cp = 3"):
        parse_layout(("tp=3",), MODEL).on(64)
