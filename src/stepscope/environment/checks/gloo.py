"""torch has the gloo backend, which CPU ranks need."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, failed, passed, skipped
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    if record.torch is None:
        return skipped("torch does not answer")
    if record.torch.gloo:
        return passed("available")
    return failed("this torch was built without gloo", fix="install an official build of torch (pytorch.org)")


CHECK = Check(section="network", title="gloo", run=run, order=0)
