"""Known networks found again: calibration at 200 Mbit, 1 and 2 Gbit, with a delay, and 2 ranks' fit on 4 ranks.

Needs what `stepscope comm --emulate-network` needs: root, or user namespaces, and ip and tc.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks._commands import comm, stepscope
from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns.start import probe_emulation
from stepscope.predict.calibrated import time_of
from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.records.network import parse_network

RATES = ("200mbit", "1gbit", "2gbit")
DELAYED = ("1gbit,delay=1ms", "200mbit,delay=2ms")
SIZES = "1K:16M:4"
OPS = "all_reduce,all_to_all,gather,scatter,all_gather,reduce_scatter,broadcast,reduce"
CLOSE = ("all_reduce", "all_to_all", "gather", "scatter")


def main(arguments: list[str] | None = None) -> None:
    asked = arguments if arguments is not None else sys.argv[1:]
    heading("emulated networks: what calibrate finds of what was set")
    refused = probe_emulation(delayed=True)
    if isinstance(refused, Unavailable):
        print(f"skipped: {refused.reason}")
        return
    parts = asked or ["rates", "worlds"]
    if "rates" in parts:
        for network in (*RATES, *DELAYED):
            _found_again(network)
    if "worlds" in parts:
        _other_world("1gbit")


def _calibrated(folder: Path, *arguments: str) -> Calibration:
    comm(folder, *arguments)
    path = folder / "calib.json"
    stepscope("calibrate", str(folder), "-o", str(path))
    return codec.decode(path.read_bytes(), Calibration, source=str(path))


def _found_again(text: str) -> None:
    network = parse_network(text)
    with tempfile.TemporaryDirectory() as folder:
        calibration = _calibrated(
            Path(folder) / "run", "--ops", "all_reduce,scatter", "--sizes", SIZES, "--ranks", "2", "--emulate-network", text,
            "--budget", "4s",
        )  # fmt: skip
    for fit in calibration.fits:
        line = fit.line
        rate, known = line.beta_bytes_per_s, network.payload_bytes_per_s
        step_ms, delay_ms = line.alpha_ns / 1e6, network.delay_ns / 1e6
        # A message on gloo is a rendezvous: two one-way delays (docs/reference/emulated-network.md).
        delay = f"; delay {step_ms / 2:.3f} ms of {delay_ms:.3f} ({step_ms / 2 - delay_ms:+.3f} ms; bar: 0.2 ms)"
        print(
            f"{text:<18} {fit.op:<11} rate {rate / 1e6:.2f} MB/s of {known / 1e6:.2f} ({rate / known - 1:+.1%}; bar: 3%)"
            f"{delay if network.delay_ns else ''}",
            flush=True,
        )


def _other_world(text: str) -> None:
    """2 ranks' fit against 4 ranks' measurement, by op: median and largest error over sizes of 1 MiB and more."""
    with tempfile.TemporaryDirectory() as folder:
        common = ("--ops", OPS, "--sizes", SIZES, "--emulate-network", text, "--budget", "3s")
        calibration = _calibrated(Path(folder) / "two", *common, "--ranks", "2")
        rows = comm(Path(folder) / "four", *common, "--ranks", "4")
    for op in OPS.split(","):
        errors = []
        for row in rows:
            if row.op == op and (row.size_bytes or 0) >= 1 << 20 and row.time_ns_median:
                predicted = time_of(calibration, op, row.size_bytes or 0, world_size=4)
                errors.append(predicted.time_ns / row.time_ns_median - 1)
        worst = max(errors, key=abs)
        print(
            f"{op:<15} n = 2 fit at n = 4: {', '.join(f'{e:+.1%}' for e in errors)}; worst {worst:+.1%}; "
            f"bar: {'5' if op in CLOSE else '10'}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
