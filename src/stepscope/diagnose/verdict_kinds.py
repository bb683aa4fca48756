"""Which of the verdict's kinds a rule's finding is about."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.records.finding import VerdictKind

KIND_OF_RULE: Mapping[str, VerdictKind] = {
    "data-loading": "input-bound",
    "straggler": "straggler",
    "communication-bound": "communication-bound",
    "exposed-communication": "communication-bound",
    "naive-synchronisation": "communication-bound",
    "exposed-tail-bucket": "communication-bound",
    "poor-overlap": "communication-bound",
    "gradient-sync-each-micro-step": "communication-bound",
    "fsdp-small-units": "communication-bound",
    "fsdp-no-prefetch": "communication-bound",
    "fsdp-regathers": "communication-bound",
    "fsdp-root-unit": "communication-bound",
    "fsdp-wait-on-copy": "communication-bound",
    "tensor-parallel-slow-link": "communication-bound",
    "python-overhead": "host-bound",
    "launch-bound": "host-bound",
    "small-kernels": "host-bound",
    "host-sync": "host-bound",
    "memory-bandwidth-bound": "memory-bound",
    "optimizer-heavy": "optimizer-bound",
    "pipeline-bubble": "pipeline-bubble",
    "pipeline-imbalance": "pipeline-bubble",
    "oversubscription": "contended-machine",
    "compute-bound": "compute-bound",
    "no-communication": "independent-processes",
}
"""What each rule's finding is about, in the verdict's terms."""

CAUSES_OF_TRANSFER = frozenset(
    {
        "naive-synchronisation", "gradient-sync-each-micro-step", "fsdp-small-units", "fsdp-regathers", "fsdp-root-unit",
        "fsdp-no-prefetch", "tensor-parallel-slow-link",
    }
)  # fmt: skip
"""Rules that name why communication is exposed, and what would change it."""

KIND_OF_EVENT: Mapping[str, VerdictKind] = {
    "evaluation": "evaluation",
    "checkpoint": "checkpointing",
    "garbage_collection": "garbage-collection",
    "compilation": "compilation",
}
"""What each event of a diary that takes time is called."""
