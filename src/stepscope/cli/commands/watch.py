"""``stepscope watch``: a job of ``run`` or ``profile``, or a matrix, while it runs, from any host that sees its folder."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch


class Watch(Options):
    """Watch a running job: ranks x phases, who is late, what happened, steps/s, the verdict so far.

    Reads the folder that `stepscope run` or `profile` printed, from any host. Ends with the job; Ctrl-C leaves it running.
    Of a run folder of `bench` or `comm`: cells that have ended, and where each rank is.
    """

    run: Path = argument("Folder of a job of `run` or `profile`, or of `bench` or `comm`.", "RUN")
    every: float = option("Seconds between looks.", "SECONDS", default=2.0, min=0.2)
    once: bool = switch("One look; also where stdout is not a terminal.")
    html: Path | None = option("Also write one page that renews itself, until the job ends.", "FILE")
    json: bool = switch("One look, as one JSON document.")


COMMAND = Command(options=Watch, where="stepscope.cli.watch_run", panel="Look at a job")
