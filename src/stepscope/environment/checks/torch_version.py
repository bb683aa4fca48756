"""torch is new enough for the rank half."""

from __future__ import annotations

import re

from stepscope.environment.checks._common import Check, Outcome, failed, passed, skipped
from stepscope.records.environment import EnvironmentRecord

OLDEST = (2, 6)
"""As ``stepscope[torch]`` requires."""


def run(record: EnvironmentRecord) -> Outcome:
    if record.torch is None:
        return skipped("torch does not answer")
    match = re.match(r"(\d+)\.(\d+)", record.torch.version)
    wanted = ".".join(map(str, OLDEST))
    if match is None:
        return skipped(f"{record.torch.version!r} is no version number")
    if (int(match[1]), int(match[2])) < OLDEST:
        return failed(f"torch {record.torch.version} is older than {wanted}", fix=f"pip install -U 'torch>={wanted}'")
    return passed(f"{record.torch.version} is at least {wanted}")


CHECK = Check(section="environment", title="torch version", run=run, order=1)
