"""One file per command: parse, one library call, render."""

from stepscope.cli.command import Command
from stepscope.core.registry import Registry

REGISTRY: Registry[Command] = Registry("stepscope.cli.commands", "COMMAND", "command")
