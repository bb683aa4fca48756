"""``stepscope bench``: run a matrix of training cells and record what each one costs."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, listed, option, switch


class Bench(Options):
    """Benchmark training strategies: a matrix of models, strategies, ranks and precisions."""

    matrix: Path | None = argument("Matrix file (YAML).", "MATRIX.yaml", default=None)
    preset: str | None = option("In place of a file: a matrix that comes with stepscope (--list).", "NAME")
    model: str | None = option(
        "In place of a file: your own model, by the function that returns it.", "MODULE:FUNCTION"
    )
    batch: int | None = option("With --model: samples per rank and step; default: 32.", "N", min=1)
    strategies: str | None = option("With --model: strategies to compare; default: single,ddp.", "NAME,...")
    ranks: str | None = option(
        "With --model: numbers of ranks; default: 1, 2, 4, ... up to all GPUs, or cores.", "N,..."
    )
    input: str | None = option(
        "With --model: random samples of this shape: 3x224x224; 128:50257: 128 ids below 50257.", "SHAPE[:BELOW]"
    )
    list_: bool = switch("List the presets and exit.", only="json")
    show: bool = switch(
        "Print the resolved matrix as YAML and exit.",
        only="matrix preset model batch strategies ranks input set_ warmup steps emulate_network inject",
    )
    plan: bool = switch("Print the cells and the longest time they may take; run nothing.")
    output: Path | None = option(
        "Run folder; one that exists is resumed. Default: ./stepscope-runs/NAME-TIME.", "DIR", "-o"
    )
    set_: tuple[str, ...] = option("Change one key: --set base.lr=0.01. Repeatable.", "KEY=VALUE", default=())
    only: str | None = option("Of a matrix with sections, such as suite: run these.", "NAME,...")
    share: str | None = option(
        "Run part K of N of the cells, in a started world of those for it: a job array's task.", "K/N"
    )
    warmup: str | None = option("Warm-up steps: a number, or auto.", "N|auto")
    steps: str | None = option("Timed steps: a number, or auto.", "N|auto")
    hosts: str | None = option(
        "Run on these hosts, over ssh: a,user@b:4 (ranks on it), or a file of hosts.", "HOST[:RANKS],..."
    )
    ssh: str | None = option("With --hosts: the ssh command: 'ssh -p 2222 -i KEY'.", "COMMAND")
    remote_python: str | None = option("With --hosts: their Python; default: this one's path, else python3.", "PATH")
    emulate_network: str | None = option("Put ranks on emulated hosts, RATE[:HOSTS][,delay=TIME]: 2gbit:2.", "NETWORK")
    inject: tuple[str, ...] = option(
        "Plant a fault: slow_rank=2:30%, jitter or loader. Repeatable.", "FAULT[=AMOUNT]", default=()
    )
    data_dir: Path | None = option("Folder of the data sets.", "DIR")
    download: bool = switch("Fetch missing public data into --data-dir.")
    profile: bool = switch("Add three profiled steps to each cell: one trace per rank.")
    tensorboard: Path | None = option("Also write the traces for TensorBoard into this folder.", "DIR")
    rerun: str | None = option("In a run folder that exists: measure these cells again.", "CELL|failed|baseline,...")
    force: bool = switch("Use the run folder although it is of another matrix, machine or torch.")
    json: bool = switch("One JSON document on stdout instead of the table.")

    @property
    def sections(self) -> tuple[str, ...] | None:
        """Return what ``--only`` lists; None: everything."""
        return None if self.only is None else listed(self.only)

    @property
    def rerun_words(self) -> tuple[str, ...]:
        """Return what ``--rerun`` lists."""
        return listed(self.rerun)


COMMAND = Command(options=Bench, where="stepscope.cli.bench_run", panel="Measure")
