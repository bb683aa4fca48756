"""What kind of failure an exception is, and the record this rank leaves of it."""

from __future__ import annotations

import os
import time
import traceback
from typing import Literal

import torch

from stepscope.core.errors import StepscopeError
from stepscope.core.failure_signs import DEVICE_OUT_OF_MEMORY, HOST_OUT_OF_MEMORY, PEER_GONE
from stepscope.rank.heartbeat import Pulse
from stepscope.records.samples import RankError

Kind = Literal["oom", "host_oom", "victim", "error", "usage", "terminated"]

TRACEBACK_CHARS = 8000


class Terminated(BaseException):
    """SIGTERM: the launcher stops this rank because another one failed, or the controller ends the group."""


def classify(error: BaseException) -> Kind:
    """What happened. ``victim``: this rank only noticed that a peer was gone, which only messages tell."""
    text = str(error)
    if isinstance(error, Terminated):
        return "terminated"
    if isinstance(error, torch.OutOfMemoryError) or any(sign in text for sign in DEVICE_OUT_OF_MEMORY):
        return "oom"
    if isinstance(error, MemoryError) or any(sign in text for sign in HOST_OUT_OF_MEMORY):
        return "host_oom"
    if isinstance(error, StepscopeError):
        return "usage"
    store_errors = (torch.distributed.DistNetworkError, torch.distributed.DistStoreError)
    if isinstance(error, store_errors) or any(sign in text for sign in PEER_GONE):
        return "victim"
    return "error"


def describe(error: BaseException, pulse: Pulse, kind: Kind | None = None) -> RankError:
    lines = traceback.format_exception(error)
    return RankError(
        rank=pulse.rank,
        host=pulse.host,
        pid=os.getpid(),
        cell_id=pulse.cell_id,
        phase=pulse.phase,
        step=pulse.step,
        kind=kind or classify(error),
        exception=f"{type(error).__name__}: {error.line if isinstance(error, StepscopeError) else error}",
        traceback="".join(lines)[-TRACEBACK_CHARS:],
        fix=error.fix if isinstance(error, StepscopeError) else None,
        time_ns=time.time_ns(),
    )
