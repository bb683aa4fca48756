"""``stepscope compare``: A against B, with intervals and a test."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch
from stepscope.cli.evidence import CLASSES, COLUMNS, COMMUNICATION, DROP_EPOCHS, SCALING, WORLD_SIZE


class Compare(Options):
    """Say whether B differs from A, by how much, and how sure that is; differences in settings and machine first.

    The test needs 4 or more rounds, epochs or blocks of steps of each. `--run A.yaml A.yaml`: the noise of this machine.
    """

    paths: tuple[Path, ...] = argument(
        "Two or more runs (folders, or results of other tools); with --run, two matrix files.", "A B ..."
    )
    run: bool = switch(
        "A and B are matrix files: measure them now, in alternating rounds.",
        without="world_size scaling columns communication class_",
    )
    rounds: int | None = option("With --run: number of rounds, 4 or more; default: 6.", "N", needs="run")
    output: Path | None = option(
        "With --run: folder of both runs; the same folder again resumes.", "DIR", "-o", needs="run"
    )
    data_dir: Path | None = option("With --run: folder of the data sets.", "DIR", needs="run")
    set_: tuple[str, ...] = option(
        "With --run: change a key of both matrix files: base.lr=0.1.", "KEY=VALUE", default=(), needs="run"
    )
    metric: str | None = option("Compare only these figures: step_ns,samples_per_s,...", "KEY,...")
    world_size: str | None = WORLD_SIZE
    scaling: str | None = SCALING
    columns: str | None = COLUMNS
    communication: tuple[str, ...] = COMMUNICATION
    class_: Path | None = CLASSES
    drop_epochs: int = DROP_EPOCHS
    fail_if: tuple[str, ...] = option(
        "Exit 6 when this holds: 'samples_per_s < -3%' (against A), 'test_accuracy < 0.9'.", "CONDITION", default=()
    )
    everything: bool = switch("Every figure and every difference, however many.", "--all")
    md: bool = switch(
        "Print a comment for a pull request: one sentence and one table, 20 lines of Markdown at most.",
        without="json everything",
    )
    json: bool = switch("Print one JSON document.")


COMMAND = Command(options=Compare, where="stepscope.cli.compare_run", panel="Look at a job")
