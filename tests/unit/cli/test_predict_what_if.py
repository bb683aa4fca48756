"""--gpus 8,64 and --what-if KEY=VALUE: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.predict.what_if import WhatIf, parse_gpus, parse_what_if


def test_gpus_ascend_and_appear_once() -> None:
    assert parse_gpus("64, 8,8") == (8, 64)


@pytest.mark.parametrize("text", ["", "8,", "0", "-8", "8x", "10000000", "1e3"])
def test_gpus_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="give numbers from 1 to"):
        parse_gpus(text)


def test_keys_may_be_repeated_options_or_one_list() -> None:
    wanted = WhatIf(gpu="h200-sxm", link="pcie", batch=2.0, bucket_bytes=8 << 20)
    assert parse_what_if(["gpu=h200-sxm,link=pcie", "batch=2x", "bucket=8MiB"]) == wanted
    assert parse_what_if(["precision=bf16", "overlap=perfect"]) == WhatIf(precision="bf16", overlap="perfect")
    assert parse_what_if(["link=infiniband-ndr"]).link == "infiniband-ndr"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu", "KEY=VALUE"),
        ("gpus=8", "did you mean 'gpu'"),
        ("gpu=h20000", "h20000"),
        ("link=pcei", "unknown network"),
        ("batch=2", "batch=2x"),
        ("batch=0x", "batch=2x"),
        ("precision=bf61", "did you mean 'bf16'"),
        ("overlap=none", "perfect"),
        ("bucket=8 parsecs", "8 parsecs"),
        ("batch=2x,batch=3x", "twice"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_what_if([text])
    assert said in refused.value.line + (refused.value.fix or "")
