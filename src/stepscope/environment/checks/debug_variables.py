"""No variable is set that slows or pins what is to be measured."""

from __future__ import annotations

from stepscope.environment.checks._common import Check, Outcome, listed, passed, switched_on, variable, warned
from stepscope.records.environment import EnvironmentRecord

PINNING = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_BUFFSIZE")


def run(record: EnvironmentRecord) -> Outcome:
    found = [
        f"{name}={value}"
        for name, loud in (
            ("NCCL_DEBUG", ("INFO", "TRACE")),
            ("TORCH_DISTRIBUTED_DEBUG", ("DETAIL", "INFO")),
            ("TORCH_CPP_LOG_LEVEL", ("INFO",)),
        )
        if (value := variable(record, name)) and value.upper() in loud
    ]
    found += [
        f"{name}={variable(record, name)}"
        for name in (
            "CUDA_LAUNCH_BLOCKING",
            "TORCH_NCCL_BLOCKING_WAIT",
            "NCCL_BLOCKING_WAIT",
            "TORCH_SHOW_CPP_STACKTRACES",
        )
        if switched_on(variable(record, name))
    ]
    found += [f"{name}={value}" for name in PINNING if (value := variable(record, name))]
    if found:
        names = " ".join(item.partition("=")[0] for item in found)
        return warned(f"{listed(found)}: timings are not those of a normal run", fix=f"unset {names}")
    return passed("no debugging or tuning variable is set")


CHECK = Check(section="network", title="debug variables", run=run)
