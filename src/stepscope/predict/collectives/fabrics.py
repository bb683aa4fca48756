"""Networks between nodes as a collective library sees them: rate of an adapter, share reached, latency of a step.

Data. latency_us stands on top of NCCL's own latency of a network step (which assumes a fast RDMA fabric); rate_share is
what one adapter reaches of its bit rate. Where no figure is published the entry says so, and intervals are wider.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.machine.peaks.links import LINKS

VERBS_SHARE = 0.94
VERBS_SOURCE = "NVIDIA/nccl-tests issue 290, maintainer: 46 to 48 GB/s of a 400 Gbit/s adapter (2025-03)"
NO_LL128 = ("LL", "Simple")
"""LL128 needs adapters that deliver 128 bytes whole; through libfabric that is the adapter's secret, and no table of EFA
or Slingshot shows it in use."""
OFI_SHARE = 0.83
OFI_SOURCE = "no published figure; EFA (p4de) and Slingshot 11 tables reach 0.82 and 0.84 of the bit rate"
TCP_SOURCE = "no published figure: a default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """One kind of network. adapter_bytes_per_s: bit rate / 8 of one adapter, None: the GPU generation's usual one.

    adapters_per_node: None: one for each GPU. latency_source, share_source: where those two come from; known: both are
    published or measured on several systems. protocols: the ones NCCL may use on it.
    """

    key: str
    name: str
    adapter_bytes_per_s: float | None
    adapters_per_node: int | None
    rate_share: float
    share_source: str
    latency_us: float
    latency_source: str
    known: bool
    protocols: tuple[str, ...] = ("LL", "LL128", "Simple")


_NCCL_ZERO = "NVIDIA/nccl v2.30.7-1, src/transport/net_ib: adapters report no latency of their own"
_PLUGIN = "aws/aws-ofi-nccl 2daf7d30 (2026-08), src/platform-aws.cpp"
_MODEL = "aws/aws-ofi-nccl 2daf7d30 (2026-08), src/tuner/nccl_ofi_model.cpp: 8-byte RDMA write {} us, less NCCL's 5"


def _verbs(key: str, name: str, rate: float | None) -> Fabric:
    return Fabric(
        key=key, name=name, adapter_bytes_per_s=rate, adapters_per_node=None, rate_share=VERBS_SHARE,
        share_source=VERBS_SOURCE, latency_us=0.0, latency_source=_NCCL_ZERO, known=True,
    )  # fmt: skip


def _efa(key: str, name: str, gbit: float, adapters: int, latency_us: float, latency_source: str) -> Fabric:
    return Fabric(
        key=key, name=name, adapter_bytes_per_s=gbit / 8 * 1e9, adapters_per_node=adapters, rate_share=OFI_SHARE,
        share_source=OFI_SOURCE, latency_us=latency_us, latency_source=latency_source, known=True, protocols=NO_LL128,
    )  # fmt: skip


def _from_links(prefix: str) -> list[tuple[str, str, float]]:
    return [(link.key, link.name, link.bytes_per_s) for link in LINKS if link.key.startswith(prefix)]


FABRICS: tuple[Fabric, ...] = (
    _verbs("infiniband", "InfiniBand", None),
    *(_verbs(key, name, rate) for key, name, rate in _from_links("infiniband-")),
    _verbs("roce", "RoCE", None),
    *(
        _verbs(key.replace("ethernet", "roce"), name.replace("Ethernet", "RoCE"), rate)
        for key, name, rate in _from_links("ethernet-")
        if rate >= 25e9 / 8
    ),
    _efa("efa-p3dn", "EFA, p3dn (V100)", 100, 1, 150.0, _PLUGIN),
    _efa("efa-p4d", "EFA, p4d and p4de (A100)", 100, 4, 75.0, _PLUGIN),
    _efa("efa-p5", "EFA, p5 and p5e (H100, H200)", 100, 32, 15.0, _MODEL.format(20)),
    _efa("efa-p5en", "EFA, p5en (H200)", 200, 16, 13.0, _MODEL.format(18)),
    _efa("efa-p6", "EFA, p6 (B200's; efa-p6-b300 has twice the adapters)", 400, 8, 13.0, _MODEL.format(18)),
    _efa("efa-p6-b200", "EFA, p6 (B200)", 400, 8, 13.0, _MODEL.format(18) + " (the p5en's)"),
    _efa("efa-p6-b300", "EFA, p6 (B300)", 400, 16, 13.0, _MODEL.format(18) + " (the p5en's)"),
    Fabric(
        key="omni-path", name="Omni-Path 100", adapter_bytes_per_s=12.5e9, adapters_per_node=None, rate_share=OFI_SHARE,
        share_source=OFI_SOURCE, latency_us=0.0, latency_source="no published figure: NCCL's own", known=False,
        protocols=NO_LL128,
    ),
    Fabric(
        key="slingshot-11", name="HPE Slingshot 11", adapter_bytes_per_s=25e9, adapters_per_node=None,
        rate_share=OFI_SHARE, share_source=OFI_SOURCE, latency_us=0.0,
        latency_source="no published figure; NCCL's own fits the one table seen", known=False, protocols=NO_LL128,
    ),
    Fabric(
        key="gpudirect-tcpxo", name="GPUDirect-TCPXO (A3 Mega)", adapter_bytes_per_s=25e9, adapters_per_node=8,
        rate_share=0.92, share_source="two A3 Mega tables: 0.90 (all-reduce) and 0.94 (all-gather)", latency_us=38.0,
        # Release notes of GPUDirect-TCPXO: NCCL_PROTO=Simple,LL128 by default since 2025-05, Simple alone before.
        latency_source="no published figure; two A3 Mega tables give 37 and 40 us a step if taken with LL128, 8 us if "
        "with Simple alone, and do not say which",
        known=False,
        protocols=("LL128", "Simple"),
    ),
    Fabric(
        key="gpudirect-tcpx", name="GPUDirect-TCPX (A3 High)", adapter_bytes_per_s=25e9, adapters_per_node=4,
        rate_share=0.85, share_source=TCP_SOURCE, latency_us=50.0,
        latency_source="no published figure: the TCPXO's and some", known=False, protocols=("Simple",),
    ),
    *(
        Fabric(
            key=key, name=f"{name}, TCP sockets", adapter_bytes_per_s=rate, adapters_per_node=1, rate_share=0.7,
            share_source=TCP_SOURCE, latency_us=30.0, latency_source=TCP_SOURCE, known=False, protocols=NO_LL128,
        )
        for key, name, rate in _from_links("ethernet-")
    ),
)  # fmt: skip

_BY_KEY = {fabric.key: fabric for fabric in FABRICS}
_IB_NAMES = ("qdr", "fdr", "edr", "hdr", "ndr", "xdr")
_EFA_BY_GPU = (
    ("v100", "efa-p3dn"), ("a100", "efa-p4d"), ("h100", "efa-p5"), ("h200", "efa-p5en"), ("b200", "efa-p6-b200"),
    ("b300", "efa-p6-b300"),
)  # fmt: skip
_WHOLE_NUMBER = r"(?<!\d)(?<!\d[.,])"
"""Before a number: what follows is no end of a longer one, such as the 50 of 12.50."""
_RATE = re.compile(
    rf"(?:(\d+)\s*[x×][^\d,;]*?)?{_WHOLE_NUMBER}(\d{{1,4}}\.\d+|\d{{2,4}})\s*((?i:gb(?:it|ps|e|/s)?|g))\b"
)
_MOST_GBIT = 800.0
"""Of one adapter: a higher rate without a count is the whole node's."""
_NODE_RATE = re.compile(
    rf"{_WHOLE_NUMBER}(\d{{1,5}}\.\d+|\d{{2,5}})\s*gb(?:ps|it|/s)\s*(?:/|per )\s*(?:node|instance)", re.IGNORECASE
)


