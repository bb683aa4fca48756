"""NCCL or RCCL says why it gave up: no route, no shared memory, a card that does not answer, one GPU twice.

What
----
The lines of a log in which NCCL names an error, by a table of messages: what the message means, what to check, what to set.
Lines that only repeat an error up the stack (``proxy.cc:698 -> 6``) and messages that are harmless in healthy jobs are none.

Why
---
The last lines of a job that failed are mostly those of ranks that noticed; what NCCL printed first is the cause.

Known problems
--------------
A message is understood by its text: one that a newer NCCL words in another way is not in the table.

References
----------
NVIDIA/nccl, src/misc and src/transport (2.7 to 2.28): the texts; NCCL user guide, Troubleshooting (read 2026-11).
"""

from __future__ import annotations

from stepscope.diagnose.explanations import Explanation, findings_of
from stepscope.diagnose.rule import Rule, Statement
from stepscope.results.evidence import Evidence

GUIDE = "NCCL user guide, Troubleshooting, 2026-11"

EXPLANATIONS = (
    Explanation(
        kinds=("nccl-no-route",),
        title="{here} has no route to {peer}: a firewall or a missing route between the two hosts",
        advice=(
            ("open the ports between the hosts (firewall, security group): NCCL takes any free one", None),
            ("or choose an interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-shm-full",),
        title="/dev/shm of {here} is full: NCCL cannot create its shared memory there",
        advice=(
            (
                "make /dev/shm larger: docker run --shm-size=8g, or an emptyDir of medium Memory in Kubernetes",
                "df -h /dev/shm",
            ),
        ),
        source=GUIDE,
    ),
)


def check(evidence: Evidence) -> Statement:
    return (
        findings_of(evidence.signs, EXPLANATIONS)
        or f"{len(evidence.signs)} lines on the job's end: none is an error of NCCL"
    )


RULE = Rule(
    symptom="NCCL names an error before the job ends",
    needs=("signs",),
    look=check,
    decided_by="a message of the table",
    protocol=1,
)
