"""``stepscope tune``: from what a step's time goes into to a configuration that is measured to be faster."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.command import Command, Options, argument, option, switch


class Tune(Options):
    """Propose changes with their predicted gain, measure the best few by successive halving, print the better configuration.

    stepscope tune RUN; stepscope tune MATRIX.yaml; stepscope tune --knob batch=--batch-size:16..256 -- torchrun train.py

    What changes the mathematics (a larger batch, rounded gradients or products) is proposed, and tried only with --allow or
    --max-loss-change.
    """

    words: list[str] = argument(
        "A run of `bench`, a matrix file, or your own command.", "RUN|MATRIX.yaml|-- COMMAND..."
    )
    cell: str | None = option("Of several cells: the one to tune, by the beginning of its id.", "CELL")
    trials: int = option("Most configurations to try beside the baseline.", "N", default=6, min=1, max=64)
    budget: str = option(
        "Time of a configuration's timed steps in the first rung; each rung takes twice as long as the one before.",
        "DURATION",
        default="10s",
    )
    allow: tuple[str, ...] = option(
        "Try what changes the mathematics, whatever the loss: batch, hook, precision or all. Repeatable.",
        "KNOB,...",
        default=(),
    )
    max_loss_change: str | None = option(
        "Try it, and drop what has a loss higher by more than this at the same number of samples: 2%.", "PERCENT"
    )
    calib: Path | None = option("What collectives cost, from `stepscope calibrate`; default: measured first.", "FILE")
    knob: tuple[str, ...] = option(
        "Of a command: an option and the values to try: batch=--batch-size:16..256, workers=--workers:0,2,4. Repeatable.",
        "KNOB=OPTION:VALUES",
        default=(),
    )
    hook_knobs: str = option(
        "Of a command: what may be changed in the job without an edit of its code: bucket_cap_mb, no_sync, num_workers, ...",
        "auto|none|NAME,...",
        default="auto",
    )
    start: str = option("Of a command: most time from its start to its first steps.", "DURATION", default="5min")
    plan: bool = switch("Print the proposals with their predictions, and try none.")
    set_: tuple[str, ...] = option("Of a matrix: change one key, base.lr=0.01. Repeatable.", "KEY=VALUE", default=())
    data_dir: Path | None = option("Of a matrix: folder of the data sets.", "DIR")
    output: Path | None = option(
        "Folder of all trials; the same folder again resumes. Default: ./stepscope-runs/tune-NAME-TIME.", "DIR", "-o"
    )
    json: bool = switch("Print one JSON document.")


MATRIX = (".yaml", ".yml")


def _where(options: Tune) -> str:
    """Return the module that tunes: a folder and a matrix file hold a cell; anything else is the user's command."""
    word = Path(options.words[0])
    ours = len(options.words) == 1 and (word.suffix in MATRIX or word.is_dir())
    return "stepscope.cli.tune_run" if ours else "stepscope.cli.tune_command"


COMMAND = Command(options=Tune, where=_where, panel="Predict")
