"""The predictor's own constants: how much of what the tables promise real machines reach. Few, global, physical.

Each is a property of a class of hardware, not of a source; docs/reference/validation.md has the evidence: what they
become when any one source is left out.
"""

from __future__ import annotations

RING_SHARE = 0.98
"""Rings on NVLink against NCCL's link rates: 235/240 (A100), 365/371 (H100, H200) GB/s."""

MESH_SHARE = 0.96
"""Rings on xGMI against RCCL's link rates: 315/336 (8 MI300X), 47.7/48 (2), 350/384 (32 MI325X) GB/s."""

PEER_SHARE = 0.81
"""Send/receive between two GPUs against NCCL's link rates: 195/240 GB/s (A100); one table."""

SPREAD_SHARE = 0.95
"""All-to-all inside a node against NCCL's link rates: 224/240 GB/s (A100); one log."""

SWITCH_SHARE = 0.783
"""In-switch reduction: this x NCCL's efficiency of the generation x link peak x (heads - 1) / heads of S a second.

At 4 GiB and more 270 (8 H200), 259 (5 H200), 274 (8 H100) and 483 (8 B200) GB/s are 0.81 to 0.85 of what stands after
"this x", 425 (72 GB200) 0.73; 64 MiB to 2 GiB get 0.93 of that. One number for all sizes lies between.
"""

CHUNK_BYTES = 512 * 1024
"""One step's buffer of a channel: NCCL_BUFFSIZE 4 MiB / 8 steps. A pipeline moves at full rate once these are filled."""

TREE_CHUNK_STEP_US = 28.0
"""A tree's step with Simple and full chunks: NVIDIA/nccl v2.20.5-1, src/graph/tuning.cc, which says that it is the time
of a 256 KiB chunk. Later tables print 4.0, which steers the choice but is not the time."""

TREE_CHUNK_BYTES = 32 * 2**20
"""Size from which the chunks of trees over nodes are full; below it NCCL cuts them smaller."""

POST_US = 0.5
"""Host cost of queueing one send or receive of an all-to-all, gather or scatter; one log (8 A100)."""

PCIE_SHARE = 0.75
"""PCIe behind switches: packet headers and both directions in use. A default: 48/63 GB/s in one table (4 H100)."""

PCIE_HOST_SHARE = 0.35
"""PCIe through host memory: each byte crosses twice (cards without peer access). A default, nothing to check it by."""

LAUNCH_PER_GPU_US = 2.8
"""Kernel launches of one process that drives all GPUs of a node, one after the other.

NVIDIA/nccl-tests issue 123 (DGX A100, 2 to 8 GPUs: 10 to 33.7 us, 3.95 us a GPU) less the ring's two LL steps.
"""

TORCH_CALL_US = 30.0
"""A blocking torch.distributed call with events around it, above the library's own time: 29 to 33 us in three tables."""

ROUNDING = 0.92
"""Exponent that joins latency and transfer, (a**p + b**p)**(1/p): 1 is their sum, less than 1 a rounder knee."""
