"""--gpus 8,64 and --what-if KEY=VALUE: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from stepscope.cli.command import read
from stepscope.cli.commands.predict import Predict
from stepscope.core.errors import UsageError
from stepscope.predict.what_if import WhatIf, parse_dry_what_if, parse_gpus, parse_what_if


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


def test_what_a_script_decides_is_refused_and_the_rest_is_priced_or_run_again() -> None:
    what = parse_dry_what_if(["gpu=h200,reshard=no", "bucket=100MiB", "compile=yes"])
    assert what.priced.gpu == "h200-sxm"
    assert what.compiled
    assert what.forced == {"reshard": "no", "bucket": str(100 << 20)}
    assert not parse_dry_what_if([]).asked
    for text, words in (
        ("batch=2x", "the script decides that"),
        ("reshard=maybe", "no, yes"),
        ("colour=red", "unknown"),
    ):
        with pytest.raises(UsageError, match=words):
            parse_dry_what_if([text])


def test_a_command_is_what_follows_the_dashes() -> None:
    line = ["--gpus", "8", "--gpu", "h100-sxm", "--", "torchrun", "--nproc-per-node", "8", "train.py", "--", "--json"]
    options = read(Predict, line)
    assert options is not None
    assert options.command == line[5:]
    assert options.gpus == "8"
    assert not options.json
    assert read(Predict, ["folder", "--gpus", "8"]) is not None
