"""``stepscope hardware``: peak rates of accelerators and links, with their sources."""

from __future__ import annotations

from stepscope.cli.command import Command, Options, argument, switch


class Hardware(Options):
    """List accelerators and links with their dense peaks, or look up one GPU.

    Rates are dense (no sparsity), matrix units with FP32 accumulation; links count one direction.
    """

    name: tuple[str, ...] = argument(
        "A GPU as torch or nvidia-smi prints it, or a key of the table.", "NAME", default=()
    )
    json: bool = switch("Print one JSON document.")


COMMAND = Command(options=Hardware, where="stepscope.cli.hardware_run", panel="Look at a machine")