_OTHER_NAMES = {"tcpx": "gpudirect-tcpx", "tcpxo": "gpudirect-tcpxo"}


def find_fabric(key: str, *, gpu_key: str = "") -> Fabric:
    """The network called ``key``, or described by several words with a rate (``8x 50GBps EFA v4``).

    gpu_key: tells the generations of one name apart. Unknown: UsageError with did-you-mean.
    """
    name = _OTHER_NAMES.get(key.lower(), key.lower())
    if name in _BY_KEY:
        return _BY_KEY[name]
    described = read_fabric(key, gpu_key=gpu_key) if " " in key.strip() and _RATE.search(key) else None
    if described is None:
        raise UsageError(unknown("network", key, _BY_KEY), fix=f"--network takes {', '.join(_BY_KEY)}")
    return described


def read_fabric(text: str, *, gpu_key: str) -> Fabric | None:
    """The network meant by free text (``InfiniBand``, ``EFA (instance spec 400 Gbps/node)``) or a key; None: none meant.

    A rate for the whole node in the text replaces the entry's adapters by one of that rate.
    """
    words = text.lower()
    if not words.strip():
        return None
    if words in _BY_KEY:
        return _BY_KEY[words]
    fabric = _kind(words, gpu_key)
    if fabric is None:
        return None
    found, whole = _RATE.search(text), _NODE_RATE.search(text)
    if whole and not (found and found[1]):
        return replace(fabric, adapter_bytes_per_s=float(whole[1]) / 8 * 1e9, adapters_per_node=1)
    if found:
        gbit = float(found[2]) * (8 if found[3].startswith("GB") and found[3] != "GBE" else 1)  # GBps: bytes
        count = int(found[1]) if found[1] else fabric.adapters_per_node
        if gbit > _MOST_GBIT and not found[1]:
            count = 1
        return replace(fabric, adapter_bytes_per_s=gbit / 8 * 1e9, adapters_per_node=count)
    return fabric


def _kind(words: str, gpu_key: str) -> Fabric | None:
    if "tcpxo" in words:
        return _BY_KEY["gpudirect-tcpxo"]
    if "tcpx" in words:
        return _BY_KEY["gpudirect-tcpx"]
    if "efa" in words:
        return _BY_KEY[next((key for part, key in _EFA_BY_GPU if gpu_key.startswith(part)), "efa-p5")]
    if re.search(r"omni-?path|\bopa\b", words):
        return _BY_KEY["omni-path"]
    if "slingshot" in words:
        return _BY_KEY["slingshot-11"]
    if re.search(r"infiniband|\bib\b|quantum", words):
        name = next((name for name in _IB_NAMES if name in words), None)
        return _BY_KEY[f"infiniband-{name}" if name else "infiniband"]
    if re.search(r"roce|rdma|spectrum", words):
        return _BY_KEY["roce"]
    return None
