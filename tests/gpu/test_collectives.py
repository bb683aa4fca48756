"""``comm`` on the device: every collective right at every size, and a rate that a calibration takes."""

from __future__ import annotations

import pytest
from tests.gpu.conftest import Target

pytestmark = pytest.mark.timeout(900)


def test_every_collective_is_right_on_the_device(target: Target) -> None:
    sizes = "1K:64M:16" if target.device == "cuda" else "1K:256K:16"
    done = target.cli(
        "comm", "--ops", "all", "--sizes", sizes, "--ranks", str(target.ranks), "--device", target.device,
        "--warmup", "2", "--iters", "8", "-o", "comm", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = done.json()["rows"]
    assert {row["backend"] for row in rows} == {target.backend}
    assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"} <= {row["op"] for row in rows}
    for row in rows:
        assert row["status"] in ("ok", "unsupported"), row
        assert row["status"] != "ok" or row["op"] == "barrier" or row["correct"], row
    if target.ranks > 1:
        fitted = target.cli("calibrate", "comm", "-o", "calib.json")
        assert fitted.code == 0, fitted.err
