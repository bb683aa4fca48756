"""``stepscope doctor``: what this machine is and whether it can train."""

from __future__ import annotations

from stepscope.cli.command import Command, Options, option, switch


class Doctor(Options):
    """Check this machine: torch, GPUs, links, network, launcher; PASS, WARN, FAIL or SKIP for each check.

    Every WARN and FAIL comes with a fix. On a machine without a GPU, the checks of GPUs are skipped.
    Under a launcher, local rank 0 reports for its host; on several nodes rank 0 compares them.
    --quick trains for some seconds and takes under half a minute.
    """

    json: bool = switch("Print one JSON document.")
    strict: bool = switch("Exit with code 6 when a check fails.")
    torch_timeout: float = option("Timeout for importing torch, in seconds.", "SECONDS", default=60.0, min=1)
    quick: bool = switch("Train for a few seconds instead: each rank's own time, stragglers, the collective.")
    hosts: str | None = option("Compare these hosts, over ssh: a,user@b, or a file of hosts.", "HOST,...")
    ssh: str | None = option("With --hosts: the ssh command: 'ssh -p 2222 -i KEY'.", "COMMAND")
    remote_python: str | None = option("With --hosts: their Python; default: this one's path, else python3.", "PATH")
    ranks: int | None = option("Ranks of --quick; default: all GPUs, or 2 on the CPU.", "N", min=1)


def where(options: Doctor) -> str:
    """Return the function that does what ``options`` ask."""
    if options.hosts is not None:
        return "stepscope.cli.doctor_hosts"
    return "stepscope.cli.doctor_run" + (":run_quick" if options.quick else "")


COMMAND = Command(
    options=Doctor,
    where=where,
    panel="Look at a machine",
)
