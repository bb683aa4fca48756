"""Measured links against their rates and each other; healthy outputs say what was compared and name no problem."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.machine_texts import ibstat, nvbandwidth, p2p, perftest, smi_q

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Finding
from stepscope.results.open import load_evidence

H100, A100, A6000 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA RTX A6000"
V100, A10G, GEFORCE = "Tesla V100-SXM2-16GB", "NVIDIA A10G", "NVIDIA GeForce RTX 4090"
CARDS = "".join(ibstat(f"mlx5_{n}", rate="400", card="MT4129") for n in range(7))


def found(tmp_path: Path, text: str) -> list[Finding]:
    path = tmp_path / "out.txt"
    path.write_text(text)
    return [f for f in diagnose(load_evidence([path])).findings if f.rule == "link-below-rate"]


PEERS = " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\t{0}\n GPU1\tOK\tX\t{1}\n GPU2\t{0}\t{1}\tX\n\nLegend:\n\n  X    = Self\n"
"""``nvidia-smi topo -p2p r``."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (perftest((65536, 11890.5)), ("100 Gbit/s", "EDR")),
        (perftest((8, 20.0), (65536, 21000.0), (8388608, 23300.0)), ("195 Gbit/s", "HDR")),
        (perftest((65536, 190.8), unit="Gb", test="Send BW", link="Ethernet"), ("23.9 GB/s", "200 Gbit Ethernet")),
        (perftest((65536, 5830.8), test="RDMA_Write Bidirectional BW", link="Ethernet"), ("3.06 GB/s", "25 Gbit Ethernet")),
        (ibstat("mlx5_2", rate="40") + perftest((65536, 3293.6)), ("86%", "QDR")),
        ("".join(ibstat(f"mlx5_{n}") for n in range(4)), ("4 ports", "200 Gbit/s")),
        (ibstat("mlx5_0") + ibstat("mlx5_1", rate="25", layer="Ethernet", card="MT4117"), ("1 port InfiniBand",)),
        (p2p(H100, 8, lambda a, _: 371 + a, lambda *_: 37.1), ("GPUs exchange 371 GB/s", "450 GB/s")),
        (p2p(V100, 8, lambda a, b: [24.2, 48.3, 9.9][(a + b) % 3], lambda *_: 8.8), ("48.3 GB/s", "NVLink 2")),
        (p2p(A100, 4, lambda *_: 92.7, lambda *_: 19.9), ("92.7 GB/s",)),
        (p2p(A6000, 4, lambda a, b: 52.0 if a // 2 == b // 2 else 21.5, lambda *_: 17.0), ("21.5 GB/s to 52.0 GB/s",)),
        (p2p(GEFORCE, 4, lambda *_: 21.0, lambda *_: 21.1, reach=False), ("no P2P",)),
        (nvbandwidth(H100, 8, lambda _: 55.3, lambda *_: 395.0), ("55.3 GB/s", "63.0 GB/s", "395 GB/s")),
        (nvbandwidth(A6000, 6, lambda _: 25.1, lambda a, b: 26.3 if a // 3 == b // 3 else 21.9), ("31.5 GB/s",)),
        (smi_q({}, {}), ("2 GPUs: full PCIe lanes",)),
        (PEERS.format("OK", "NS"), ("P2P works in 4 directions",)),
        (smi_q({"generation": "1", "Gpu": "0 %"}), ("1 GPU: full PCIe lanes",)),
    ],
)  # fmt: skip
def test_a_healthy_link_is_an_observation(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    findings = found(tmp_path, text)
    assert {finding.severity for finding in findings} == {"info"}
    said = " ".join(line for finding in findings for line in (finding.title, *finding.evidence))
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ibstat("mlx5_2", rate="400") + perftest((65536, 23290.1)), ("mlx5_2 reaches 24.4 GB/s", "49%", "NDR")),
        (perftest((65536, 228.9), unit="Gb"), ("229 Gbit/s", "NDR")),
        ("".join(f"gpu-03: {line}\n" for line in perftest((65536, 5000.0)).splitlines()), ("gpu-03 mlx5_2",)),
        (CARDS + ibstat("mlx5_9", rate="100", card="MT4129"), ("mlx5_9 port 1: 100 Gbit/s, and 400 on 7 ports",)),
        (p2p(H100, 8, lambda a, b: 180.0 if {a, b} == {2, 5} else 371.2, lambda *_: 37.1), ("GPU 2 -> GPU 5", "180 GB/s")),
        (p2p(H100, 8, lambda *_: 38.0, lambda *_: 37.1), ("NVLink is not in use",)),
        (p2p(A10G, 6, lambda *_: 9.9, lambda *_: 22.2), ("P2P gains nothing", "22.2 GB/s")),
        (p2p(A6000, 4, lambda *_: 11.2, lambda *_: 11.3, reach=False), ("no P2P in 12 directions",)),
        (p2p("some card", 4, lambda *_: 5.5, lambda *_: 4.0), ("P2P does not work",)),
        (nvbandwidth(H100, 8, lambda n: 27.1 if n == 6 else 55.3, lambda *_: 395.0), ("host -> GPU 6", "27.1 GB/s")),
        (nvbandwidth(H100, 8, lambda _: 26.9, lambda *_: 395.0), ("43% of PCIe 5.0 x16",)),
        (nvbandwidth(H100, 8, lambda _: 55.0, lambda a, b: 60.0 if (a, b) == (1, 6) else 395.0), ("GPU 6 -> GPU 1: 60",)),
        (nvbandwidth(A100, 4, lambda _: 25.0, lambda a, b: 20.3 if 3 in (a, b) else 271.0), ("GPU 3", "20.3 GB/s")),
        (PEERS.format("CNS", "OK"), ("no P2P in 2 directions", "host's memory")),
        (smi_q({}, {"width": "8x", "Gpu": "0 %"}), ("PCIe lanes", "GPU 01:00.0: 8 of 16")),
        (smi_q({"generation": "3"}, {}), ("PCIe generation", "GPU 00:00.0: 3 of 4")),
    ],
)  # fmt: skip
def test_a_slow_link_is_named_once(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    (finding,) = found(tmp_path, text)
    assert finding.severity == "warning"
    assert finding.advice
    assert [word for word in words if word not in finding.title] == []


def test_where_no_rate_fills_a_link_nothing_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(perftest((8, 27.5)))
    assert not diagnose(load_evidence([path])).findings
