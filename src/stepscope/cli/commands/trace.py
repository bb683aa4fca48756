"""``stepscope trace``: where the time went, from the profiler's traces of any PyTorch job."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch
from stepscope.cli.evidence import CLASSES, COMMUNICATION
from stepscope.records.nouns import EXPOSED_COMM

_OF_ONE = "show steps sort region flop hardware_flop merge open_"
"""Options that a comparison does not obey."""


class Trace(Options):
    __doc__ = f"""Show where a training step's time went: compute, {EXPOSED_COMM}, copies, idle time and why.

    Reads any PyTorch profiler trace, one file per rank; nothing needs to be installed in the job.

    To record traces, run `stepscope profile -- COMMAND`, or add six lines to the script (one file per rank):

    \b
    from torch.profiler import profile, schedule
    save = lambda p: p.export_chrome_trace(f"trace-rank{{rank}}.json.gz")
    plan = schedule(wait=10, warmup=2, active=5, repeat=1)
    with profile(schedule=plan, record_shapes=True, on_trace_ready=save) as prof:
        for batch in loader:
            train_step(batch); prof.step()
    """

    paths: tuple[str, ...] = argument(
        "Trace files, folders or globs (.json, .gz, .zst, nsys .sqlite), or a run folder.", "PATHS"
    )
    show: str = option(
        "Sections to show: budget,steps,overlap,memory,...; all for every one.", "SECTION,...", default=""
    )
    steps: str | None = option("Only these steps in the step table: 12, 10-14.", "N,A-B")
    rank: str | None = option("Only these ranks in the tables: 0,3 or 0-7.", "N,A-B")
    ranks: str | None = option("Read only the traces of these ranks, a sample: 0,8,16 or 0-63.", "N,A-B")
    limit: int = option("Most rows of a table; 0: all rows.", "N", default=24, min=0)
    sort: str = option(
        "Order of operators: host_self, host_total, device_self, device_total, calls, flop, name.",
        "KEY",
        default="device_self",
    )
    cell: str | None = option("Cell of a run folder.", "ID")
    window: int | None = option(
        "Which of several captures of the same ranks, the oldest 1; default: the newest.", "N", min=1
    )
    rank_of: tuple[str, ...] = option("Rank of a file that does not record its rank.", "FILE=N", default=())
    region: tuple[str, ...] = option(
        "The job's own range NAME is this phase: data, forward, backward, communication, optimizer, evaluation.",
        "NAME=PHASE",
        default=(),
    )
    communication: tuple[str, ...] = COMMUNICATION
    class_: Path | None = CLASSES
    flop: float | None = option("Model FLOP per step and rank (forward and backward), for MFU.", "FLOP", min=1)
    hardware_flop: float | None = option("FLOP per step and rank with recomputation, for HFU.", "FLOP", min=1)
    merge: Path | None = option("Write all ranks on one aligned timeline, for Perfetto.", "OUT.json.gz")
    open_: bool = switch(
        "Open all ranks in ui.perfetto.dev, at the step of the first finding; they stay on this machine.",
        without="json",
    )
    diff: str | None = option("Compare with this earlier trace (folder or file): what got slower since.", "OTHER",
                             without=_OF_ONE)  # fmt: skip
    diff_steps: str | None = option(
        "Compare two ranges of steps of the same traces, the earlier first: 10-13:20-23.", "A-B:C-D", without=_OF_ONE
    )
    processes: int | None = option("Number of ranks to read at the same time; default: one per core.", "N", min=1)
    executor: str | None = option(
        "Read on the workers of this dask cluster, which see the same paths.", "dask://HOST:PORT"
    )
    cache: bool = switch("Keep what was read in ~/.cache/stepscope, for faster starts.")
    csv: Path | None = option("Also write the tables there as CSV.", "DIR")
    fail_if: tuple[str, ...] = option(
        "Exit 6 when this holds: 'exposed_comm_fraction > 0.2', or a rule's name.", "CONDITION", default=()
    )
    json: bool = switch("Print one JSON document.")


COMMAND = Command(options=Trace, where="stepscope.cli.trace_run", panel="Look at a job")
