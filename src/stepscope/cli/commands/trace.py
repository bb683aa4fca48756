"""``stepscope trace``: where the time went, from the profiler's traces of any PyTorch job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.command import Argument, Command, Option, Options


class Trace(Options):
    """Show where a training step's time went: compute, exposed communication, copies, idle time and why.

    Reads any PyTorch profiler trace, one file per rank; nothing needs to be installed in the job.

    To record traces, run `stepscope profile -- COMMAND`, or add six lines to the script (one file per rank):

    \b
    from torch.profiler import profile, schedule
    save = lambda p: p.export_chrome_trace(f"trace-rank{rank}.json.gz")
    plan = schedule(wait=10, warmup=2, active=5, repeat=1)
    with profile(schedule=plan, record_shapes=True, on_trace_ready=save) as prof:
        for batch in loader:
            train_step(batch); prof.step()
    """

    paths: Annotated[
        tuple[str, ...],
        Argument(
            help="Trace files, folders or globs (.json, .gz, .zst, nsys .sqlite), or a run folder.",
            metavar="PATHS",
        ),
    ]
    show: Annotated[
        str,
        Option(
            help="Sections to show: budget,steps,overlap,memory,...; all for every one.",
            metavar="SECTION,...",
            show_default=False,
        ),
    ] = ""
    steps: Annotated[str | None, Option(help="Only these steps in the step table: 12, 10-14.", metavar="N,A-B")] = None
    rank: Annotated[str | None, Option(help="Only these ranks in the tables: 0,3 or 0-7.", metavar="N,A-B")] = None
    limit: Annotated[int, Option(help="Most rows of a table; 0: all rows.", min=0, metavar="N")] = 24
    sort: Annotated[
        str,
        Option(
            help="Order of operators: host_self, host_total, device_self, device_total, calls, flop, name.",
            metavar="KEY",
        ),
    ] = "device_self"
    cell: Annotated[str | None, Option(help="Cell of a run folder.", metavar="ID")] = None
    rank_of: Annotated[
        tuple[str, ...],
        Option("--rank-of", help="Rank of a file that does not record its rank.", metavar="FILE=N"),
    ] = ()
    region: Annotated[
        tuple[str, ...],
        Option(
            "--region",
            help="The job's own range NAME is this phase: data, forward, backward, communication, optimizer, evaluation.",
            metavar="NAME=PHASE",
        ),
    ] = ()
    flop: Annotated[
        float | None,
        Option(help="Model FLOP per step and rank (forward and backward), for MFU.", metavar="FLOP", min=1),
    ] = None
    hardware_flop: Annotated[
        float | None,
        Option(help="FLOP per step and rank with recomputation, for HFU.", metavar="FLOP", min=1),
    ] = None
    merge: Annotated[
        Path | None,
        Option(help="Write all ranks on one aligned timeline, for Perfetto.", metavar="OUT.json.gz"),
    ] = None
    diff: Annotated[
        str | None,
        Option(help="Compare with this earlier trace (folder or file): what got slower since.", metavar="OTHER"),
    ] = None
    diff_steps: Annotated[
        str | None,
        Option(
            "--diff-steps",
            help="Compare two ranges of steps of the same traces, the earlier first: 10-13:20-23.",
            metavar="A-B:C-D",
        ),
    ] = None
    processes: Annotated[
        int | None, Option(help="Number of ranks to read at the same time; default: one per core.", min=1, metavar="N")
    ] = None
    cache: Annotated[bool, Option("--cache", help="Keep what was read in ~/.cache/stepscope, for faster starts.")] = (
        False
    )
    csv: Annotated[Path | None, Option(help="Also write the tables there as CSV.", metavar="DIR")] = None
    fail_if: Annotated[
        tuple[str, ...],
        Option(
            "--fail-if",
            help="Exit 6 when this holds: 'exposed_comm_fraction > 0.2', or a rule's name.",
            metavar="CONDITION",
        ),
    ] = ()
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False


COMMAND = Command(options=Trace, where="stepscope.cli.trace_run", panel="Look at a job")
